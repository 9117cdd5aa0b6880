"""PostgreSQL; imported when ``store.url`` names it."""
