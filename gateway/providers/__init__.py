"""The vendors, one per file: what to send where, as pure functions. Nothing here opens a socket."""
