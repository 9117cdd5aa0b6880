"""What the gateway keeps in Valkey or Redis: the rate limits that several gateways share."""
