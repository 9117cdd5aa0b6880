"""The request log: one row per request, and the queries for rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload
from urllib.parse import quote, unquote

import attrs

from gateway.answer_fields import Count
from gateway.domain.cache_rules import CacheResult
from gateway.domain.price import ONE_PPM
from gateway.domain.usage import UsageSource
from gateway.frozen import frozen, quick_frozen

Outcome = Literal["completed", "refused", "blocked", "failed", "cancelled", "client_closed", "interrupted"]
"""How a request ended, in this order: answered in full; refused by a check of the gateway or the provider; blocked by a
content filter; failed at the provider or because of a bug; cancelled by a user; the client disconnected; the gateway
stopped."""

NON_FAILURES: tuple[Outcome, ...] = ("completed", "client_closed", "cancelled")
"""Outcomes that are no failures: answered, or no longer wanted. Every other outcome is a failure."""

INTERRUPTED_STATUS = 500
"""The status of a row whose request was interrupted by a stop or a crash. The status the client got is unknown."""
ID_PREFIX = "req_"
"""The prefix of a request id; 24 hexadecimal digits follow."""
MAX_ERROR_CHARS = 300
MAX_ADAPTED_CHARS = 300
SUCCESS_CODE = "ok"
"""The code of a successful attempt. Every other code is an error's public code."""

NO_CHANNEL = "-"
"""The channel of a step of a route that was passed over. Such a step is listed like an attempt."""

_ATTEMPT_PATTERN = re.compile(r"([^=:]+)=([^=:]+):([0-9]{1,15})(?::([0-9]{1,3}):([a-z_]*):([0-9]{1,3}):([^=:,]*))?")
_NON_CODE_PATTERN = re.compile(r"[^A-Za-z0-9._-]")
_CODE_CHARS = 64
_TRUNCATION_MARK = ",..."
_ID = re.compile(r"req_[0-9a-f]{24}", re.ASCII)
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TO_LOWER = str.maketrans(_CAPITALS, _CAPITALS.lower())
_UNWANTED_STATUSES = frozenset({409, 499})
"""Statuses that requests without a failure have, too: of a cancelled request, and of one whose client disconnected."""


def _clean_code(code: str) -> str:
    return _NON_CODE_PATTERN.sub("_", code[:_CODE_CHARS]) or "_"


@frozen
class FailedAttempt:
    """An attempt: its channel, its code (``ok`` or an error's code, safe for headers) and its duration.

    Attributes:
        status: the HTTP status of its error for the client; 0 if it succeeded, or in rows of version 0.9.
        cause: why a step of a route was left (``domain/route.py``); empty without a route.
        step: the step of the route, from 1; 0 without a route.
        model: the provider's name of the model; empty in rows of version 0.9.
    """

    channel: str
    code: str = attrs.field(converter=_clean_code)
    ms: int
    status: int = 0
    cause: str = ""
    step: int = 0
    model: str = ""


def format_attempts(attempts: Iterable[FailedAttempt]) -> str:
    """Format attempts for a row: ``up0=upstream_timeout:120000:504:timeout:1:gpt-5,up1=ok:85:0::2:claude``."""
    return ",".join(
        f"{attempt.channel}={attempt.code}:{attempt.ms}:{attempt.status}:{attempt.cause}:{attempt.step}:"
        f"{quote(attempt.model, safe='/', errors='replace')}"
        for attempt in attempts
    )


def parse_attempts(text: str) -> tuple[FailedAttempt, ...]:
    """Parse the result of ``format_attempts``, also of version 0.9. Invalid parts are left out."""
    matches = map(_ATTEMPT_PATTERN.fullmatch, text.split(","))
    return tuple(
        FailedAttempt(
            match[1],
            match[2],
            int(match[3]),
            int(match[4] or 0),
            match[5] or "",
            int(match[6] or 0),
            unquote(match[7] or ""),
        )
        for match in matches
        if match
    )


def build_error(message: str) -> str:
    """Return an error message for a row: one line of printable characters, at most ``MAX_ERROR_CHARS``."""
    line = message[:MAX_ERROR_CHARS]
    return line if line.isprintable() else "".join(char if char.isprintable() else " " for char in line)


def format_adapted_fields(names: Iterable[str]) -> str:
    """List the adapted fields for a row and a header: ``thinking,tools.web_search``.

    A list longer than ``MAX_ADAPTED_CHARS`` characters is cut and ends with ``...``. Unusual characters become ``_``,
    because names may come from a client.
    """
    text = ",".join(dict.fromkeys(map(_clean_code, names)))
    if len(text) <= MAX_ADAPTED_CHARS:
        return text
    return f"{text[: MAX_ADAPTED_CHARS - len(_TRUNCATION_MARK)].rpartition(',')[0]}{_TRUNCATION_MARK}"


def is_request_id(text: str) -> bool:
    """Return whether ``text`` has the form of a request id."""
    return _ID.fullmatch(text) is not None


def lower_ascii(text: str) -> str:
    """Convert the ASCII letters of ``text`` to lower case. Searches ignore the case of these letters only."""
    return text.translate(_TO_LOWER)


@quick_frozen
class RequestRecord:
    """One request, recorded once when it has ended. Times are Unix milliseconds, durations are milliseconds.

    A new field needs a default, because a journal written by the previous version lacks it.

    Attributes:
        first_byte_ms: from the request's arrival to the first byte sent to the client; None if none was sent.
        settled_ms: the time of settlement, which decides the day on which the cost was spent.
        attempts: the number of attempts; 0 if the request was never sent to a provider.
        overrun_nanos: the part of the cost above a limit.
        tried: the attempts (``parse_attempts``) if there were several, or a route; otherwise empty, because the row has
            the result.
        error: the error message sent to the client, at most ``MAX_ERROR_CHARS`` characters; empty without an error.
        unpriced: whether the model had no price at the channel that served it, so that the request was free.
        adapted: the fields written as text, left out or changed to suit the provider (``format_adapted_fields``); empty
            if there are none.
        queued_ms: for how long the request waited in queues of channels.
        served_model: the provider's name of the model that was charged, if it differs from ``model``; else empty.
        route: the route that the request named, whose steps are in ``tried``; empty if it named a model.
        shadow: the request is a copy of one of ``route``, made by the gateway for a shadow model.
        end_user, session, tags: for whom the request was made (``domain/attribution.py``); empty if unknown.
        units: charged units that have no field of their own (``charged_units.py``); empty if there are none.
        saved_nanos: what caches have saved: the provider's prompt cache, that is, the cost of the same usage with
            nothing read from it or written to it, minus ``cost_nanos`` (negative if writing to it cost more); or the
            gateway's cache of answers, that is, the price of the answer minus ``cost_nanos``.
        limit_charges: what the cost counts for besides key and account (``domain/limit.py``); empty for nothing.
        replay_of: the id of the kept request that was sent again; empty for every other request.
        cache: where the answer came from; empty if it could not come from the cache of answers.
        agreement_ppm: of a copy, the share of equal words (``transcript/agreement.py``); None if not compared.
        agreed_on: what is equal in both: some of ``text,tools,finish``.
    """

    id: str
    started_ms: int
    settled_ms: int
    operation: str
    account_id: int
    account: str
    key_id: int
    key_name: str
    model: str
    channel: str | None
    status: int
    outcome: Outcome
    error_code: str | None
    stream: bool
    attempts: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    usage_source: UsageSource
    cost_nanos: Count
    reserved_nanos: Count
    overrun_nanos: Count
    first_byte_ms: int | None
    total_ms: int
    client_request_id: str | None = None
    tried: str = ""
    images: Count = 0
    duration_ms: Count = 0
    characters: Count = 0
    error: str = ""
    unpriced: bool = False
    batch_id: str | None = None
    batch_multiplier_ppm: Count = ONE_PPM
    adapted: str = ""
    queued_ms: Count = 0
    served_model: str = ""
    units: str = ""
    route: str = ""
    shadow: bool = False
    saved_nanos: int = 0
    end_user: str = ""
    session: str = ""
    tags: str = ""
    limit_charges: str = ""
    replay_of: str = ""
    cache: CacheResult = ""
    agreement_ppm: int | None = None
    agreed_on: str = ""


def parse_record(fields: Mapping[str, Any]) -> RequestRecord:
    """Build a record from the ``fields`` of a stored one, also of version 0.7. Raises ``TypeError`` if one is missing.

    Up to that version, ``outcome`` was called ``ending``.
    """
    known_fields = {name: fields[name] for name in _FIELDS if name in fields}
    if "ending" in fields:
        known_fields["outcome"] = "failed" if fields["ending"] == "upstream_failed" else fields["ending"]
    return RequestRecord(**known_fields)


_FIELDS = tuple(field.name for field in attrs.fields(RequestRecord))


class RequestStart(NamedTuple):
    """The fields of ``RequestRecord`` that are known before the first attempt: all that is left after a crash."""

    id: str
    started_ms: int
    operation: str
    account_id: int
    account: str
    key_id: int
    key_name: str
    model: str
    channel: str | None
    stream: bool
    reserved_nanos: int
    client_request_id: str | None = None
    batch_id: str | None = None
    batch_multiplier_ppm: int = ONE_PPM
    route: str = ""
    shadow: bool = False
    end_user: str = ""
    session: str = ""
    tags: str = ""
    replay_of: str = ""

    def interrupt(self) -> RequestRecord:
        """Return the row that the request gets when a stop or a crash has interrupted its first attempt."""
        return RequestRecord(
            **self._asdict(),
            settled_ms=self.started_ms,
            status=INTERRUPTED_STATUS,
            outcome="interrupted",
            error_code=None,
            attempts=1,
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            usage_source="none",
            cost_nanos=0,
            overrun_nanos=0,
            first_byte_ms=None,
            total_ms=0,
        )


Verdict = Literal["ok", "error"]


def has_failed(row: RequestRecord) -> bool:
    """Return whether a request failed or was refused. One that was cancelled, or whose client disconnected, did not."""
    return row.outcome not in NON_FAILURES


@frozen
class RequestFilter:
    """A filter for rows. None does not restrict.

    Attributes:
        since_ms, until_ms: when the rows were settled, in Unix milliseconds; ``until_ms`` is exclusive.
        verdict: "error" for rows that failed or were refused, "ok" for the others.
        text: a request's id, or a part of its error's code or text; case is ignored.
        after: a cursor, ``next`` or ``newest`` of a page. Only rows after it are returned, the oldest first.
        before: the sequence of a row. Only earlier rows are returned.
        tag: one of the row's tags, with its value: ``team=web``.
        served_model: the name of the model that answered, as its provider has it.
        error_code: exactly this code; empty: rows without a code.
    """

    key_id: int | None = None
    model: str | None = None
    status: int | None = None
    channel: str | None = None
    after: str | None = None
    account_id: int | None = None
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    before: int | None = None
    unpriced: bool | None = None
    route: str | None = None
    shadow: bool | None = None
    end_user: str | None = None
    session: str | None = None
    tag: str | None = None
    served_model: str | None = None
    error_code: str | None = None

    @property
    def request_id(self) -> str | None:
        """The id of the only request that can match, if ``text`` is a request id; else None."""
        return self.text if self.text is not None and is_request_id(self.text) else None

    @property
    def asks_for_failures(self) -> bool:
        """Whether only rows that failed or were refused can match. They have their own index."""
        return (
            self.verdict == "error"
            or (self.text is not None and self.request_id is None)
            or (self.outcome is not None and self.outcome not in NON_FAILURES)
            or (self.status is not None and self.status >= 400 and self.status not in _UNWANTED_STATUSES)  # noqa: PLR2004 - HTTP
        )

    def matches(self, stored_request: "StoredRequest") -> bool:
        """Return whether a row matches the filter, apart from the lower bound ``after``."""
        row = stored_request.row
        return (
            self.key_id in {None, row.key_id}
            and self.model in {None, row.model}
            and self.status in {None, row.status}
            and self.channel in {None, row.channel}
            and self.account_id in {None, row.account_id}
            and self.outcome in {None, row.outcome}
            and self.verdict in {None, "error" if has_failed(row) else "ok"}
            and (self.since_ms is None or row.settled_ms >= self.since_ms)
            and (self.until_ms is None or row.settled_ms < self.until_ms)
            and (self.before is None or stored_request.sequence < self.before)
            and self.unpriced in {None, row.unpriced}
            and self.shadow in {None, row.shadow}
            and self.route in {None, row.route}
            and self.end_user in {None, row.end_user}
            and self.session in {None, row.session}
            and (self.tag is None or self.tag in row.tags.split(","))
            and self.served_model in {None, row.served_model or row.model}
            and self.error_code in {None, row.error_code or ""}
            and (self.text is None or self._matches_text(row))
        )

    def _matches_text(self, row: RequestRecord) -> bool:
        if self.request_id is not None:
            return row.id == self.request_id
        search_text = lower_ascii(self.text or "")
        return has_failed(row) and (
            search_text in lower_ascii(row.error) or search_text in lower_ascii(row.error_code or "")
        )


@frozen
class StoredRequest:
    """A row with its sequence number in the order of writing."""

    sequence: int
    row: RequestRecord


@frozen
class RequestPage(Sequence[StoredRequest]):
    """Matching rows, oldest first. A single search covers a limited number of rows, so a page can be incomplete.

    Attributes:
        next: the cursor for the next page: its ``before``, or its ``after`` (always present) if ``after`` was used.
        searched_ms: if ``more``, the time up to which rows were searched, in Unix milliseconds.
        newest: the ``after`` to use for rows that are stored later than this page.
    """

    rows: tuple[StoredRequest, ...] = ()
    more: bool = False
    next: str | None = None
    searched_ms: int | None = None
    newest: str = "0"

    @overload
    def __getitem__(self, index: int) -> StoredRequest: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StoredRequest, ...]: ...
    def __getitem__(self, index: int | slice) -> StoredRequest | tuple[StoredRequest, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[StoredRequest]:
        return iter(self.rows)
