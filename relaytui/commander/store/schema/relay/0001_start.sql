-- Small and first: leases, runs, attempts, checkpoints, workers, events. Times are wall seconds unless said otherwise.
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE runs (
  run_id TEXT PRIMARY KEY,
  mode TEXT NOT NULL,
  status TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  message TEXT NOT NULL,
  draining_since REAL,
  newest_checkpoint TEXT,
  newest_step INTEGER,
  checkpoints INTEGER NOT NULL,
  published INTEGER NOT NULL,
  attempts INTEGER NOT NULL
) WITHOUT ROWID;

-- The newest lease of each run; earlier ones live on as attempts. `expires` is on the clock of boot `boot_id`.
CREATE TABLE leases (
  run_id TEXT PRIMARY KEY REFERENCES runs,
  epoch INTEGER NOT NULL,
  token_hash BLOB NOT NULL,
  worker TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  request_id TEXT NOT NULL,
  state TEXT NOT NULL,
  length REAL NOT NULL,
  boot_id TEXT NOT NULL,
  expires REAL NOT NULL,
  grace REAL NOT NULL,
  started INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE attempts (
  run_id TEXT NOT NULL REFERENCES runs,
  epoch INTEGER NOT NULL,
  worker TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  request_id TEXT NOT NULL,
  token_hash BLOB NOT NULL,
  salt BLOB NOT NULL,
  granted_at REAL NOT NULL,
  config_hash TEXT NOT NULL,
  started_step INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  started_from TEXT,
  ended_at REAL,
  outcome TEXT,
  exit_code INTEGER,
  message TEXT NOT NULL,
  PRIMARY KEY (run_id, epoch)
) WITHOUT ROWID;
CREATE UNIQUE INDEX attempts_by_token ON attempts (token_hash);

-- `id` is the order of publishing: the newest checkpoint of a run is the one with the highest.
CREATE TABLE checkpoints (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL REFERENCES runs,
  name TEXT NOT NULL,
  step INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  files INTEGER NOT NULL,
  manifest TEXT NOT NULL,
  published_at REAL NOT NULL,
  pruned_at REAL,
  UNIQUE (run_id, name)
);

CREATE TABLE workers (
  incarnation TEXT PRIMARY KEY,
  worker TEXT NOT NULL,
  host TEXT NOT NULL,
  version TEXT NOT NULL,
  gpu TEXT NOT NULL,
  gpus INTEGER NOT NULL,
  connected_at REAL NOT NULL,
  seen_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX workers_by_age ON workers (seen_at);

CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL,
  kind TEXT NOT NULL,
  actor TEXT NOT NULL,
  message TEXT NOT NULL,
  run_id TEXT,
  epoch INTEGER NOT NULL,
  data TEXT NOT NULL
);
CREATE INDEX events_by_run ON events (run_id, id);

-- An order is open until its agent acknowledged it or its attempt ended.
CREATE TABLE orders (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  incarnation TEXT NOT NULL,
  kind TEXT NOT NULL,
  actor TEXT NOT NULL,
  why TEXT NOT NULL,
  created_at REAL NOT NULL,
  closed_at REAL,
  accepted INTEGER,
  message TEXT NOT NULL DEFAULT '',
  FOREIGN KEY (run_id, epoch) REFERENCES attempts
);
CREATE INDEX orders_open ON orders (incarnation) WHERE closed_at IS NULL;

-- How far the state stream of each attempt has been applied.
CREATE TABLE streams (
  run_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  PRIMARY KEY (run_id, epoch),
  FOREIGN KEY (run_id, epoch) REFERENCES attempts
) WITHOUT ROWID;
