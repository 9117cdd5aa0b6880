"""The only way out: connections to providers, files and webhooks."""
