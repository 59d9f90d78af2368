-- How its trainer ended, more closely than the outcome says, by its agent's word; empty where nobody said.
ALTER TABLE attempts ADD COLUMN ending TEXT NOT NULL DEFAULT '';
