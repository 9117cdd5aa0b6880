"""The vendors, one per module: addresses, signing and request adaptation as pure functions, without network access."""
