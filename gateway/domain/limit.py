"""Limits: what a subject may spend in a window, and its requests and tokens per minute. Pure: no clock, no I/O.

A subject is one of the things that a limit counts apart: a key, an account, an end user, a session, a tag's value, or
the models of an account. Subjects are texts that begin with the id of an account, or are the id of a key: the user
``u-17`` of account 3 is not the user ``u-17`` of account 4.
"""

from collections.abc import Collection, Sequence
from typing import Literal
from zoneinfo import ZoneInfo

import attrs
import orjson

from gateway.domain.limit_window import Window, parse_window
from gateway.domain.price import usd
from gateway.frozen import frozen

SubjectKind = Literal["key", "account", "user", "session", "tag", "model"]
"""Tags and models have a detail: ``tag:team``, ``model:gpt-5*``."""


@frozen
class Limit:
    """A limit for each of its subjects.

    Attributes:
        name: identifies the limit.
        kind: what a subject is; ``detail`` is the name of the tag, or the glob of models.
        keys: names of the keys whose requests count; empty: all keys.
        cap_nanos: what a subject may spend in a window, in nano-USD; None: no limit of money.
        window: the window that the cap is for.
        timezone: the time zone of the window (IANA name); empty: that of each account.
        rpm, tpm: requests and tokens per minute; None: no limit.
        status: the HTTP status of a refusal; None: 429, and 403 if the window never ends.
        until_s: when the limit ends, in Unix seconds; None: never.
        raises: the limit whose cap and rates are raised by those of this one; None: this is a limit of its own.
        max_subjects: how many subjects are kept in memory; the least recently used are dropped.
        soft_share: the share of the cap from which on answers have a header and an alert is sent; None: never.
    """

    name: str
    kind: SubjectKind = "key"
    detail: str = ""
    keys: tuple[str, ...] = ()
    cap_nanos: int | None = None
    window: Window = attrs.field(factory=lambda: parse_window("month"))
    rpm: int | None = None
    tpm: int | None = None
    status: Literal[403, 429] | None = None
    until_s: int | None = None
    raises: str | None = None
    max_subjects: int = 100_000
    timezone: str = ""
    soft_share: float | None = None

    @property
    def of(self) -> str:
        """What a subject is, as it is written: ``user``, ``tag:team``."""
        return f"{self.kind}:{self.detail}" if self.detail else self.kind

    @property
    def counter(self) -> str:
        """The name of what is counted. A limit with another subject, window or time zone counts anew.

        Accounts do not count anew if their own time zones change: the name says UTC for all of them.
        """
        return f"{self.name}|{self.of}|{self.window.text}|{self.timezone or 'UTC'}"

    def build_zone(self) -> ZoneInfo:
        """Return the time zone; UTC if each account has its own."""
        return ZoneInfo(self.timezone or "UTC")

    @property
    def follows_account(self) -> bool:
        """Whether the windows begin in the time zones of accounts."""
        return not self.timezone and self.window.has_zone

    def has_ended(self, now_s: float) -> bool:
        return self.until_s is not None and now_s >= self.until_s

    def counts_money(self, now_s: float) -> bool:
        """Return whether what its subjects spend counts: it limits money, raises no other limit, and has not ended."""
        return self.cap_nanos is not None and self.raises is None and not self.has_ended(now_s)

    def adds_keys(self, former_keys: Collection[str]) -> bool:
        """Return whether requests of more keys count than with ``former_keys``."""
        return bool(former_keys) and (not self.keys or not set(self.keys) <= set(former_keys))

    def counts_key(self, key_name: str) -> bool:
        return not self.keys or key_name in self.keys

    def format_cap(self, cap_nanos: int) -> str:
        """Describe a cap for people: ``$1 per day``."""
        return f"${usd(cap_nanos)} {self.window.about}"

    def format_subject(self, subject: str) -> str:
        """Describe a subject for its caller, who knows its account: ``the user 'u-17'``."""
        if self.kind == "key":
            return "this API key"
        if self.kind == "account":
            return "the account"
        if self.kind == "model":
            return f"the account for models {self.detail}"
        value = subject.partition(":")[2]
        return f"{self.detail}={value}" if self.kind == "tag" else f"the {self.kind} {value!r}"

    def name_subject(self, subject: str) -> str:
        """Name a subject within its account, for operators: ``user 'u-17'``; empty if it is the account, or a key."""
        if self.kind in {"key", "account"}:
            return ""
        if self.kind == "model":
            return f"models {self.detail}"
        value = subject.partition(":")[2]
        return f"tag {self.detail}={value}" if self.kind == "tag" else f"{self.kind} {value!r}"


LimitCharge = tuple[str, str, int]
"""What a cost counts for: a counter, a subject of it, and the start of its window or slice in Unix seconds."""


def build_charges(charges: Sequence[LimitCharge]) -> str:
    """Return charges as a request's record has them; empty if there are none."""
    return orjson.dumps(charges).decode() if charges else ""


def parse_charges(text: str) -> list[LimitCharge]:
    """Parse the result of ``build_charges``."""
    return [(counter, subject, start_s) for counter, subject, start_s in orjson.loads(text)] if text else []


def move_charges(text: str, now_s: float) -> str:
    """Return the text of ``build_charges`` with its charges moved to the windows of ``now_s``."""
    return build_charges(
        [(counter, subject, find_window_start(counter, now_s)) for counter, subject, _ in parse_charges(text)]
    )


def rename_charge(charge: LimitCharge, names: Collection[str], new_name: str) -> LimitCharge:
    """Return the charge under ``new_name`` if it counts for one of the end users ``names``, and otherwise as it is."""
    counter, subject, start_s = charge
    account, _, user = subject.partition(":")
    is_user = counter.rsplit("|", 3)[1:2] == ["user"] and user in names
    return (counter, f"{account}:{new_name}", start_s) if is_user else charge


def rename_charges(text: str, names: Collection[str], new_name: str) -> str:
    """Return the text of ``build_charges`` with the end users ``names`` renamed to ``new_name``."""
    return build_charges([rename_charge(charge, names, new_name) for charge in parse_charges(text)])


def find_window_start(counter: str, now_s: float) -> int:
    """Return the start of the window of a ``Limit.counter`` that ``now_s`` is in; of the slice for a rolling window."""
    window, timezone = counter.rsplit("|", 2)[1:]
    return parse_window(window).find(now_s, ZoneInfo(timezone))[0]


def find_tag_value(tags: str, start: str) -> str | None:
    """Return the value of a tag in a record's ``tags``; ``start`` is the tag's name and ``=``. None without the tag."""
    if tags:
        for tag in tags.split(","):
            if tag.startswith(start):
                return tag[len(start) :]
    return None
