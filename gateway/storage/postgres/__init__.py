"""The PostgreSQL store, imported only if ``store.url`` names such a database."""
