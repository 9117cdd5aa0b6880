"""Floor 0: nouns, the ports that store them, and their arithmetic. No clock, no dice, no I/O."""
