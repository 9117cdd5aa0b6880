"""``[[alert]]``: where alerts are sent."""

import re
from urllib.parse import urlsplit

import attrs

from gateway.domain.alert import KINDS, AlertKind
from gateway.domain.webhook import SECRET_PREFIX
from gateway.frozen import frozen
from gateway.parsing import about, must


def is_url(value: str) -> bool:
    """Return whether ``value`` has the form of a URL: a scheme, ``://`` and no blanks."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return bool(parts.scheme) and "://" in value and value.isprintable() and " " not in value


_KINDS = tuple(kind for kind in KINDS if kind != "test")
NAME = must("1 to 64 letters, digits, '.', '_' or '-'", lambda value: re.fullmatch(r"[\w.-]{1,64}", value) is not None)
_URL = must("a URL such as https://… or slack://…", is_url)
_WANTED_KINDS = must(f"some of {', '.join(_KINDS)}", lambda value: all(kind in _KINDS for kind in value))
SECRET_FORM = f"at least 24 characters, or {SECRET_PREFIX} and base64"
_MIN_SECRET_CHARS = 24
WEB_SCHEMES = frozenset({"http", "https"})


def is_secret(value: str) -> bool:
    """Return whether ``value`` is long enough to sign webhooks."""
    return len(value.removeprefix(SECRET_PREFIX)) >= _MIN_SECRET_CHARS


_SECRET = must(SECRET_FORM, lambda value: not value or is_secret(value))


@frozen
class AlertSpec:
    """``[[alert]]``: a receiver of alerts.

    ``url``: ``https://`` and ``http://`` are signed webhooks; every other scheme is one of Apprise's. ``kinds``: the
    kinds of alerts to send; empty: all. ``secret``: signs the webhook; required for webhooks.
    """

    name: str = attrs.field(metadata=about("name shown in logs and by `gateway alerts`", NAME))
    url: str = attrs.field(
        metadata=about(
            "https://… for a signed webhook; slack://, tgram://, discord://, mailtos:// and Apprise's other URLs "
            "need pip install '.[alerts]'",
            _URL,
        ),
        repr=False,
    )
    kinds: tuple[str, ...] = attrs.field(
        default=(), metadata=about("kinds of alerts to send; default: all", _WANTED_KINDS)
    )
    secret: str = attrs.field(
        default="", metadata=about("secret for signing webhooks (see Standard Webhooks)", _SECRET), repr=False
    )

    @property
    def is_webhook(self) -> bool:
        return urlsplit(self.url).scheme.lower() in WEB_SCHEMES

    def list_kinds(self) -> tuple[AlertKind, ...]:
        return tuple(kind for kind in KINDS if not self.kinds or kind in self.kinds or kind == "test")
