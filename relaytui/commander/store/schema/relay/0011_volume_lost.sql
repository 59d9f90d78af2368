-- Since when the agent of its newest attempt has no volume, by its word; NULL: it has it.
ALTER TABLE runs ADD COLUMN volume_lost_at REAL;
