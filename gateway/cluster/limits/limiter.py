"""The rate limiter of several gateways: a server decides; while it is away, each gateway decides by itself."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import orjson

from gateway.billing.rate_buckets import build_caller, build_refusal, find_strictest_window, list_refusals, list_use
from gateway.cluster.limits.batch import KIND_CHECK, KIND_PERMIT, KIND_UNITS, REQUESTS, TOKENS, LimitBatch
from gateway.cluster.limits.fallback import LocalFallbackLimiter, WhenDown
from gateway.cluster.limits.sender import TIMEOUT_S, LimitSender
from gateway.cluster.limits.subject import PermitHolder, SharedCaller, SharedSubject
from gateway.cluster.limits.units_ahead import UnitsAhead
from gateway.domain.limit_server import LimitServer
from gateway.domain.rate_limit import (
    RateLimitPermit,
    RateLimitStatus,
    RateLimitSubject,
    SubjectUse,
    compute_reserve,
    correct_all,
    spend,
)
from gateway.errors import Overloaded, RateLimited
from gateway.frozen import frozen

LINGER_S = 0.05
"""How long a token correction, or a released place that is not scarce, waits to be sent with another command."""
_MIN_SWEPT_SUBJECTS = 1_024
_Outcome = asyncio.Future[RateLimitPermit]


@frozen
class _WaitingCall:
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
        node: the id of this gateway, which survives restarts. Without an id, the gateway's former process counts as
            another gateway until the server forgets it.
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
        self._replaced_prefix = f"{node}." if node else ""
        self._fallback = LocalFallbackLimiter(clock, when_down, lambda: self.gateways)
        self._subjects: dict[tuple[str, int | str], SharedSubject] = {}
        self._callers: dict[int, SharedCaller] = {}
        self._sweep_size = _MIN_SWEPT_SUBJECTS
        self._waiting_calls: list[_WaitingCall] = []
        self._sent_calls: list[_WaitingCall] = []
        self._requested_ahead: dict[UnitsAhead, int] = {}
        self._corrections: list[tuple[str, int, int, int]] = []
        self._reported_subjects: set[SharedSubject] = set()
        self._subjects_to_report: set[SharedSubject] = set()
        self._server_state: str | None = None
        self._ahead_s = 0.0
        self._known_gateways = 1
        self._count_live = count_live
        self.sender = LimitSender(server, self, timeout_s)

    @property
    def gateways(self) -> int:
        """The number of gateways that share the limits: those that the server knows, or the live nodes if more."""
        return max(self._known_gateways, self._count_live())

    async def take(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        return await self._ask_server(KIND_PERMIT, subjects, tokens)

    async def take_part(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        return await self._ask_server(KIND_UNITS, subjects, tokens)

    async def check(self, subjects: Sequence[RateLimitSubject]) -> None:
        caller = self._find_caller(subjects)
        if not self.sender.away:
            await self._ask_server(KIND_CHECK, subjects, 0)
        elif caller.limited:
            await self._fallback.check(caller)

    def take_now(self, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit | None:
        caller = self._callers.get(id(subjects)) or self._find_caller(subjects)
        if not caller.limited:
            return self._admit(caller, KIND_PERMIT, tokens, RateLimitStatus())
        if self.sender.away:
            return self._take_locally(KIND_PERMIT, caller, tokens)
        if caller.concurrency_limits:
            return None
        now_s = self._clock()
        for subject, limits in zip(caller.shared_subjects, caller.named_limits, strict=True):
            rpm, tpm = limits[1].rpm, limits[1].tpm
            if rpm is not None and not subject.requests.covers(1, rpm, now_s):
                return None
            if tpm is not None and not subject.tokens.covers(tokens, tpm, now_s):
                return None
        return self._take_ahead(caller, tokens, now_s)

    def check_spare(self, subjects: Sequence[RateLimitSubject], tokens: int) -> None:
        """Decide by the server's last answer, because this method cannot wait. A refusal requests a newer answer.

        Raises ``RateLimited``, ``Overloaded``.
        """
        caller = self._find_caller(subjects)
        if self.sender.away:
            self._fallback.check_spare(caller, tokens)
            return
        now_s = self._clock() + self._ahead_s
        if list_refusals(caller.buckets, tokens, now_s, spare=compute_reserve):
            self._refresh(caller)
            raise build_refusal(caller.buckets, tokens, now_s, spare=compute_reserve)

    async def list_use(self, subjects: Sequence[RateLimitSubject]) -> Sequence[SubjectUse]:
        caller = self._find_caller(subjects)
        if not self.sender.away and caller.limited:
            with suppress(RateLimited, Overloaded):  # the answer has the state in both cases
                await self._ask_server(KIND_CHECK, subjects, 0)
        return list_use(caller.buckets, self._clock() + self._ahead_s)

    def add_requests(self, subjects: Sequence[RateLimitSubject], requests: int) -> None:
        for name, limits in self._find_caller(subjects).named_limits:
            if limits.rpm is not None and requests:
                self._corrections.append((name, REQUESTS, requests, limits.rpm))
                self.sender.wake_within(LINGER_S)

    def release(self, permit: RateLimitPermit, tokens: int) -> None:
        if permit.released:
            return
        permit.released = True
        holder: PermitHolder = permit.holder
        for subject in holder.counted_subjects:
            subject.own_running -= 1
            if (max_concurrency := subject.buckets.limits.max_concurrency) is not None:
                subject.buckets.running -= 1
                self._subjects_to_report.add(subject)
                if 2 * subject.buckets.running < max_concurrency:  # no other gateway needs the place
                    self.sender.wake_within(LINGER_S)
                else:
                    self.sender.wake()
        if holder.local_permit is not None:
            self._fallback.release(holder.local_permit, tokens)
        if tokens != permit.tokens and holder.caller.buckets.tokens and not (holder.local_permit and self.sender.away):
            correct_all(holder.caller.buckets.tokens, tokens - permit.tokens, self._clock() + self._ahead_s)
            for name, limits in holder.caller.named_limits:
                if limits.tpm is not None:
                    self._corrections.append((name, TOKENS, tokens - permit.tokens, limits.tpm))
            self.sender.wake_within(LINGER_S)

    async def _ask_server(self, kind: int, subjects: Sequence[RateLimitSubject], tokens: int) -> RateLimitPermit:
        caller = self._find_caller(subjects)
        if not caller.limited:
            return self._admit(caller, kind, tokens, RateLimitStatus())
        if self.sender.away:
            return self._take_locally(kind, caller, tokens)
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        self._waiting_calls.append(_WaitingCall(kind, caller, tokens, outcome))
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
        self._waiting_calls.append(_WaitingCall(KIND_CHECK, caller, 0, outcome))
        self.sender.wake()

    def _admit(self, caller: SharedCaller, kind: int, tokens: int, limit_status: RateLimitStatus) -> RateLimitPermit:
        counted_subjects = caller.shared_subjects if kind == KIND_PERMIT else ()
        for subject in counted_subjects:
            subject.own_running += 1
        return RateLimitPermit(tokens, limit_status, PermitHolder(caller, counted_subjects))

    def _take_ahead(self, caller: SharedCaller, tokens: int, now_s: float) -> RateLimitPermit:
        server_now_s = now_s + self._ahead_s
        for subject, (_, limits) in zip(caller.shared_subjects, caller.named_limits, strict=True):
            for ahead, limit, cost in ((subject.requests, limits.rpm, 1), (subject.tokens, limits.tpm, tokens)):
                if limit is not None:
                    ahead.units -= cost
                    ahead.record_use(cost, now_s)
                    ahead.bucket.tat = spend(ahead.bucket.tat, limit, cost, server_now_s)
        return self._admit(caller, KIND_PERMIT, tokens, self._compute_status(caller, server_now_s))

    @staticmethod
    def _compute_status(caller: SharedCaller, server_now_s: float) -> RateLimitStatus:
        buckets = caller.buckets
        return RateLimitStatus(
            find_strictest_window(buckets.requests, server_now_s), find_strictest_window(buckets.tokens, server_now_s)
        )

    def _take_locally(self, kind: int, caller: SharedCaller, tokens: int) -> RateLimitPermit:
        """Decide without the server. Raises ``RateLimited``, ``Overloaded``."""
        if kind == KIND_CHECK:  # the call that takes units decides later
            return RateLimitPermit(0, RateLimitStatus(), PermitHolder(caller, ()))
        permit = self._fallback.take(caller, tokens, counts_running=kind == KIND_PERMIT)
        counted_subjects = caller.shared_subjects if kind == KIND_PERMIT else ()
        for subject in counted_subjects:
            subject.own_running += 1
            subject.buckets.running += 1
        return RateLimitPermit(tokens, permit.limit_status, PermitHolder(caller, counted_subjects, permit))

    def begin_absence(self) -> None:
        self._fallback.begin_absence(self._ahead_s)

    def collect(self, *, leaves: bool = False) -> bytes:
        batch, now_s = LimitBatch(), self._clock()
        self._sent_calls, self._waiting_calls = self._waiting_calls, []
        reported_subjects, self._subjects_to_report = self._subjects_to_report, set()
        for correction in (*self._corrections, *self._fallback.take_unreported_usage()):
            batch.add_correction(*correction)
        self._corrections = []
        self._requested_ahead = {}
        for call in self._sent_calls:
            caller = call.caller
            takes_ahead = call.kind == KIND_PERMIT and not caller.concurrency_limits
            batch.add_check(call.kind, call.tokens, caller.named_limits)
            reported_subjects.update([subject for subject, _ in caller.concurrency_limits])
            for subject, (name, limits) in zip(caller.shared_subjects, caller.named_limits, strict=True):
                burst = limits.find_request_burst(limits.rpm or 0)
                for dimension, ahead, limit, max_burst in (
                    (REQUESTS, subject.requests, limits.rpm or 0, burst),
                    (TOKENS, subject.tokens, limits.tpm or 0, limits.tpm or 0),
                ):
                    if units := ahead.return_units(now_s):
                        batch.add_correction(name, dimension, -units, ahead.limit)
                    if not limit or not takes_ahead or ahead in self._requested_ahead:
                        continue
                    cost = call.tokens if dimension == TOKENS else 1
                    if units := ahead.compute_ahead_units(cost, max_burst // (2 * self.gateways), now_s):
                        batch.request_ahead(name, dimension, units, (limit, max_burst))
                        self._requested_ahead[ahead] = limit
        for subject in reported_subjects:
            batch.report(subject.name, subject.own_running)
        self._reported_subjects = reported_subjects
        return batch.build(
            {
                "node": self._node,
                "replaces": self._replaced_prefix,
                "token": secrets.token_hex(8),
                "prefix": self._prefix,
                "leaves": int(leaves),
            }
        )

    def deliver(self, answer: bytes) -> None:
        state, is_known, self._known_gateways, server_now_s, answers, granted_units = orjson.loads(answer)
        self._replaced_prefix = ""
        now_s = self._clock()
        self._ahead_s = server_now_s - now_s
        sent_calls, self._sent_calls = self._sent_calls, []
        for call, (is_passed, *numbers) in zip(sent_calls, answers, strict=True):
            self._resolve(call, is_passed == 1, numbers, (now_s, server_now_s))
        for (ahead, limit), units in zip(self._requested_ahead.items(), granted_units, strict=True):
            ahead.put(int(units), limit, now_s)
        if self._fallback.has_unreported:
            self.sender.wake()
        if state != self._server_state or not is_known:
            self._server_state = state
            self._report_running()

    def drop(self) -> None:
        self._sent_calls = []
        self._subjects_to_report |= self._reported_subjects
        self._server_state = None

    def decide_locally(self) -> None:
        waiting_calls, self._waiting_calls = self._waiting_calls, []
        for call in (*self._sent_calls, *waiting_calls):
            if call.outcome.done():
                continue
            try:
                call.outcome.set_result(self._take_locally(call.kind, call.caller, call.tokens))
            except (RateLimited, Overloaded) as error:
                call.outcome.set_exception(error)

    def _resolve(
        self, call: _WaitingCall, is_passed: bool, numbers: Sequence[float], clocks: tuple[float, float]
    ) -> None:
        """Apply the server's decision on one request. ``clocks`` are this gateway's time and the server's."""
        caller, kind, (now_s, server_now_s) = call.caller, call.kind, clocks
        states = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        for subject, (requests, tokens, running) in zip(caller.shared_subjects, states, strict=True):
            subject.update(requests, tokens, int(running))
        outcome = call.outcome
        if outcome.done() and not outcome.cancelled():  # too late; the server's places are released
            self._subjects_to_report.update([subject for subject, _ in caller.concurrency_limits])
        elif kind == KIND_CHECK:
            is_refused = bool(list_refusals(caller.buckets, 0, server_now_s))
            if not outcome.done() and is_refused:
                outcome.set_exception(build_refusal(caller.buckets, 0, server_now_s))
            elif not outcome.done():
                outcome.set_result(RateLimitPermit(0, RateLimitStatus(), PermitHolder(caller, ())))
        elif is_passed:
            for subject in caller.shared_subjects:
                subject.requests.record_use(1, now_s)
                subject.tokens.record_use(call.tokens, now_s)
            permit = self._admit(caller, kind, call.tokens, self._compute_status(caller, server_now_s))
            if outcome.done():  # the client has disconnected
                self.release(permit, 0)
            else:
                outcome.set_result(permit)
        elif not outcome.done():
            running = kind == KIND_PERMIT
            outcome.set_exception(build_refusal(caller.buckets, call.tokens, server_now_s, running=running))

    def _report_running(self) -> None:
        """Report this gateway's running requests to a server that has lost the counts of this gateway, or of all."""
        for subject in self._subjects.values():
            if subject.own_running and subject.buckets.limits.max_concurrency is not None:
                self._subjects_to_report.add(subject)
        if self._subjects_to_report:
            self.sender.wake()

    def _find_caller(self, subjects: Sequence[RateLimitSubject]) -> SharedCaller:
        caller = self._callers.get(id(subjects))
        if caller is not None:
            return caller
        if max(len(self._subjects), len(self._callers)) >= self._sweep_size:
            self._sweep()
        shared_subjects = tuple([self._find_subject(subject) for subject in subjects])
        caller = self._callers[id(subjects)] = SharedCaller(
            subjects,
            shared_subjects,
            build_caller(subjects, tuple([shared_subject.buckets for shared_subject in shared_subjects])),
            any(subject.limits.any for subject in subjects),
            tuple(
                [
                    (shared_subject, max_concurrency)
                    for shared_subject, subject in zip(shared_subjects, subjects, strict=True)
                    if (max_concurrency := subject.limits.max_concurrency) is not None
                ]
            ),
            tuple(
                [
                    (shared_subject.name, subject.limits)
                    for shared_subject, subject in zip(shared_subjects, subjects, strict=True)
                ]
            ),
        )
        return caller

    def _find_subject(self, subject: RateLimitSubject) -> SharedSubject:
        subject_key = subject.kind, subject.id
        shared_subject = self._subjects.get(subject_key)
        if shared_subject is None:
            shared_subject = self._subjects[subject_key] = SharedSubject(subject)
        elif shared_subject.buckets.limits != subject.limits:
            shared_subject.buckets.set_limits(subject.limits, self._clock() + self._ahead_s)
            self._callers.clear()
        return shared_subject

    def _sweep(self) -> None:
        now_s = self._clock() + self._ahead_s
        self._callers.clear()
        self._subjects = {
            subject_key: shared_subject
            for subject_key, shared_subject in self._subjects.items()
            if shared_subject.own_running or not shared_subject.buckets.is_idle(now_s)
        }
        self._sweep_size = max(_MIN_SWEPT_SUBJECTS, 2 * len(self._subjects))
