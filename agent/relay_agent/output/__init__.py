"""What the trainer prints: as lines, as reports, as progress. What a line says is read in `reading/`."""
