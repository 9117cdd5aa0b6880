"""Forwarding a request: attempts, failover, streaming."""
