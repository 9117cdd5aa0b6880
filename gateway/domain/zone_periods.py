"""The time zones of an account over time."""

ZonePeriods = tuple[tuple[int, str], ...]
"""Since when an account has which time zone (Unix seconds, IANA name), the earliest first; empty: always UTC."""
