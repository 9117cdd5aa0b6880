"""Batches: their objects, and the lines of their input and result files."""
