"""Forgets end users in memory: running requests, open jobs and balances of limits get another name."""

from collections.abc import Iterable, Iterator

import attrs

from gateway.billing.limits import SpendingLimits
from gateway.domain.limit import parse_charges, rename_charge, rename_charges
from gateway.domain.limit_balance import LimitBook, SubjectBalance
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.errors import Conflict
from gateway.frozen import frozen
from gateway.request_context import RequestContext


@frozen
class UserRenaming:
    """The replacement of an end user's name by a random one.

    Attributes:
        names: the name as it is stored, as text and as hash.
        new_name: the random name.
        account_id: the only account whose user is meant; None: the user of that name in all accounts.
        until_ms: only requests that have started until then are renamed, in Unix milliseconds.
        is_on_node: whether this is a node of a cluster. There, the charges of a job keep the former name: the database
            has set money aside under that name.
    """

    names: frozenset[str]
    new_name: str
    account_id: int | None
    until_ms: int
    is_on_node: bool = False

    def covers(self, account_id: int, end_user: str) -> bool:
        return end_user in self.names and self.account_id in {None, account_id}

    def rename_row(self, row: RequestRecord) -> RequestRecord:
        """Return the row with the new name if it is of this user and started no later than ``until_ms``."""
        if row.started_ms > self.until_ms or not self.covers(row.account_id, row.end_user):
            return row
        charges = row.limit_charges
        if charges and not self.is_on_node:
            charges = rename_charges(charges, self.names, self.new_name)
        return attrs.evolve(row, end_user=self.new_name, limit_charges=charges)

    def check_jobs(self, jobs: Iterable[VideoJob]) -> None:
        """Raise ``Conflict`` if the money of an open job is set aside in the database under this user's name."""
        for job in jobs:
            charges = parse_charges(job.receipt.limit_charges)
            if self.account_id in {None, job.account_id} and any(
                rename_charge(charge, self.names, self.new_name) != charge for charge in charges
            ):
                raise Conflict("Videos of this user are under way under a limit: try again when they have ended")

    def rename_request(self, ctx: RequestContext) -> None:
        """Give a running request the new name if it is of this user."""
        if ctx.attribution.end_user and self.covers(ctx.caller.account.id, ctx.attribution.end_user):
            ctx.attribution = ctx.attribution._replace(end_user=self.new_name)

    def rename_balances(self, spending: SpendingLimits | None) -> None:
        """Give the new name to this user's balances that running requests use, and drop the user's other balances.

        What was spent is read again from the counters. Raises ``Conflict`` if the balance of a running request cannot
        be moved, because other nodes know its name; nothing has changed then.
        """
        own_balances = [
            (book, balance) for book, balance in _list_user_balances(spending) if self._covers_subject(balance.subject)
        ]
        if any(balance.leased and _is_used(balance) for _, balance in own_balances):
            raise Conflict("Requests of this user are running under a limit: try again when they have ended")
        for book, balance in own_balances:
            del book.balances[balance.subject]
            if _is_used(balance):
                balance.subject = f"{balance.subject.partition(':')[0]}:{self.new_name}"
                balance.forget()
                book.balances[balance.subject] = balance

    def reread_balances(self, spending: SpendingLimits | None) -> None:
        """Let the balances under the former and the new names be read again, after counters were renamed."""
        for _, balance in _list_user_balances(spending):
            user = balance.subject.partition(":")[2]
            if user == self.new_name or self._covers_subject(balance.subject):
                balance.forget()

    def _covers_subject(self, subject: str) -> bool:
        account, _, user = subject.partition(":")
        return self.covers(int(account), user)


def _list_user_balances(spending: SpendingLimits | None) -> Iterator[tuple[LimitBook, SubjectBalance]]:
    for book in () if spending is None else spending.list_books():
        if book.limit.kind == "user":
            for balance in tuple(book.balances.values()):
                yield book, balance


def _is_used(balance: SubjectBalance) -> bool:
    return bool(balance.users or balance.held_nanos)
