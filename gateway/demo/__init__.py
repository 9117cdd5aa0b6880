"""The built-in demo upstream: a real provider on a loopback port, without an account or a key."""
