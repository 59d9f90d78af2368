-- The newest word on each kind of transfer: kind -> row.
ALTER TABLE streams ADD COLUMN transfers TEXT NOT NULL DEFAULT '{}';
