-- Whether the run that a worker asked for last was denied for good: it has gone, and is not missing.
ALTER TABLE workers ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;
