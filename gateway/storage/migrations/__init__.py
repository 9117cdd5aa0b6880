"""Alembic's folder: ``versions/`` has one file for each change of the schema."""
