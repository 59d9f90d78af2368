-- Steps and log lines: frames as they came (their reports as a JSON array), and the last values of each attempt.
CREATE TABLE streams (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  lines INTEGER NOT NULL,
  step INTEGER,
  total INTEGER,
  rate REAL,
  metrics TEXT NOT NULL,
  first_loss TEXT,
  reported_at REAL NOT NULL,
  UNIQUE (run_id, epoch)
);

-- `first_line`..`last_line`: numbers of the log lines inside, 0 where there are none.
CREATE TABLE frames (
  id INTEGER PRIMARY KEY,
  stream INTEGER NOT NULL REFERENCES streams,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  first_line INTEGER NOT NULL,
  last_line INTEGER NOT NULL,
  at REAL NOT NULL,
  data BLOB NOT NULL,
  UNIQUE (stream, first_seq)
);
