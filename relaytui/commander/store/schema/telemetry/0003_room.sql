-- What each attempt's frames weigh, and up to which report they were drawn together to make room.
ALTER TABLE streams ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN drawn_seq INTEGER NOT NULL DEFAULT 0;
UPDATE streams SET bytes = (SELECT coalesce(sum(length(data) + 64), 0) FROM frames WHERE stream = streams.id);
