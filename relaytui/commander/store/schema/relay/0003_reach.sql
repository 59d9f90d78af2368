-- What a report, a grant or an end looks up is found without reading all that its run has.
CREATE INDEX checkpoints_by_run ON checkpoints (run_id, id);
CREATE INDEX checkpoints_kept ON checkpoints (run_id, id) WHERE pruned_at IS NULL;
CREATE INDEX events_requeued ON events (run_id, epoch) WHERE kind = 'run.requeued';
CREATE INDEX orders_by_attempt ON orders (run_id, epoch);
