"""Alerts: conditions checked in the background, and messages about them to webhooks, chats and mail."""
