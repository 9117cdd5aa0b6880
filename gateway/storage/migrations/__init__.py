"""Alembic's folder: ``versions/`` holds one file a change of the schema."""
