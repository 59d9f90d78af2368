"""The dashboard's screens and dialogs."""
