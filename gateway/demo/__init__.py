"""The built-in demo upstream: a provider on a loopback port, usable without an account."""
