"""Who may do what: API keys, accounts, members and their sessions."""
