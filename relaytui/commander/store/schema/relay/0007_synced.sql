-- What of a run is on the Hub, by the word of the newest attempt (`synced_epoch`) that said anything of it.
ALTER TABLE runs ADD COLUMN synced_step INTEGER;
ALTER TABLE runs ADD COLUMN synced_repo TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN synced_revision TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN synced_at REAL;
ALTER TABLE runs ADD COLUMN synced_epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN sync_error TEXT NOT NULL DEFAULT '';
-- The tag under which a checkpoint is on the Hub; empty: it is not.
ALTER TABLE checkpoints ADD COLUMN hub TEXT NOT NULL DEFAULT '';
