-- What an agent's watchdog says of a trainer that does not get on: in which phase, and since when.
ALTER TABLE runs ADD COLUMN stalled_in TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN stalled_at REAL;
