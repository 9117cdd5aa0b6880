"""The limits beyond those of keys and accounts, and the balances of their subjects.

A request is matched once: the limits that can concern its key are known in advance, and its end user, session, tags and
model name the subjects. Their balances join those of the key and its account in one reservation.

A subject's balance comes into being with its first request. What the subject has spent is then read from the counters
in the database, and from the rows that wait to be stored. Both are copied while no row moves from one to the other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import structlog

from gateway.billing.limit_check import list_problems
from gateway.billing.request_budgets import RequestBudgets
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account_zone import AccountZone
from gateway.domain.balance import AnyBalance, Balance, Reservation, UtcDay, reserve_all
from gateway.domain.limit import (
    Limit,
    LimitCharge,
    SubjectKind,
    build_charges,
    find_tag_value,
    find_window_start,
    parse_charges,
)
from gateway.domain.limit_balance import LimitBalance, LimitBook, LimitReservation, SubjectBalance, begin_windows
from gateway.domain.limit_window import NEVER_S, find_kept_since
from gateway.domain.rate_limit import Limits, RateLimitSubject
from gateway.domain.request_budget import OwnBalance
from gateway.domain.request_log import RequestRecord
from gateway.errors import QuoteNotValid, StoreUnavailable
from gateway.frozen import quick_frozen
from gateway.request_context import QUOTE_HEADER, RequestContext
from gateway.storage.limit_counters import LimitCounters

_MAX_CACHED = 10_000
"""Maximum of keys whose rules are remembered, and of sets of subjects."""
_MAX_CACHED_MODELS = 1_000
Facts = tuple[str, tuple[str, str, str]]
"""The model that a request names, and its end user, session and tags."""
_CallerSubjects = tuple[Sequence[RateLimitSubject], Sequence[RateLimitSubject]]
"""The rate-limited subjects of a caller: without those of limits, and with them."""

log = structlog.stdlib.get_logger(__name__)


@quick_frozen
class SubjectRule:
    """How the subjects of a limit are found among the requests of a key.

    Attributes:
        prefix: what the subjects' names begin with.
        is_whole: whether ``prefix`` is the subject of every request.
        detail: the glob of models, or the name of the tag and ``=``.
        models: whether the glob matches, by the names of models that clients have sent.
    """

    kind: SubjectKind
    prefix: str
    is_whole: bool
    detail: str
    models: dict[str, bool]


@quick_frozen
class _KeyRules:
    """The limits that can concern a key: those of money, with their balances, and those of rates."""

    spending: tuple[tuple[SubjectRule, LimitBook], ...]
    rates: tuple[tuple[SubjectRule, Limit], ...]


class SpendingLimits:
    """The limits in force and their balances.

    Args:
        counters: what subjects have spent, in the database.
        queue: settled requests that are not in the database yet.
        make_book: makes the balances of a limit.

    Attributes:
        limits: those in force.
        budgets: the budgets that requests bring along; None before the first one.
        changed: set when other limits are in force; ``LimitFiller`` clears it.
        filled: set unless a limit that has come into force here still has to be filled.
        first_counters: the counters of the limits that were in force when the process started.
        new_counters: when each later counter came into force, in Unix seconds: what was spent before has to be counted.
        earlier_reservations: the open reservations that were made before other limits came into force.
    """

    def __init__(
        self,
        counters: LimitCounters,
        queue: WriteQueue,
        clock: Callable[[], float],
        make_book: Callable[[Limit, float, AccountZone | None], LimitBook] = LimitBook,
    ) -> None:
        self._make_book = make_book
        self._counters = counters
        self._queue = queue
        self._clock = clock
        self._books: dict[str, LimitBook] = {}
        self._local_books: dict[tuple[str, int], LimitBook] = {}
        """By counter and account: the books of limits that follow the time zones of accounts."""
        self._zones: dict[int, AccountZone] = {}
        self._zone_keys: dict[int, frozenset[int]] = {}
        """The keys of the accounts with a time zone."""
        self._key_accounts: dict[int, int] = {}
        """The account of each key in ``_zone_keys``."""
        self._starts: dict[str, tuple[int, int, frozenset[int]]] = {}
        """By kind of window: from when until when the starts are valid, and the starts of all accounts' windows."""
        self._in_force: list[LimitBook] = []
        self._rules: dict[tuple[int, str], _KeyRules] = {}
        self._subjects: dict[tuple[int | str, ...], _CallerSubjects] = {}
        self._next_end_s: float = NEVER_S
        self._wanted_balances: dict[LimitBalance, None] = {}
        self._loading_task: asyncio.Task[None] | None = None
        self._running_tasks: set[asyncio.Task[None]] = set()
        self.limits: tuple[Limit, ...] = ()
        self.budgets: RequestBudgets | None = None
        self.changed, self.filled = asyncio.Event(), asyncio.Event()
        self.filled.set()
        self.first_counters: frozenset[str] = frozenset()
        self.new_counters: dict[str, float] = {}
        self.earlier_reservations: set[Reservation] = set()

    def replace(self, limits: Sequence[Limit], reservations: Collection[Reservation] | None = None) -> None:
        """Put ``limits`` into force. Running requests keep their reservations, and what they cost is counted.

        ``reservations``: the open ones; None if the process is starting.
        """
        now_s = self._clock()
        if reservations is None:
            self.first_counters = frozenset([limit.counter for limit in limits])
        else:
            self._note_new_limits(limits, reservations, now_s)
        self.changed.set()
        self.limits = tuple(limits)
        used_books = {counter: book for counter, book in self._books.items() if _is_used(book)}
        books: dict[str, LimitBook] = {}
        for limit in limits:
            if limit.cap_nanos is not None and limit.raises is None:
                raises = [other for other in limits if other.raises == limit.name]
                book = self._books.get(limit.counter) or self._make_book(limit, now_s, None)
                book.set_limit(limit, raises, now_s)
                books[book.counter] = book
        self._books = used_books | books
        self._local_books = {
            (counter, account_id): book
            for (counter, account_id), book in self._local_books.items()
            if counter in self._books or _is_used(book)
        }
        for (counter, _), book in self._local_books.items():
            if counter in books:
                book.set_limit(books[counter].limit, books[counter].raised_by, now_s)
        self._update_in_force(now_s)

    def set_zone(self, account_id: int, key_ids: Iterable[int], zone: AccountZone) -> None:
        """Let limits without a time zone of their own follow that of an account. ``key_ids`` are the account's keys.

        Running requests keep their reservations.
        """
        former_keys, keys = self._zone_keys.get(account_id, frozenset()), frozenset(key_ids)
        self._zone_keys[account_id] = keys
        for key_id in former_keys - keys:
            self._key_accounts.pop(key_id, None)
        self._key_accounts.update(dict.fromkeys(keys, account_id))
        former_zone = self._zones.get(account_id)
        if former_zone is None or zone.periods != former_zone.periods:
            now_s = self._clock()
            self._zones[account_id] = zone
            for book in list(self._books.values()):
                if book.limit.follows_account and (book.balances or (book.counter, account_id) in self._local_books):
                    self._find_local_book(book, account_id, now_s).set_zone(zone, now_s)
            self._forget_windows()

    def drop_account(self, account_id: int) -> None:
        """Forget the time zone of an account that was deleted."""
        for key_id in self._zone_keys.pop(account_id, ()):
            self._key_accounts.pop(key_id, None)
        if self._zones.pop(account_id, None) is not None:
            self._local_books = {
                (counter, owner_id): book
                for (counter, owner_id), book in self._local_books.items()
                if owner_id != account_id or _is_used(book)
            }
            self._forget_windows()

    def _forget_windows(self) -> None:
        """Forget what depends on the time zones of accounts. ``LimitFiller`` finds the windows of rows again, too."""
        self._rules, self._subjects, self._starts = {}, {}, {}
        self.changed.set()

    def _find_local_book(self, book: LimitBook, account_id: int, now_s: float) -> LimitBook:
        """Return the book of an account's subjects: ``book`` itself if the account has no time zone."""
        zone = self._zones.get(account_id)
        if zone is None or not book.limit.follows_account:
            return book
        local_book = self._local_books.get((book.counter, account_id))
        if local_book is None:
            local_book = self._local_books[book.counter, account_id] = self._make_book(book.limit, now_s, zone)
            local_book.set_limit(book.limit, book.raised_by, now_s)
            subjects = [name for name in book.balances if self.find_account(book.limit, name) == account_id]
            local_book.take_balances(book, subjects)
        return local_book

    def find_account(self, limit: Limit, subject: str) -> int:
        """Return the account of a subject; 0 for a key of an account without a time zone."""
        owner_id = int(subject.partition(":")[0])
        return self._key_accounts.get(owner_id, 0) if limit.kind == "key" else owner_id

    def find_book(self, limit: Limit, account_id: int, now_s: float) -> LimitBook | None:
        """Return the book that an account's subjects are in, moved to ``now_s``; None if the limit is not in force.

        It is the book of all other accounts if the account has no time zone, or none of its subjects is in memory.
        """
        book = self._books.get(limit.counter)
        if book is not None:
            book = self._local_books.get((limit.counter, account_id), book)
            begin_windows([book], now_s)
        return book

    def _note_new_limits(self, limits: Sequence[Limit], reservations: Collection[Reservation], now_s: float) -> None:
        """Note the limits of money that come into force, also limits that now count more keys."""
        former_limits = {limit.counter: limit for limit in self.limits if limit.counts_money(now_s)}
        new_limits = {limit.counter: limit for limit in limits if limit.counts_money(now_s)}
        self.new_counters = {counter: at_s for counter, at_s in self.new_counters.items() if counter in new_limits}
        for counter, limit in new_limits.items():
            former_limit = former_limits.get(counter)
            if former_limit is None or limit.adds_keys(former_limit.keys):
                self.new_counters[counter] = now_s
                self.earlier_reservations = set(reservations)
                self.filled.clear()

    def count_earlier(self, counter: str, sums: Mapping[LimitCharge, int]) -> None:
        """Add what was spent under a counter before its limit came into force. The queue's lock must be held.

        Nothing is added on a node: the store's answers include this spending.
        """
        books = self._list_books(counter)
        for (_, subject, start_s), nanos in sums.items():
            for book in books:
                balance = book.balances.get(subject)
                if isinstance(balance, LimitBalance):
                    balance.add_earlier(start_s, nanos)

    def reread(self, counter: str) -> None:
        """Let what the subjects of a counter have spent be read again."""
        for book in self._list_books(counter):
            for balance in book.balances.values():
                balance.forget()

    def _list_books(self, counter: str) -> list[LimitBook]:
        """Return the books of a limit, also those of accounts with a time zone; empty if the limit is not in force."""
        if counter not in self._books:
            return []
        local_books = (book for (book_counter, _), book in self._local_books.items() if book_counter == counter)
        return [self._books[counter], *local_books]

    def find_window(self, limit: Limit, account_id: int, at_s: float) -> tuple[int, int]:
        """Return start and end of the window that ``at_s`` is in for an account; of a slice if the limit is rolling."""
        zone = self._zones.get(account_id) if limit.follows_account else None
        return limit.window.find(at_s, limit.build_zone()) if zone is None else zone.find(limit.window, at_s)

    def find_earliest_start(self, limit: Limit, at_s: float) -> int:
        """Return the earliest start, over all accounts, of the window that contains ``at_s``."""
        return min(self.list_starts(limit, at_s))

    def list_starts(self, limit: Limit, at_s: float) -> frozenset[int]:
        """Return the starts, over all accounts, of the windows or slices that contain ``at_s``."""
        if not limit.follows_account:
            return frozenset([self.find_window(limit, 0, at_s)[0]])
        since_s, until_s, starts = self._starts.get(limit.window.text, (0, 0, frozenset[int]()))
        if not since_s <= at_s < until_s:
            zones = {*self._zones.values()}  # accounts share them
            windows = [self.find_window(limit, 0, at_s), *[zone.find(limit.window, at_s) for zone in zones]]
            starts = frozenset([start_s for start_s, _ in windows])
            self._starts[limit.window.text] = max(starts), min([end_s for _, end_s in windows]), starts
        return starts

    def find_start(self, counter: str, account_id: int, at_s: float) -> int:
        """Return the start of the window, or slice, of a counter that contains ``at_s`` for an account."""
        book = self._books.get(counter)
        return find_window_start(counter, at_s) if book is None else self.find_window(book.limit, account_id, at_s)[0]

    def find_subject_start(self, counter: str, subject: str, at_s: float) -> int:
        """Return the start of the window, or slice, of a counter that contains ``at_s`` for a subject."""
        book = self._books.get(counter)
        return self.find_start(counter, 0 if book is None else self.find_account(book.limit, subject), at_s)

    def _update_in_force(self, now_s: float) -> None:
        """Find the limits that are in force at ``now_s``, and forget the rules of keys."""
        counters = {
            limit.counter
            for limit in self.limits
            if limit.cap_nanos is not None and limit.raises is None and not limit.has_ended(now_s)
        }
        self._in_force = [book for counter, book in self._books.items() if counter in counters]
        ends = [limit.until_s for limit in self.limits if limit.until_s is not None and limit.until_s > now_s]
        self._next_end_s = min(ends, default=NEVER_S)
        self._rules, self._subjects = {}, {}

    def reserve_now(
        self, ctx: RequestContext, pair: tuple[Balance, Balance], nanos: int, day: UtcDay, now_s: float
    ) -> Reservation | None:
        """Reserve ``nanos`` in ``pair`` and in the balances of the request's limits, or in none.

        Return None if the spending of a subject has to be read first: ``load`` does that. Raises ``QuotaExceeded``.
        """
        caller, budgets, session = ctx.caller, self.budgets, ctx.attribution.session
        if budgets is not None and session and not budgets.is_known(caller.account.id, session):  # ``knows_session``
            return None
        key, facts = caller.key, (ctx.inference.model, ctx.attribution)
        balances = self._find_balances(key.id, key.name, caller.account.id, facts, now_s)
        for balance in balances:
            if not balance.complete:
                return None
        budget = None if budgets is None else budgets.find_own_balance(ctx)
        all_balances: tuple[AnyBalance, ...] = (*pair, *balances) if budget is None else (*pair, budget, *balances)
        reservation = reserve_all(all_balances, nanos, day, now_s, LimitReservation)
        soft_left_nanos: int | None = None
        if isinstance(reservation, LimitReservation):
            reservation.limit_balances = balances  # ``use``, inlined
            for balance in balances:
                balance.users += 1
                cap_nanos = balance.book.cap_nanos
                if cap_nanos is None:  # the budget of a session, which its own header tells
                    continue
                left_nanos = cap_nanos - balance.spent_nanos - balance.held_nanos
                strictest_nanos = reservation.limit_left_nanos
                if strictest_nanos is None or left_nanos < strictest_nanos:
                    reservation.limit_left_nanos = left_nanos
                if left_nanos <= balance.book.soft_left_nanos and (
                    soft_left_nanos is None or left_nanos < soft_left_nanos
                ):
                    soft_left_nanos, reservation.soft_limit = left_nanos, balance.book.limit.name
        return reservation

    async def check_left(self, ctx: RequestContext, day: UtcDay) -> None:
        """Raise ``QuotaExceeded`` if a limit of the request is used up even without what is reserved under it.

        Raises ``SessionEnded`` if the request's session was ended.
        """
        await self.load(ctx)
        now_s = self._clock()
        empty_balances = [
            balance
            for balance in self.list_balances(ctx, now_s)
            if (left_nanos := balance.find_balance(day)) is not None and left_nanos <= 0
        ]
        reserve_all(empty_balances, 1, day, now_s)  # raises if there is any

    async def find_left_nanos(self, ctx: RequestContext, day: UtcDay) -> int | None:
        """Return what the request may still reserve under its limits, in nano-USD; None if none of them concerns it.

        A node knows only its part: see ``QuotaService.find_coverable``. Raises the errors of ``load``.
        """
        await self.load(ctx)
        amounts_left = [balance.find_room(day) for balance in self.list_balances(ctx, self._clock())]
        return min([nanos for nanos in amounts_left if nanos is not None], default=None)

    def check_held(self, ctx: RequestContext, reservation: Reservation) -> None:
        """Raise ``QuoteNotValid`` if a quote's ``reservation`` was made under other limits than its request's."""
        balances = self.list_balances(ctx, self._clock())
        held_balances = reservation.limit_balances if isinstance(reservation, LimitReservation) else ()
        if set(balances) != set(held_balances):
            raise QuoteNotValid(f"{QUOTE_HEADER}: the quote was made for another user, session or tag, or other limits")

    def make_reservation(
        self, request: RequestContext | RequestRecord, pair: tuple[Balance, Balance], nanos: int, now_s: float
    ) -> LimitReservation:
        """Return a reservation of ``nanos`` in ``pair`` and the balances of the request's limits. Nothing is held."""
        balances = self.list_balances(request, now_s, must_count=True)
        budget = self.find_own_balance(request) if isinstance(request, RequestContext) else None
        all_balances: tuple[AnyBalance, ...] = (*pair, *balances) if budget is None else (*pair, budget, *balances)
        reservation = LimitReservation(all_balances, nanos)
        reservation.use(balances)
        return reservation

    def list_charges(self, row: RequestRecord) -> str:
        """Return the ``limit_charges`` of a row whose request was interrupted by the end of its process."""
        now_s = row.settled_ms / 1000
        return build_charges(
            [
                (balance.book.counter, balance.subject, balance.book.start_s)
                for balance in self.list_balances(row, now_s, must_count=True)
            ]
        )

    def knows_session(self, ctx: RequestContext) -> bool:
        """Return False if the request's session has to be looked up: budgets exist, and it is not in memory."""
        session = ctx.attribution.session
        return self.budgets is None or not session or self.budgets.is_known(ctx.caller.account.id, session)

    def find_own_balance(self, ctx: RequestContext) -> OwnBalance | None:
        """Return the balance of a request with a budget of its own; None without one."""
        return None if self.budgets is None else self.budgets.find_own_balance(ctx)

    async def check_session(self, ctx: RequestContext) -> None:
        """Check the request's session; reopen its deleted budget. Raises ``SessionEnded``, ``BudgetExceeded``."""
        if self.budgets is not None and ctx.attribution.session:
            await self.budgets.check_request(ctx)

    async def load(self, ctx: RequestContext) -> None:
        """Call ``check_session`` for a request, and read what the request's subjects have spent."""
        await self.check_session(ctx)
        balances = [
            balance
            for balance in self.list_balances(ctx, self._clock())
            if isinstance(balance, LimitBalance) and not balance.complete
        ]
        if not balances:
            return
        for balance in balances:
            balance.users += 1  # it stays in memory
            self._wanted_balances[balance] = None
        try:
            if self._loading_task is None:
                self._loading_task = task = asyncio.get_running_loop().create_task(self._load_wanted())
                self._running_tasks.add(task)
                task.add_done_callback(self._running_tasks.discard)
            await asyncio.shield(self._loading_task)
        finally:
            for balance in balances:
                balance.users -= 1

    async def _load_wanted(self) -> None:
        """Read the spending of all wanted balances. Requests that come meanwhile start the next round."""
        async with self._queue.writing:
            self._loading_task, balances_to_read, self._wanted_balances = None, list(self._wanted_balances), {}
            if self._queue.failing:  # whether the waiting rows are stored is not known
                raise StoreUnavailable("What was spent under a limit cannot be read at the moment", retry_after_s=1)
            books: defaultdict[LimitBook, dict[str, LimitBalance]] = defaultdict(dict)
            for balance in balances_to_read:
                books[balance.book][balance.subject] = balance
            for book, balances in books.items():
                since_s = book.start_s - book.rolling_s
                spent = await self._counters.list_spent(book.counter, list(balances), since_s)
                self._add_waiting_rows(spent, book, since_s)
                for subject, balance in balances.items():
                    balance.adopt(spent.get(subject, {}), since_s)

    def _add_waiting_rows(self, spent: dict[str, dict[int, int]], book: LimitBook, since_s: int) -> None:
        """Add the costs of rows that wait to be stored to ``spent``."""
        for row in self._queue.list_rows():
            if row.limit_charges and row.cost_nanos:
                for counter, subject, start_s in parse_charges(row.limit_charges):
                    if counter == book.counter and start_s >= since_s:
                        sums = spent.setdefault(subject, {})
                        sums[start_s] = sums.get(start_s, 0) + row.cost_nanos

    def list_balances(
        self, request: RequestContext | RequestRecord, now_s: float, *, must_count: bool = False
    ) -> Sequence[SubjectBalance]:
        """Return the balances of a request's subjects, in the windows of ``now_s``.

        ``must_count``: include a balance for a session that is not in memory, because it may have a budget.
        """
        if isinstance(request, RequestContext):
            key, account_id = request.caller.key, request.caller.account.id
            facts: Facts = request.inference.model, request.attribution
            return self._find_balances(key.id, key.name, account_id, facts, now_s, must_count=must_count)
        row = request
        facts = row.model, (row.end_user, row.session, row.tags)
        return self._find_balances(row.key_id, row.key_name, row.account_id, facts, now_s, must_count=must_count)

    def _find_balances(
        self, key_id: int, key_name: str, account_id: int, facts: Facts, now_s: float, *, must_count: bool = False
    ) -> Sequence[SubjectBalance]:
        if now_s >= self._next_end_s:
            self._update_in_force(now_s)
        rules = self._rules.get((key_id, key_name))
        if rules is None:
            rules = self._list_rules(key_id, key_name, account_id)
        balances: list[SubjectBalance] = []
        for rule, book in rules.spending:
            subject = rule.prefix if rule.is_whole else find_subject(rule, facts)
            if subject is None:
                continue
            if not book.start_s <= now_s < book.end_s:
                book.begin(now_s)
            balance = book.balances.pop(subject, None)
            if balance is None:
                balance = book.open(subject)
            else:
                book.balances[subject] = balance  # the most recently used one is the last
            if balance.start_s != book.start_s:
                balance.move()
            balances.append(balance)
        if self.budgets is not None:
            balances += self.budgets.list_balances(account_id, facts[1][1], must_count=must_count)
        return balances

    def _list_rules(self, key_id: int, key_name: str, account_id: int) -> _KeyRules:
        if len(self._rules) >= _MAX_CACHED:
            self._rules = {}
        now_s = self._clock()
        rates = [
            limit
            for limit in self.limits
            if (limit.rpm or limit.tpm) and not limit.raises and not limit.has_ended(now_s)
        ]
        self._rules[key_id, key_name] = rules = _KeyRules(
            tuple(
                [
                    (build_rule(book.limit, key_id, account_id), self._find_local_book(book, account_id, now_s))
                    for book in self._in_force
                    if book.limit.counts_key(key_name)
                ]
            ),
            tuple([(build_rule(limit, key_id, account_id), limit) for limit in rates if limit.counts_key(key_name)]),
        )
        return rules

    def list_subjects(self, ctx: RequestContext) -> Sequence[RateLimitSubject]:
        """Return the caller's rate-limited subjects, and those of limits for this request.

        Equal results are mostly the same object, as ``RateLimiter`` expects.
        """
        caller, key = ctx.caller, ctx.caller.key
        if self._clock() >= self._next_end_s:
            self._update_in_force(self._clock())
        rules = self._rules.get((key.id, key.name)) or self._list_rules(key.id, key.name, caller.account.id)
        if not rules.rates:
            return caller.subjects
        facts = ctx.inference.model, ctx.attribution
        names = [
            "" if (subject := rule.prefix if rule.is_whole else find_subject(rule, facts)) is None else subject
            for rule, _ in rules.rates
        ]
        cached = self._subjects.get((key.id, *names))
        if cached is None or cached[0] is not caller.subjects:
            if len(self._subjects) >= _MAX_CACHED:
                self._subjects = {}
            subjects = [
                RateLimitSubject("limit", f"{limit.name}|{name}", Limits(limit.rpm, limit.tpm))
                for (_, limit), name in zip(rules.rates, names, strict=True)
                if name
            ]
            cached = self._subjects[key.id, *names] = caller.subjects, (*caller.subjects, *subjects)
        return cached[1]

    def list_books(self) -> list[LimitBook]:
        """Return the books of the limits in force, of former ones in use, and of budgets that requests bring along."""
        budget_books = [] if self.budgets is None else [self.budgets.book]
        return [*self._books.values(), *self._local_books.values(), *budget_books]

    def move_charges(self, text: str, account_id: int, now_s: float) -> str:
        """Return ``text``, made by ``build_charges``, moved to the windows of an account at ``now_s``."""
        charges = parse_charges(text)
        return build_charges(
            [(name, subject, self.find_start(name, account_id, now_s)) for name, subject, _ in charges]
        )

    async def list_problems(self, reservations: Iterable[Reservation]) -> list[str]:
        """Describe each disagreement of balances, counters and requests. ``queue.writing`` must be held."""
        return await list_problems(self.list_books(), reservations, self._counters, self._queue, self._clock())

    async def retire(self, now_s: float) -> int:
        """Delete sums of windows that ended long ago; return their number."""
        return sum(
            [
                await self._counters.delete_before(counter, find_kept_since(counter, now_s))
                for counter in await self._counters.list_counters()
            ]
        )


def build_rule(limit: Limit, key_id: int, account_id: int) -> SubjectRule:
    """Return how the subjects of a limit are found among the requests of a key."""
    prefix = str(key_id) if limit.kind == "key" else str(account_id)
    if limit.kind in {"user", "session", "tag"}:
        prefix += ":"
    detail = f"{limit.detail}=" if limit.kind == "tag" else limit.detail
    return SubjectRule(limit.kind, prefix, limit.kind in {"key", "account"}, detail, {})


def find_subject(rule: SubjectRule, facts: Facts) -> str | None:
    """Return the subject that a request belongs to; None if it belongs to none of this limit."""
    model, (end_user, session, tags) = facts
    kind = rule.kind
    if kind == "model":
        matches = rule.models.get(model)
        if matches is None:
            if len(rule.models) >= _MAX_CACHED_MODELS:
                rule.models.clear()
            matches = rule.models[model] = fnmatchcase(model, rule.detail)
        return rule.prefix if matches else None
    name = end_user if kind == "user" else session if kind == "session" else find_tag_value(tags, rule.detail)
    return rule.prefix + name if name else None


def _is_used(book: LimitBook) -> bool:
    return any(balance.users for balance in book.balances.values())
