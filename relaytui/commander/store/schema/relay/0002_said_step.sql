-- The step its state reports named last; NULL until the first did. `last_step` is the furthest one.
ALTER TABLE attempts ADD COLUMN said_step INTEGER;
UPDATE attempts SET said_step = last_step WHERE last_step > 0 OR started_from IS NOT NULL;
