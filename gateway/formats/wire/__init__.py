"""The parts of bodies in every format: events, JSON, forms, files, and their typed fields."""
