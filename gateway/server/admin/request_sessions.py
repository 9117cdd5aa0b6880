"""Admin API: the sessions that clients name in their requests. A member sees those of its account."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import attrs
import orjson

from gateway.answer_fields import OMITTED, Count, Moment
from gateway.billing.request_budgets import RequestBudgets
from gateway.domain.account_spec import build_time
from gateway.domain.credit import build_limit_id
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_budget import SESSION_BUDGET, SessionState
from gateway.domain.session_usage import UNUSED, SessionCursor, SessionFilter, SessionKey, SessionUsage
from gateway.errors import InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.server.admin.activity_feed import RunningRequest
from gateway.server.admin.answer import InForceField, read_answer
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, LIMIT_QUERY, parse_account, parse_limit
from gateway.server.openapi import schema as s
from gateway.server.query import is_number, parse_moment, parse_number
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.session_log import SessionLogRepository

_MAX_ID_CHARS = 160


@frozen(kw_only=True)
class RequestSession:
    """A session: requests that clients name as one conversation, or one run of an agent.

    `key` and `end_user` are those of its last request. `spent_usd` and the counts are of its stored requests; if
    `partial` is true, of the latest 10,000 only. `budget_left_usd` is its budget minus what is spent and what running
    requests have reserved; in a cluster, minus what is set aside for its nodes. `running` are the active requests at
    all nodes that answer. `first_prompt_tokens` and `last_prompt_tokens` are null if no provider has read a prompt.
    """

    id: str
    session: str
    account: str
    key: str | None
    end_user: str
    requests: Count
    running: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    cached_share: float
    spent_usd: float
    budget_usd: float | None
    budget_left_usd: float | None
    first_prompt_tokens: Count | None
    last_prompt_tokens: Count | None
    partial: bool
    started_at: Moment | None
    settled_at: Moment | None
    ended_at: Moment | None


@frozen(kw_only=True)
class RequestSessionPage:
    """A page of sessions. ``next``, sent as ``before``, leads to the next page; null after the last one."""

    object: Literal["list"] = "list"
    data: Sequence[RequestSession]
    next: str | None


@frozen(kw_only=True)
class EndedRequestSession:
    """A session that was ended, and how many requests were cancelled."""

    id: str
    ended_at: Moment
    cancelled: Count
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@admin_operation(
    query=(
        LIMIT_QUERY,
        Query("before", "Only sessions used before this: `next` of one page leads to the next page."),
        ACCOUNT_QUERY,
        Query("key", "Only sessions with a request of this API key (an id).", s.COUNT),
        Query("end_user", "Only sessions with a request made for this end user."),
        Query("session", "Only sessions of this name, also those without stored requests; then not in pages."),
        Query("since", "Only sessions with a request settled then or later: a time, or a day (UTC)."),
    )
)
async def list_request_sessions(request: AdminRequest) -> RequestSessionPage:
    """List the sessions that clients have named in requests, those used last first.

    One page searches a limited number of requests, and may have fewer sessions than `limit`: go on while there is
    a `next`.
    """
    await request.services.billing.flusher.store_waiting()
    account_id, query = await parse_account(request), request.query
    running = await _count_running(request)
    if "session" in query:
        keys = await _find_named_sessions(request, query["session"], account_id, running)
        return RequestSessionPage(data=await _build_sessions(request, keys, running), next=None)
    session_filter = SessionFilter(
        account_id,
        parse_number(query, "key"),
        query.get("end_user"),
        parse_moment(query, "since"),
        _parse_cursor(query.get("before")),
    )
    page = await SessionLogRepository(request.services.storage.database).list_sessions(
        session_filter, parse_limit(request)
    )
    return RequestSessionPage(
        data=await _build_sessions(request, page.sessions, running), next=None if page.next is None else str(page.next)
    )


def _parse_cursor(text: str | None) -> SessionCursor | None:
    if text is None:
        return None
    sequence, dash, searched = text.partition("-")
    if not is_number(sequence) or (dash and not is_number(searched)):
        raise InvalidRequest("'before' must be the 'next' of an earlier answer", param="before")
    return SessionCursor(int(sequence), int(searched or 0))


@admin_operation()
async def get_request_session(request: AdminRequest) -> RequestSession:
    """Get a session, by the `id` in the list: the id of its account, a colon and its name."""
    await request.services.billing.flusher.store_waiting()
    running = await _count_running(request)
    return (await _build_sessions(request, [await _find_session(request, running)], running))[0]


@admin_operation(change=True)
async def end_request_session(request: AdminRequest) -> EndedRequestSession:
    """End a session: cancel its active requests, and refuse all later ones with 403 `session_ended`, for good.

    Video jobs, and requests that wait in a batch, are not cancelled; the latter are refused when their turn comes. In a
    cluster the other nodes cancel their requests of the session within moments; `cancelled` counts those of this node.
    """
    services, actor = request.services, request.actor
    await services.billing.flusher.store_waiting()
    account_id, session = await _find_session(request, await _count_running(request))
    names = await services.auth.accounts.name_accounts()
    audit = actor.build_audit_row(
        "request.session_ended",
        session,
        int(services.clock() * 1000),
        account_id=account_id,
        detail=orjson.dumps({"account": names.get(account_id)}).decode(),
    )
    state = await services.billing.limits.open_budgets().end(account_id, session, audit)
    cancelled = services.active_requests.cancel_session(account_id, session)
    return EndedRequestSession(
        id=state.subject, ended_at=build_time((state.ended_ms or 0) // 1000), cancelled=cancelled
    )


async def _count_running(request: AdminRequest) -> Counter[SessionKey]:
    """Return the number of active requests of each session, at this node and the others of its cluster.

    Another node reports at most a thousand requests; one that does not answer, none.
    """
    services = request.services
    running: Counter[SessionKey] = Counter()
    for call in services.active_requests.calls.values():
        if session := call.context.attribution.session:
            running[call.context.caller.account.id, session] += 1
    if services.admin.peers is not None:
        ids = {name: account_id for account_id, name in (await services.auth.accounts.name_accounts()).items()}
        answers = await services.admin.peers.ask_all("GET", ("running",), request.actor)
        for running_request in read_answer(list[RunningRequest], answers.list_items()):
            if running_request.session and running_request.account in ids:
                running[ids[running_request.account], running_request.session] += 1
    return running


async def _find_session(request: AdminRequest, running: Counter[SessionKey]) -> SessionKey:
    """Return the session in the path. Raises ``NotFound``, also for a session of an account that is not visible."""
    subject = request.match_info["id"]
    account, _, session = subject.partition(":")
    if is_number(account) and session and len(subject) <= _MAX_ID_CHARS and request.actor.may_see(int(account)):
        keys = await _find_named_sessions(request, session, int(account), running)
        if keys:
            return keys[0]
    raise NotFound(f"No session has the id {subject[:_MAX_ID_CHARS]!r}", param="id")


async def _find_named_sessions(
    request: AdminRequest, session: str, account_id: int | None, running: Counter[SessionKey]
) -> list[SessionKey]:
    """Return the sessions of this name, of one account or all (None).

    They have stored or running requests or a budget, or were ended.
    """
    services = request.services
    account_ids = set(await SessionLogRepository(services.storage.database).find_accounts(session, account_id))
    all_accounts = await services.auth.accounts.name_accounts() if account_id is None else [account_id]
    budgets = services.billing.limits.budgets
    if budgets is not None:
        states = await budgets.states.list_states([f"{number}:{session}" for number in all_accounts])
        account_ids |= {state.account_id for state in states.values()}
    account_ids |= {number for number in all_accounts if running[number, session]}
    return [(number, session) for number in sorted(account_ids)]


async def _build_sessions(
    request: AdminRequest, keys: Collection[SessionKey], running: Counter[SessionKey]
) -> list[RequestSession]:
    services = request.services
    usages = await SessionLogRepository(services.storage.database).sum_up(keys)
    names, budgets = await services.auth.accounts.name_accounts(), services.billing.limits.budgets
    subjects = [f"{account_id}:{session}" for account_id, session in keys]
    states = {} if budgets is None else await budgets.states.list_states(subjects)
    held = {} if budgets is None else await _find_held_nanos(request, budgets, list(states))
    spent = await LimitCounters(services.storage.database).list_spent(SESSION_BUDGET.counter, list(states), 0)
    sessions = []
    for (account_id, session), subject in zip(keys, subjects, strict=True):
        state, usage = states.get(subject, SessionState(subject)), usages.get((account_id, session), UNUSED)
        used_nanos = sum(spent.get(subject, {}).values()) + held.get(subject, 0)
        account = names.get(account_id) or usage.account or f"{account_id} (deleted)"
        sessions.append(
            _build_session(state, usage, account=account, running=running[account_id, session], used_nanos=used_nanos)
        )
    return sessions


async def _find_held_nanos(request: AdminRequest, budgets: RequestBudgets, subjects: Sequence[str]) -> dict[str, int]:
    """Return the nano-USD reserved for the requests of each session; in a cluster, those set aside for all nodes.

    Sessions without a balance in memory are left out on a single process.
    """
    database = request.services.storage.database
    if database.credit is None:
        balances = budgets.book.balances
        return {subject: balances[subject].held_nanos for subject in subjects if subject in balances}
    ids = {subject: build_limit_id(SESSION_BUDGET.counter, subject) for subject in subjects}
    figures = await database.credit.find_figures(list(ids.values()))
    return {subject: figures[balance_id].held_nanos for subject, balance_id in ids.items()}


def _build_session(
    state: SessionState, usage: SessionUsage, *, account: str, running: int, used_nanos: int
) -> RequestSession:
    budget_nanos, is_used = state.limit_nanos, usage.requests > 0
    return RequestSession(
        id=state.subject,
        session=state.session,
        account=account,
        key=usage.key_name or None,
        end_user=usage.end_user,
        requests=usage.requests,
        running=running,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        cached_share=usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0,
        spent_usd=usage.cost_nanos / NANOS_PER_USD,
        budget_usd=None if budget_nanos is None else budget_nanos / NANOS_PER_USD,
        budget_left_usd=None if budget_nanos is None else max(0, budget_nanos - used_nanos) / NANOS_PER_USD,
        first_prompt_tokens=usage.first_prompt_tokens or None,
        last_prompt_tokens=usage.last_prompt_tokens or None,
        partial=usage.is_partial,
        started_at=build_time(usage.started_ms // 1000) if is_used else None,
        settled_at=build_time(usage.settled_ms // 1000) if is_used else None,
        ended_at=None if state.ended_ms is None else build_time(state.ended_ms // 1000),
    )
