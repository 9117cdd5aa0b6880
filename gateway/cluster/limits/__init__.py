"""Rate limits that several gateways share: a server counts them; while it is away each gateway counts its part."""
