-- The step that a trainer was at after it was handed a checkpoint of a later one: its resume did not take.
ALTER TABLE attempts ADD COLUMN began_step INTEGER;
