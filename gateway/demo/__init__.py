"""The built-in demo upstream: a real provider on a loopback port that needs no key of yours."""
