"""Authentication and authorisation: API keys, accounts, members and their sessions."""
