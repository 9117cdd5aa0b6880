"""Configuration: its schema, its sources, and changing it while the gateway runs."""
