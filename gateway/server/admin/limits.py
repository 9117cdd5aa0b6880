"""Admin API: limits, which say what each key, account, end user, session, tag or model may spend in a window."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import attrs

from gateway.answer_fields import OMITTED, Count, Moment
from gateway.billing.limit_filler import CountingStart, list_counting_starts
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.limit_subjects import SubjectSpending, choose_subjects, list_highest
from gateway.billing.limits import SpendingLimits
from gateway.config.live_limits import LimitView
from gateway.domain.account_spec import build_time
from gateway.domain.limit import Limit
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.setting import Source
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import DeletedInForce, InForceField
from gateway.server.admin.handler import AdminRequest, ListPage, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, parse_account, read_change
from gateway.server.admin.listing import Listing, replace_objects
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number
from gateway.storage.limit_counters import LimitCounters

_DEFAULT_COUNT, _MAX_COUNT = 50, 1_000
_MAX_SHOWN = 10
"""Maximum number of subjects that a list of limits has for each limit."""
_MAX_REASON_CHARS = 256
_FILL_WAIT_S = 1.0


@frozen(kw_only=True)
class LimitSubject:
    """What a subject has spent and reserved in the present window.

    ``subject`` is the end user, session, tag's value or key; null for an account and for models of an account.
    ``limit_usd`` is what it may spend, raises included. ``resets_at`` is when something spent no longer counts; null:
    never.
    """

    account: str
    subject: str | None
    limit_usd: float
    spent_usd: float
    held_usd: float
    left_usd: float
    resets_at: Moment | None


@frozen(kw_only=True)
class LimitAnswer:
    """A limit. ``ended``: its ``until`` has passed. One with ``raises`` has the raised limit's subjects and window.

    ``timezone`` is null if the windows begin in the time zones of accounts.

    ``subjects`` are those that have spent most, if they were asked for and the limit is one of money. ``counts_since``:
    what was spent earlier does not count; it is absent for an earlier window, and for limits of before version 0.11.
    ``filling`` true: what was spent before ``counts_since`` is being counted.
    """

    name: str
    of: str | None
    keys: Sequence[str]
    usd: float | None
    window: str | None
    timezone: str | None
    rpm: Count | None
    tpm: Count | None
    soft: float | None
    status: Literal[403, 429] | None
    until: Moment | None
    raises: str | None
    max_subjects: Count
    source: Source
    ended: bool
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)
    subjects: Sequence[LimitSubject] | None = attrs.field(default=None, metadata=OMITTED)
    counts_since: Moment | None = attrs.field(default=None, metadata=OMITTED)
    filling: bool | None = attrs.field(default=None, metadata=OMITTED)


_LISTING = Listing[LimitView](
    find_id=lambda view: f"{view.source}:{view.spec.name}",
    find_texts=lambda view: (view.spec.name, view.spec.raises or view.spec.of, *view.spec.keys),
    sort_keys={
        "name": lambda view: view.spec.name,
        "of": lambda view: view.spec.raises or view.spec.of,
        "usd": lambda view: view.spec.usd,
        "source": lambda view: view.source,
    },
    searched_fields="its name, its subject and the names of its keys",
)


@admin_operation(
    query=(
        Query("subjects", f"With each limit so many of its subjects, 0 by default and at most {_MAX_SHOWN}.", s.COUNT),
        *_LISTING.query,
    )
)
async def list_limits(request: AdminRequest) -> ListPage[LimitAnswer]:
    """List all limits: those of the configuration file, and those that were added here."""
    count = parse_number(request.query, "subjects") or 0
    if count > _MAX_SHOWN:
        raise InvalidRequest(f"'subjects' must be at most {_MAX_SHOWN}", param="subjects")
    page = _LISTING.list_page(request, request.services.admin.limits.list_limits())
    starts = await _list_counting_starts(request, page)
    answers = [_build_answer(request, view, starts) for view in page]
    reader = await _open_reader(request) if count else None
    if reader is not None:
        answers = [
            attrs.evolve(answer, subjects=await reader.list_subjects(view.spec.limit(), count))
            if view.spec.usd
            else answer
            for answer, view in zip(answers, page, strict=True)
        ]
    return replace_objects(page, answers)


@admin_operation()
async def get_limit(request: AdminRequest) -> LimitAnswer:
    """Get a limit."""
    view = request.services.admin.limits.get_limit(request.match_info["name"])
    return _build_answer(request, view, await _list_counting_starts(request, [view]))


@admin_operation(
    takes=LimitSpec, partly=True, change=True, query=(Query("reason", "The reason, for the audit log.", s.TEXT),)
)
async def put_limit(request: AdminRequest) -> LimitAnswer:
    """Add a limit, or replace all of it; 409 if the configuration file declares it. It is in force at once.

    Running requests keep what they have reserved. A limit with ``raises`` and ``until`` raises another for a time. A
    new limit of money, or one with another subject, window, time zone or more keys, also counts what was spent earlier
    in its window. The answer waits a second for that; then it has ``filling``.
    """
    reason = request.query.get("reason", "")
    if len(reason) > _MAX_REASON_CHARS or not reason.isprintable():
        raise InvalidRequest(f"'reason' must be at most {_MAX_REASON_CHARS} printable characters", param="reason")
    fields = await read_change(request)
    name, limits = request.match_info["name"], request.services.admin.limits
    view = await limits.put_limit(name, fields, request.actor, reason=reason)
    billing = request.services.billing
    await billing.flusher.store_waiting()
    if billing.limits.spending is not None and billing.keeper is None:  # of nodes, the leader fills
        with suppress(TimeoutError):
            async with asyncio.timeout(_FILL_WAIT_S):
                await billing.limits.spending.filled.wait()
    return _build_answer(request, view, await _list_counting_starts(request, [view]))


@admin_operation(change=True)
async def delete_limit(request: AdminRequest) -> DeletedInForce:
    """Remove a limit that was added here; 409 if another limit raises it."""
    name = request.match_info["name"]
    await request.services.admin.limits.delete_limit(name, request.actor)
    return DeletedInForce(name)


@admin_operation(
    query=(
        ACCOUNT_QUERY,
        Query("find", "Only subjects whose names contain this text, in upper or lower case.", s.TEXT),
        Query("limit", f"How many, by default {_DEFAULT_COUNT}.", s.COUNT),
    )
)
async def list_subjects(request: AdminRequest) -> list[LimitSubject]:
    """List the subjects of a limit that have spent most in the present window, the highest first.

    A limit that raises another has the subjects of the other.
    """
    services, count = request.services, parse_number(request.query, "limit") or _DEFAULT_COUNT
    if count > _MAX_COUNT:
        raise InvalidRequest(f"'limit' must be at most {_MAX_COUNT}", param="limit")
    account_id = await parse_account(request)
    spec = services.admin.limits.get_limit(request.match_info["name"]).spec
    limit = services.admin.limits.get_limit(spec.raises or spec.name).spec.limit()
    reader = await _open_reader(request)
    return [] if reader is None else await reader.list_subjects(limit, count, account_id, request.query.get("find", ""))


@frozen
class _SubjectReader:
    """Reads what subjects have spent. ``accounts`` has the names of accounts, ``keys`` the fields of keys, by id."""

    spending: SpendingLimits
    counters: LimitCounters
    now_s: float
    accounts: Mapping[int, str]
    keys: Mapping[int, Mapping[str, str]]

    async def list_subjects(
        self, limit: Limit, count: int, account_id: int | None = None, text: str = ""
    ) -> list[LimitSubject]:
        """Return the ``count`` subjects that have spent most, of one account or all, whose names contain ``text``."""
        owner_ids = None if account_id is None and not text else self._list_owners(limit, account_id, text.casefold())
        choice = choose_subjects(limit, owner_ids, account_id, text)
        account_ids = None if account_id is None else [account_id]
        highest = await list_highest(
            self.spending, limit, self.counters, self.now_s, count, choice=choice, account_ids=account_ids
        )
        return [self._build_subject(limit, spending) for spending in highest]

    def _list_owners(self, limit: Limit, account_id: int | None, text: str) -> list[int]:
        """Return the ids of the keys or accounts whose names contain the lower-case ``text``.

        Keys, if the limit is one for keys. ``account_id`` restricts them to one account; None: to none.
        """
        if limit.kind == "key":
            account = None if account_id is None else self.accounts[account_id]
            return [
                key_id
                for key_id, key in self.keys.items()
                if account in {None, key["account"]} and text in key["name"].casefold()
            ]
        return [
            owner_id
            for owner_id, name in self.accounts.items()
            if account_id in {None, owner_id} and text in name.casefold()
        ]

    def _build_subject(self, limit: Limit, spending: SubjectSpending) -> LimitSubject:
        owner_text, _, value = spending.subject.partition(":")
        owner_id, deleted_name = int(owner_text), f"{owner_text} (deleted)"
        is_key, key = limit.kind == "key", self.keys.get(owner_id, {})
        return LimitSubject(
            account=key.get("account", "") if is_key else self.accounts.get(owner_id, deleted_name),
            subject=key.get("name", deleted_name) if is_key else value or None,
            limit_usd=spending.cap_nanos / NANOS_PER_USD,
            spent_usd=spending.spent_nanos / NANOS_PER_USD,
            held_usd=spending.held_nanos / NANOS_PER_USD,
            left_usd=spending.left_nanos / NANOS_PER_USD,
            resets_at=None if spending.resets_s is None else build_time(spending.resets_s),
        )


async def _open_reader(request: AdminRequest) -> _SubjectReader | None:
    """Return a reader of what subjects have spent; None if this process has not counted any limit in dollars."""
    services = request.services
    spending = services.billing.limits.spending
    if spending is None:
        return None
    await services.billing.flusher.store_waiting()
    accounts = services.auth.accounts
    has_keys = any(limit.kind == "key" for limit in spending.limits)
    return _SubjectReader(
        spending,
        LimitCounters(services.storage.database),
        services.clock(),
        await accounts.name_accounts(),
        {key["id"]: key for key in await accounts.list_keys(request.actor)} if has_keys else {},
    )


async def _list_counting_starts(request: AdminRequest, views: Iterable[LimitView]) -> Mapping[str, CountingStart]:
    """Return, by counter, since when each money limit in force among ``views`` counts."""
    services = request.services
    spending = services.billing.limits.spending
    if spending is None:
        return {}
    limits = [view.spec.limit() for view in views]
    return await list_counting_starts(services.storage.database, spending, services.clock(), limits)


def _build_answer(request: AdminRequest, view: LimitView, starts: Mapping[str, CountingStart]) -> LimitAnswer:
    spec = view.spec
    start = CountingStart() if spec.raises else starts.get(spec.limit().counter, CountingStart())
    is_raise, until_s = spec.raises is not None, None if spec.until is None else int(spec.until.timestamp())
    return LimitAnswer(
        name=spec.name,
        of=None if is_raise else spec.of,
        keys=spec.keys,
        usd=None if spec.usd is None else float(spec.usd),
        window=None if is_raise else spec.window,
        timezone=spec.timezone,
        rpm=spec.rpm,
        tpm=spec.tpm,
        soft=spec.soft,
        status=spec.status,
        until=None if until_s is None else build_time(until_s),
        raises=spec.raises,
        max_subjects=spec.max_subjects,
        source=view.source,
        ended=until_s is not None and request.services.clock() >= until_s,
        counts_since=None if start.since_s is None else build_time(start.since_s),
        filling=start.is_filling or None,
    )
