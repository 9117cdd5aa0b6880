"""Copies a whole store between SQLite and PostgreSQL, row by row, and compares source and target.

Also finds the requests that one of two databases lacks.
"""
