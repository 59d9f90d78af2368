-- When the books were put back from a backup, until an agent has told what is on the run's volume; NULL: it has.
ALTER TABLE runs ADD COLUMN restored_at REAL;
UPDATE runs SET restored_at = (SELECT CAST(value AS REAL) FROM meta WHERE key = 'restored_at' AND CAST(value AS REAL) > created_at);
-- What was trained to its end since told all that it published then, and no agent comes any more to tell the rest.
UPDATE runs SET restored_at = NULL WHERE status IN ('completed', 'failed', 'cancelled')
  AND EXISTS (SELECT 1 FROM attempts a WHERE a.run_id = runs.run_id AND a.granted_at > runs.restored_at);
