"""Floor 3: the only way out. Sockets towards providers, behind one push-shaped port."""
