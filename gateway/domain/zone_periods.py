"""The time zones that an account has had."""

ZonePeriods = tuple[tuple[int, str], ...]
"""Since when an account has which time zone (Unix seconds, IANA name), the earliest first; empty: always UTC."""
