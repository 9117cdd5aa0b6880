"""Floor 5: doors the clock comes in by. One job, one file, verb_object."""
