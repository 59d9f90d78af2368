"""The only SQL: two SQLite databases, each with one writing connection in a thread of its own."""
