"""Formats of single vendors."""
