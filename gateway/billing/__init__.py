"""Billing: balances, quotas, prices, rate limits, settlement and the ledger."""
