"""The rate limiter of several gateways: a server decides; while it is away, each gateway decides by itself."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

import orjson

from gateway.billing.rate_buckets import build_caller, build_refusal, find_strictest, list_refusals
from gateway.cluster.limits.batch import FULL, LOOK, PART, REQUESTS, TOKENS, LimitBatch
from gateway.cluster.limits.fallback import LocalFallbackLimiter, WhenDown
from gateway.cluster.limits.sender import TIMEOUT_S, LimitSender
from gateway.cluster.limits.subject import PermitHolder, SharedCaller, SharedSubject
from gateway.cluster.limits.units_ahead import UnitsAhead
from gateway.domain.limit_server import LimitServer
from gateway.domain.rate_limit import (
    RateLimitPermit,
    RateLimitStatus,
    RateLimitSubject,
    compute_reserve,
    correct_all,
    spend,
)
from gateway.errors import Overloaded, RateLimited
from gateway.frozen import frozen

LINGER_S = 0.05
"""How long a token correction, or a released place that is not scarce, waits to be sent with another command."""
_FEWEST_TO_SWEEP = 1_024
_Outcome = asyncio.Future[RateLimitPermit]


@frozen
class _Waiting:
    kind: int
    caller: SharedCaller
    tokens: int
    outcome: _Outcome


class SharedRateLimiter:
    """The ``RateLimiter`` that asks a server. ``sender.run`` is a background job; until it runs, the server is away.

    While the server is away, every gateway admits by its own count: its share of each limit (``share``), the whole
    limit (``open``), or nothing (``closed``).

    Args:
        clock: monotonic seconds.
        prefix: the same for all gateways that share limits.
        node: the id of this gateway, which survives restarts. Without an id, its former process counts as another
            gateway until the server forgets it.
        count_live: returns the number of live gateways, if another source knows it.
    """

    def __init__(
        self,
        server: LimitServer,
        clock: Callable[[], float],
        prefix: str = "gateway",
        when_down: WhenDown = "share",
        timeout_s: float = TIMEOUT_S,
        *,
        node: str = "",
        count_live: Callable[[], int] = lambda: 1,
    ) -> None:
        self._clock = clock
        self._prefix = prefix
        self._node = f"{node or secrets.token_hex(8)}.{secrets.token_hex(4)}"
        self._replaces = f"{node}." if node else ""
        self._alone = LocalFallbackLimiter(clock, when_down, lambda: self.gateways)
        self._subjects: dict[tuple[str, int | str], SharedSubject] = {}
        self._callers: dict[int, SharedCaller] = {}
        self._sweep_at = _FEWEST_TO_SWEEP
        self._waiting: list[_Waiting] = []
        self._asked: list[_Waiting] = []
        self._wishes: dict[UnitsAhead, int] = {}
        self._fixes: list[tuple[str, int, int, int]] = []
        self._reported: set[SharedSubject] = set()
        self._reports: set[SharedSubject] = set()
        self._server_state: str | None = None
        self._ahead_of_clock = 0.0
        self._heard_of = 1
        self._count_live = count_live
        self.sender = LimitSender(server, self, timeout_s)

    @property
    def gateways(self) -> int:
        """The number of gateways that share the limits: those that the server knows, or the live nodes if more."""
        return max(self._heard_of, self._count_live())

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        return await self._ask(FULL, subjects, tokens)

    async def take_part(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        return await self._ask(PART, subjects, tokens)

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        caller = self._find_caller(subjects)
        if not self.sender.away:
            await self._ask(LOOK, subjects, 0)
        elif caller.limited:
            await self._alone.check(caller)

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit | None:
        caller = self._callers.get(id(subjects)) or self._find_caller(subjects)
        if not caller.limited:
            return self._admit(caller, FULL, tokens, RateLimitStatus())
        if self.sender.away:
            return self._take_locally(FULL, caller, tokens)
        if caller.crowded:
            return None
        now = self._clock()
        for subject, limits in zip(caller.shared, caller.named, strict=True):
            rpm, tpm = limits[1].rpm, limits[1].tpm
            if rpm is not None and not subject.requests.covers(1, rpm, now):
                return None
            if tpm is not None and not subject.tokens.covers(tokens, tpm, now):
                return None
        return self._take_ahead(caller, tokens, now)

    def check_spare(self, subjects: Sequence[RateLimitSubject], tokens: int) -> None:
        """Decide by the server's last answer, because this method cannot wait. A refusal requests a newer answer."""
        caller = self._find_caller(subjects)
        if self.sender.away:
            self._alone.check_spare(caller, tokens)
            return
        now = self._clock() + self._ahead_of_clock
        if list_refusals(caller.buckets, tokens, now, spare=compute_reserve):
            self._refresh(caller)
            raise build_refusal(caller.buckets, tokens, now, spare=compute_reserve)

    def add_requests(self, subjects: Sequence[RateLimitSubject], requests: int) -> None:
        for name, limits in self._find_caller(subjects).named:
            if limits.rpm is not None and requests:
                self._fixes.append((name, REQUESTS, requests, limits.rpm))
                self.sender.wake_within(LINGER_S)

    def release(self, permit: RateLimitPermit, tokens: int) -> None:
        if permit.released:
            return
        permit.released = True
        holder: PermitHolder = permit.holder
        for subject in holder.counted:
            subject.mine -= 1
            if (most := subject.buckets.limits.max_concurrency) is not None:
                subject.buckets.running -= 1
                self._reports.add(subject)
                if 2 * subject.buckets.running < most:  # no other gateway needs the place
                    self.sender.wake_within(LINGER_S)
                else:
                    self.sender.wake()
        if holder.alone is not None:
            self._alone.release(holder.alone, tokens)
        if tokens != permit.tokens and holder.caller.buckets.tokens and not (holder.alone and self.sender.away):
            correct_all(holder.caller.buckets.tokens, tokens - permit.tokens, self._clock() + self._ahead_of_clock)
            for name, limits in holder.caller.named:
                if limits.tpm is not None:
                    self._fixes.append((name, TOKENS, tokens - permit.tokens, limits.tpm))
            self.sender.wake_within(LINGER_S)

    async def _ask(self, kind: int, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        caller = self._find_caller(subjects)
        if not caller.limited:
            return self._admit(caller, kind, tokens, RateLimitStatus())
        if self.sender.away:
            return self._take_locally(kind, caller, tokens)
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(kind, caller, tokens, outcome))
        self.sender.wake()
        try:
            return await outcome
        except asyncio.CancelledError:
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                self.release(outcome.result(), 0)
            raise

    def _refresh(self, caller: SharedCaller) -> None:
        """Request the caller's current state from the server, without waiting."""
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_Outcome.exception)
        self._waiting.append(_Waiting(LOOK, caller, 0, outcome))
        self.sender.wake()

    def _admit(self, caller: SharedCaller, kind: int, tokens: int, limit_status: RateLimitStatus) -> RateLimitPermit:
        counted = caller.shared if kind == FULL else ()
        for subject in counted:
            subject.mine += 1
        return RateLimitPermit(tokens, limit_status, PermitHolder(caller, counted))

    def _take_ahead(self, caller: SharedCaller, tokens: int, now: float) -> RateLimitPermit:
        there = now + self._ahead_of_clock
        for subject, (_, limits) in zip(caller.shared, caller.named, strict=True):
            for ahead, limit, cost in ((subject.requests, limits.rpm, 1), (subject.tokens, limits.tpm, tokens)):
                if limit is not None:
                    ahead.units -= cost
                    ahead.note_use(cost, now)
                    ahead.bucket.tat = spend(ahead.bucket.tat, limit, cost, there)
        return self._admit(caller, FULL, tokens, self._find_status(caller, there))

    @staticmethod
    def _find_status(caller: SharedCaller, there: float) -> RateLimitStatus:
        buckets = caller.buckets
        return RateLimitStatus(find_strictest(buckets.requests, there), find_strictest(buckets.tokens, there))

    def _take_locally(self, kind: int, caller: SharedCaller, tokens: int) -> RateLimitPermit:
        """Decide without the server. Raises ``RateLimited``, ``Overloaded``."""
        if kind == LOOK:  # the call that takes units decides later
            return RateLimitPermit(0, RateLimitStatus(), PermitHolder(caller, ()))
        permit = self._alone.take(caller, tokens, places=kind == FULL)
        counted = caller.shared if kind == FULL else ()
        for subject in counted:
            subject.mine += 1
            subject.buckets.running += 1
        return RateLimitPermit(tokens, permit.limit_status, PermitHolder(caller, counted, permit))

    def begin_absence(self) -> None:
        self._alone.begin_absence(self._ahead_of_clock)

    def collect(self, *, leaves: bool = False) -> bytes:
        batch, now = LimitBatch(), self._clock()
        self._asked, self._waiting = self._waiting, []
        reported, self._reports = self._reports, set()
        for fix in (*self._fixes, *self._alone.list_unreported()):
            batch.add_correction(*fix)
        self._fixes = []
        self._wishes = {}
        for waiting in self._asked:
            caller = waiting.caller
            batch.add_check(waiting.kind, waiting.tokens, caller.named)
            reported.update([subject for subject, _ in caller.crowded])
            for subject, (name, limits) in zip(caller.shared, caller.named, strict=True):
                burst = limits.find_request_burst(limits.rpm or 0)
                for what, ahead, limit, most in (
                    (REQUESTS, subject.requests, limits.rpm or 0, burst),
                    (TOKENS, subject.tokens, limits.tpm or 0, limits.tpm or 0),
                ):
                    if units := ahead.return_units(now):
                        batch.add_correction(name, what, -units, ahead.limit)
                    if not limit or waiting.kind != FULL or caller.crowded or ahead in self._wishes:
                        continue
                    cost = waiting.tokens if what == TOKENS else 1
                    if units := ahead.find_wish(cost, most // (2 * self.gateways), now):
                        batch.add_wish(name, what, units, (limit, most))
                        self._wishes[ahead] = limit
        for subject in reported:
            batch.report(subject.name, subject.mine)
        self._reported = reported
        return batch.build(
            {
                "node": self._node,
                "replaces": self._replaces,
                "token": secrets.token_hex(8),
                "prefix": self._prefix,
                "leaves": int(leaves),
            }
        )

    def deliver(self, answer: bytes) -> None:
        state, known, self._heard_of, there, answers, granted = orjson.loads(answer)
        self._replaces = ""
        now = self._clock()
        self._ahead_of_clock = there - now
        requested, self._asked = self._asked, []
        for waiting, (passed, *numbers) in zip(requested, answers, strict=True):
            self._resolve(waiting, passed == 1, numbers, (now, there))
        for (ahead, limit), units in zip(self._wishes.items(), granted, strict=True):
            ahead.put(int(units), limit, now)
        if self._alone.has_unreported:
            self.sender.wake()
        if state != self._server_state or not known:
            self._server_state = state
            self._announce()

    def drop(self) -> None:
        self._asked = []
        self._reports |= self._reported
        self._server_state = None

    def decide_locally(self) -> None:
        late, self._waiting = self._waiting, []
        for waiting in (*self._asked, *late):
            if waiting.outcome.done():
                continue
            try:
                waiting.outcome.set_result(self._take_locally(waiting.kind, waiting.caller, waiting.tokens))
            except (RateLimited, Overloaded) as error:
                waiting.outcome.set_exception(error)

    def _resolve(self, waiting: _Waiting, passed: bool, numbers: Sequence[float], clocks: tuple[float, float]) -> None:
        """Apply the server's decision on one request. ``clocks``: this gateway's clock and the server's."""
        caller, kind, (now, there) = waiting.caller, waiting.kind, clocks
        states = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        for subject, (requests, tokens, running) in zip(caller.shared, states, strict=True):
            subject.update(requests, tokens, int(running))
        outcome = waiting.outcome
        if outcome.done() and not outcome.cancelled():  # too late; the server's places are released
            self._reports.update([subject for subject, _ in caller.crowded])
        elif kind == LOOK:
            refuses = bool(list_refusals(caller.buckets, 0, there))
            if not outcome.done() and refuses:
                outcome.set_exception(build_refusal(caller.buckets, 0, there))
            elif not outcome.done():
                outcome.set_result(RateLimitPermit(0, RateLimitStatus(), PermitHolder(caller, ())))
        elif passed:
            for subject in caller.shared:
                subject.requests.note_use(1, now)
                subject.tokens.note_use(waiting.tokens, now)
            permit = self._admit(caller, kind, waiting.tokens, self._find_status(caller, there))
            if outcome.done():  # the client has disconnected
                self.release(permit, 0)
            else:
                outcome.set_result(permit)
        elif not outcome.done():
            running = kind == FULL
            outcome.set_exception(build_refusal(caller.buckets, waiting.tokens, there, running=running))

    def _announce(self) -> None:
        """Report the running requests to a server that has lost its state, or this gateway's."""
        for subject in self._subjects.values():
            if subject.mine and subject.buckets.limits.max_concurrency is not None:
                self._reports.add(subject)
        if self._reports:
            self.sender.wake()

    def _find_caller(self, subjects: Sequence[RateLimitSubject]) -> SharedCaller:
        caller = self._callers.get(id(subjects))
        if caller is not None:
            return caller
        if max(len(self._subjects), len(self._callers)) >= self._sweep_at:
            self._sweep()
        shared = tuple([self._find(subject) for subject in subjects])
        caller = self._callers[id(subjects)] = SharedCaller(
            subjects,
            shared,
            build_caller(subjects, tuple([its.buckets for its in shared])),
            any(subject.limits.any for subject in subjects),
            tuple(
                [
                    (its, most)
                    for its, subject in zip(shared, subjects, strict=True)
                    if (most := subject.limits.max_concurrency) is not None
                ]
            ),
            tuple([(its.name, subject.limits) for its, subject in zip(shared, subjects, strict=True)]),
        )
        return caller

    def _find(self, subject: RateLimitSubject) -> SharedSubject:
        who = subject.kind, subject.id
        shared = self._subjects.get(who)
        if shared is None:
            shared = self._subjects[who] = SharedSubject(subject)
        elif shared.buckets.limits != subject.limits:
            shared.buckets.set_limits(subject.limits, self._clock() + self._ahead_of_clock)
            self._callers.clear()
        return shared

    def _sweep(self) -> None:
        now = self._clock() + self._ahead_of_clock
        self._callers.clear()
        self._subjects = {
            who: shared for who, shared in self._subjects.items() if shared.mine or not shared.buckets.is_idle(now)
        }
        self._sweep_at = max(_FEWEST_TO_SWEEP, 2 * len(self._subjects))
