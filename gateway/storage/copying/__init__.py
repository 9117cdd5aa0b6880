"""Copies a whole store between SQLite and PostgreSQL, row by row, and compares source and target."""
