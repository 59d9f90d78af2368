"""The way to the commander: who it is, one session after another, and how much may be under way."""
