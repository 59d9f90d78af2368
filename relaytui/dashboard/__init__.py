"""The terminal dashboard. Only ever a client of a commander."""
