"""Collects the conditions of all services for ``AlertWatcher``."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

import attrs

from gateway.alerts.conditions import (
    check_certificate,
    find_bodies_problem,
    find_budgets,
    find_channels,
    find_expiring_keys,
    find_sinks_behind,
    find_store_problem,
    find_store_replacement,
    find_unpriced_models,
)
from gateway.alerts.limit_watch import LimitWatch
from gateway.alerts.spending import OwnerId, SpendingWatch
from gateway.auth.accounts import AccountService
from gateway.billing.accounting import AccountingService
from gateway.config.certificate import ServerCertificate
from gateway.domain.account import Account, ApiKey
from gateway.domain.alert import Findings, Subject
from gateway.domain.audit_log import OPERATOR
from gateway.domain.balance import Balance, Owner
from gateway.domain.forecast import LimitUse, measure_limit
from gateway.domain.lost_change import ReplacedStore
from gateway.domain.sink import SinkState
from gateway.errors import StoreUnavailable
from gateway.routing.load_balancer import LoadBalancer

KEYS_READ_INTERVAL_S = 60.0
"""Keys and accounts are read from the database only this often: there may be thousands."""
_STORE_SUBJECT: Subject = ("store_not_writable", "")


@attrs.define(eq=False)
class AlertConditions:
    """Checks everything that alerts can report.

    Attributes:
        list_unpriced_models: returns the models without a price that were recently requested.
        check_store: raises ``StoreUnavailable`` if nothing can be stored.
        read_bodies_problem: returns why bodies of requests cannot be kept at the moment; empty if they can.
        read_replaced: returns the last replacement of the store; None for a single gateway.
        read_sinks: returns how far the sinks are; None if no sink is configured.
        spending: compares the hourly sums with quotas and with earlier days.
        limits: compares what subjects of limits have spent with the limits.
        leads: returns whether to check conditions that are not specific to this process.
    """

    accounting: AccountingService
    load_balancer: LoadBalancer
    accounts: AccountService
    certificate: ServerCertificate | None
    list_unpriced_models: Callable[[], Iterable[str]]
    check_store: Callable[[], Awaitable[None]]
    clock: Callable[[], float]
    spending: SpendingWatch
    limits: LimitWatch
    read_bodies_problem: Callable[[], str]
    read_replaced: Callable[[], Awaitable[ReplacedStore]] | None = None
    read_sinks: Callable[[], Awaitable[Sequence[SinkState]]] | None = None
    leads: Callable[[], bool] = lambda: True
    _last_replacement: ReplacedStore = attrs.Factory(ReplacedStore)
    _keys: tuple[ApiKey, ...] = ()
    _owners: tuple[Account, ...] = ()
    _sinks: Sequence[SinkState] = ()
    _names: dict[int, str] = attrs.Factory(dict)
    _keys_read_s: float = float("-inf")

    async def collect(self) -> Findings:
        now_s = self.clock()
        problem = await self._find_store_problem()
        certificate = None if self.certificate is None else self.certificate.current
        bodies_conditions = find_bodies_problem(self.read_bodies_problem())
        own_conditions = (*find_store_problem(problem), *check_certificate(certificate, now_s), *bodies_conditions)
        if not self.leads():
            return Findings(own_conditions, well=frozenset() if problem else frozenset({_STORE_SUBJECT}), own=True)
        if problem is None:
            await self._read_keys(now_s)
            await self._read_budgets()
            await self._read_store_replacement()
            await self._read_sinks()
        channel_findings = find_channels(self.load_balancer)
        spending_findings = await self.spending.check(partial(self._list_limits, now_s), self._name_spenders)
        limit_findings = await self.limits.check(self._name_spenders)
        conditions = chain(
            own_conditions,
            channel_findings.conditions,
            find_budgets(self.accounting, self._name_owners(), self.accounting.day_at(now_s)),
            find_unpriced_models(self.list_unpriced_models()),
            find_store_replacement(self._last_replacement, now_s),
            find_expiring_keys(self._keys, self._names, now_s),
            find_sinks_behind(self._sinks, now_s),
            spending_findings.conditions,
            limit_findings.conditions,
        )
        healthy = channel_findings.well if problem else channel_findings.well | {_STORE_SUBJECT}
        unknown_subjects = channel_findings.unknown | spending_findings.unknown | limit_findings.unknown
        return Findings(tuple(conditions), unknown_subjects, healthy)

    async def _find_store_problem(self) -> str | None:
        try:
            await self.check_store()
        except StoreUnavailable as error:
            return error.message
        return None

    async def _read_keys(self, now_s: float) -> None:
        if abs(now_s - self._keys_read_s) < KEYS_READ_INTERVAL_S:
            return
        try:
            self._keys = tuple(await self.accounts.register.keys.list_keys())
            self._owners = tuple(await self.accounts.register.list_accounts(OPERATOR))
            self._names = {account.id: account.name for account in self._owners}
        except StoreUnavailable:
            return  # the next collection reports the problem
        self._keys_read_s = now_s

    async def _read_budgets(self) -> None:
        """Read the spending of keys and accounts with a quota, on other nodes as well.

        If that fails, the last figures are used.
        """
        with suppress(StoreUnavailable):
            owners: tuple[Account | ApiKey, ...] = (*self._keys, *self._owners)
            await self.accounting.refresh(*(owner for owner in owners if owner.quota.capped))

    async def _read_store_replacement(self) -> None:
        if self.read_replaced is not None:
            with suppress(StoreUnavailable):
                self._last_replacement = await self.read_replaced()

    async def _read_sinks(self) -> None:
        if self.read_sinks is not None:
            with suppress(StoreUnavailable):
                self._sinks = await self.read_sinks()

    def _name_owners(self) -> dict[tuple[Owner, int], str]:
        names: dict[tuple[Owner, int], str] = {("account", number): name for number, name in self._names.items()}
        for key in self._keys:
            names["key", key.id] = f"{self._names.get(key.account_id, key.account_id)}/{key.name}"
        return names

    def _name_spenders(self) -> dict[OwnerId, str]:
        """Return the names of the keys and accounts that exist: ``key acme/app``, ``account acme``."""
        names: dict[OwnerId, str] = {(number, None): f"account {name}" for number, name in self._names.items()}
        for key in self._keys:
            names[key.account_id, key.id] = f"key {self._names.get(key.account_id, key.account_id)}/{key.name}"
        return names

    def _list_limits(self, now_s: float) -> Iterator[LimitUse]:
        """Yield how much of their quotas the keys and accounts have spent; those without a quota are left out."""
        names, day, unspent = self._name_owners(), self.accounting.day_at(now_s), Balance("key")
        owners_by_kind: tuple[tuple[Owner, Sequence[Account | ApiKey]], ...] = (
            ("account", self._owners),
            ("key", self._keys),
        )
        for kind, owners in owners_by_kind:
            balances = dict(self.accounting.list_balances(kind))
            for owner in owners:
                name = f"{kind} {names[kind, owner.id]}"
                limit_use = measure_limit(name, owner, balances.get(owner.id, unspent), day)
                if limit_use is not None:
                    yield limit_use
