-- When the books were put back from a backup, until an agent has told what is on the run's volume; NULL: it has.
ALTER TABLE runs ADD COLUMN restored_at REAL;
UPDATE runs SET restored_at = (SELECT CAST(value AS REAL) FROM meta WHERE key = 'restored_at' AND CAST(value AS REAL) > created_at);
