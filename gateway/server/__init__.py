"""Floor 5: the doors HTTP comes in by."""
