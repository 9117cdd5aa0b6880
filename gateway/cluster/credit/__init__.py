"""Credit leases: what a node may spend without asking, who grants it, and what becomes of it when a node dies."""
