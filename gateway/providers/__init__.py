"""Floor 2: one vendor, one file. What to send where, as pure functions; nothing here opens a socket."""
