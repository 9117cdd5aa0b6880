"""The time zones that an account has had."""

ZonePeriods = tuple[tuple[int, str], ...]
"""When each time zone of an account began (Unix seconds), and its IANA name, the earliest first; empty: always UTC."""
