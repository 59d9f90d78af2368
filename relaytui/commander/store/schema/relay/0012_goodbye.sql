-- Whether a worker said good-bye as its last connection ended: it has gone by itself, and is not missing.
ALTER TABLE workers ADD COLUMN goodbye INTEGER NOT NULL DEFAULT 0;
