"""Shared state of nodes besides money: model lists, failed sign-ins, short-lived values, secrets, declared accounts."""
