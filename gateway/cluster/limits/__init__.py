"""Rate limits shared by several gateways: a server counts them; while it is away each gateway counts its share."""
