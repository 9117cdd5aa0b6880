"""Authentication and authorization: API keys, accounts, members and their sessions."""
