"""Alerts: conditions that are looked for beside the requests, and messages about them to webhooks, chats and mail."""
