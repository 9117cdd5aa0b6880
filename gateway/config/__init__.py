"""Configuration: schema, sources, and changes while the gateway runs."""
