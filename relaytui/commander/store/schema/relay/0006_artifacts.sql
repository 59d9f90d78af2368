-- What the artifact store holds. A row is there once its content is: whole, verified and on the disk.
CREATE TABLE artifacts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL REFERENCES runs,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  stored_at REAL NOT NULL,
  actor TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  step INTEGER,
  manifest_sha256 TEXT,
  final INTEGER NOT NULL,
  verified_at REAL,
  damaged TEXT NOT NULL,
  upload TEXT
);
CREATE INDEX artifacts_by_run ON artifacts (run_id, kind, name);
CREATE INDEX artifacts_by_content ON artifacts (sha256, size);
CREATE INDEX artifacts_by_upload ON artifacts (upload);

-- Uploads on their way. How far each is, its file alone says. `pod`: by the holder of lease `epoch`, else an operator's.
CREATE TABLE uploads (
  upload TEXT PRIMARY KEY,
  run_id TEXT NOT NULL REFERENCES runs,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  begun_at REAL NOT NULL,
  actor TEXT NOT NULL,
  pod INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  step INTEGER,
  manifest_sha256 TEXT,
  final INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX uploads_by_content ON uploads (run_id, kind, name, sha256, pod);
