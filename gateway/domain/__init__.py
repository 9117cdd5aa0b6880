"""Data types and their arithmetic. No clock, randomness or I/O."""
