"""All outgoing connections: to providers, file servers and webhook receivers."""
