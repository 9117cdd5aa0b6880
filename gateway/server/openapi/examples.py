"""Example request bodies for the documentation page."""

from collections.abc import Mapping
from typing import Any

import attrs

_SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "AccountSpec": {"name": "acme", "quota_usd": 100, "quota_period": "monthly"},
    "KeySpec": {"name": "laptop", "account": "acme", "quota_usd": 5, "quota_period": "daily", "rpm": 60},
    "CreditSpec": {"amount_usd": 25, "note": "paid"},
    "ChannelSpec": {"name": "openai", "provider": "openai", "api_key": "sk-your-provider-key", "sync": True},
    "ChannelKeySpec": {"key": "sk-your-provider-key", "name": "team account"},
    "InviteSpec": {"account": "acme", "role": "member"},
    "RotateSpec": {"overlap_h": 24},
    "SettingChanges": {"settings": {"routing.max_attempts": 2, "requests.keep_days": None}},
    "SettingSpec": {"value": 2},
    "AssertionSpec": dict.fromkeys(("id", "client_data", "authenticator_data", "signature"), "AAAA"),
    "AttestationSpec": {**dict.fromkeys(("id", "client_data", "attestation_object"), "AAAA"), "name": "my laptop"},
}
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "AccountSpec": {"quota_usd": 250},
    "KeySpec": {"rpm": 120, "expires_at": "2027-01-31T12:00:00Z"},
    "ChannelKeySpec": {"name": "team account", "status": "disabled"},
    "ChannelSpec": {"priority": 10},
    "GroupSpec": {"price_multiplier": 1.2},
    "MemberSpec": {"role": "viewer"},
    "RouteSpec": {"step": [{"models": ["gpt-5-mini"]}, {"models": ["claude-haiku-4.5"], "on": ["unavailable"]}]},
    "VersionedRouteSpec": {"step": [{"models": ["gpt-5-mini", {"model": "gpt-5-nano", "weight": 9}]}]},
    "PriceSpec": {"input_usd_per_million": 3, "output_usd_per_million": 15},
}
_SAMPLES_BY_NAME: Mapping[str, Any] = {
    "account": "acme",
    "code": "123456",
    "current": "the passphrase of today",
    "leases": "release",
    "name": "ada",
    "names": ["first", "second"],
    "passphrase": "five words that nobody guesses",
    "token": "what-the-link-carries",
    "weights": {"first": 3, "second": 1},
}
"""Values of fields in classes without an example of their own."""


def build_example(kind: type, *, partly: bool = False) -> dict[str, Any]:
    """Return an example body of ``kind``; with ``partly``, one that changes an object."""
    sample = (_CHANGES if partly else _SAMPLES).get(kind.__name__)
    if sample is not None:
        return dict(sample)
    fields = attrs.fields(kind)
    required_names = [field.name for field in fields if field.default is attrs.NOTHING and not partly]
    names = required_names or [field.name for field in fields if field.name in _SAMPLES_BY_NAME][:1]
    return {name: _SAMPLES_BY_NAME.get(name, "…") for name in names}
