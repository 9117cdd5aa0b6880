"""Valkey or Redis as the server of rate limits shared by several gateways."""
