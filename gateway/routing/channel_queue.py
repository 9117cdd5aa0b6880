"""The queue of one channel: requests that wait until one of the channel's places is free.

Interactive requests go before those of batches. Among the accounts, and among the keys of an account, places are given
in turn. With ``one_model``, requests of the loaded model go first until the oldest request of another model has waited
``switch_after_s``. The models change only when nothing runs.

After a load, the requests that waited for it keep their turn for at most ``switch_after_s`` while others wait. The next
model is the one that has waited longest; after a turn its wait begins anew. So each other model has at most one turn
before a model's own. Whatever arrives, a model waits for at most ``switch_after_s``, one load, and two answers of each
place, times the number of the other models in use.

The queue decides and keeps count. It starts no task and sets no timer: ``ChannelState.grant_places`` asks it for the
next request after each event that may free a place.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from gateway.domain.channel import QueueSettings
from gateway.domain.circuits import EndpointKey
from gateway.domain.rate_limit import compute_reserve

ASSUMED_ANSWER_S = 10.0
"""Assumed time of an answer until the channel has given one."""
_NEWEST_SHARE = 0.2
"""The share of the newest answer in the average time of answers."""
_URGENT_SHARE = 0.5
"""The part of ``wait_s`` after which a line of a batch goes before interactive requests, at most one line per such
period. So batches make slow progress even if the server has more interactive requests than it can answer."""


@attrs.define(eq=False)
class Ticket:
    """One request's wait in one queue.

    Attributes:
        endpoint_key: API format and model, by the provider's name.
        is_batch: the request is a line of a batch, and waits behind all others until it has waited long.
        entered_at: when the request began to wait, in seconds of the queue's clock; a return to the queue keeps it.
        wake: called when the request has got its place, or should look for another channel.
        granted: the request has got its place, which the channel counts as taken.
        dismissed: the request has left the queue without a place.
    """

    endpoint_key: EndpointKey
    account: int
    key: int
    is_batch: bool
    entered_at: float
    wake: Callable[[], None]
    granted: bool = False
    dismissed: bool = False

    @property
    def model(self) -> str:
        return self.endpoint_key[1]


class ChannelQueue:
    """The requests that wait for one channel.

    Args:
        places: the channel's ``max_concurrency``.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, settings: QueueSettings, places: int, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.places = places
        self._clock = clock
        self._paused_until = -math.inf
        self._tickets: list[Ticket] = []
        self._turns: dict[tuple[int, int], None] = {}
        """Accounts and keys with waiting requests; the one that got a place last is at the end."""
        self._model: str | None = None
        self._model_since = self._line_granted_at = clock()
        self._answered_since: float | None = None
        """When the loaded model gave its first answer, with which its turn begins; None before."""
        self._turn_ends: dict[str, float] = {}
        """When the turns of other models ended; kept while a request waits that already waited then."""
        self._answer_s: float | None = None
        self._changed_at = clock()

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def loaded_model(self) -> str | None:
        """The model that the server holds; None if it may hold several, or none was requested yet."""
        return self._model if self.settings.one_model else None

    @property
    def tickets(self) -> Sequence[Ticket]:
        return tuple(self._tickets)

    def has_room(self, *, is_batch: bool) -> bool:
        """Return whether another request may wait. Requests of batches make room for interactive ones."""
        if len(self._tickets) < self.settings.length:
            return True
        return not is_batch and any(ticket.is_batch for ticket in self._tickets)

    def enter(self, ticket: Ticket) -> bool:
        """Add a request; return False if the queue is full. To make room, it may dismiss the newest one of a batch."""
        if not self.has_room(is_batch=ticket.is_batch):
            return False
        if len(self._tickets) >= self.settings.length:
            self.dismiss([next(queued_ticket for queued_ticket in reversed(self._tickets) if queued_ticket.is_batch)])
        index = len(self._tickets)
        while index and self._tickets[index - 1].entered_at > ticket.entered_at:
            index -= 1
        self._tickets.insert(index, ticket)
        self._turns.setdefault((ticket.account, ticket.key))
        return True

    def leave(self, ticket: Ticket) -> None:
        """Remove a request that waits. Nothing happens if it does not wait any more."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._drop_turn(ticket)

    def dismiss(self, tickets: Iterable[Ticket]) -> None:
        """Send ``tickets`` away without a place: they look for another channel, or enter again."""
        for ticket in list(tickets):
            self.leave(ticket)
            ticket.dismissed = True
            ticket.wake()

    def may_start(self, model: str, running: int, *, is_batch: bool = False) -> bool:
        """Return whether a request that does not wait yet may have a place now.

        ``running`` is the number of places in use.
        """
        if self._is_shut(running, is_batch=is_batch) or not self._may_load(model, running):
            return False
        line = self._find_urgent_line()
        tickets_ahead = [ticket for ticket in self._tickets if is_batch or not ticket.is_batch or ticket is line]
        if not tickets_ahead:
            return True
        if is_batch or not self.settings.one_model:
            return False
        # Those who wait need another model, which is not loaded before its turn.
        return self._find_overdue(tickets_ahead) is None and all(ticket.model != model for ticket in tickets_ahead)

    def take_next(self, running: int) -> Ticket | None:
        """Remove the next request from the queue and return it with its place granted.

        None if no request may have a place.
        """
        ticket = next(self._order(self._tickets), None)
        if ticket is None:
            return None
        is_batch = ticket.is_batch and ticket is not self._find_urgent_line()
        if self._is_shut(running, is_batch=is_batch):
            return None
        if not self._may_load(ticket.model, running):
            return None
        self._tickets.remove(ticket)
        turn = ticket.account, ticket.key
        for key in [
            waiting_key for waiting_key in self._turns if waiting_key[0] == ticket.account and waiting_key != turn
        ]:
            self._turns[key] = self._turns.pop(key)  # the whole account goes to the end, this key behind its others
        del self._turns[turn]
        self._turns[turn] = None
        self._drop_turn(ticket)
        ticket.granted = True
        if ticket.is_batch:
            self._line_granted_at = self._clock()
        self.note_started(ticket.model)
        return ticket

    def pause(self, pause_s: float) -> None:
        """Give no place for ``pause_s``: the gateways share the channel's places, and others use them all."""
        self._paused_until = self._clock() + pause_s

    def note_started(self, model: str) -> None:
        """Record that a request takes a place now."""
        self._changed_at = now = self._clock()
        if model == self._model:
            return
        oldest_at = self._tickets[0].entered_at if self._tickets else math.inf
        self._turn_ends = {name: ended_at for name, ended_at in self._turn_ends.items() if ended_at >= oldest_at}
        if self._model is not None and self._tickets:
            self._turn_ends[self._model] = now
        self._model, self._model_since, self._answered_since = model, now, None

    def note_ended(self, answer_s: float) -> None:
        """Record that a place is free again after ``answer_s`` seconds."""
        self._changed_at = self._clock()
        if self._answered_since is None:
            self._answered_since = self._changed_at
        before = answer_s if self._answer_s is None else self._answer_s
        self._answer_s = before + _NEWEST_SHARE * (answer_s - before)

    def find_place(self, ticket: Ticket) -> int:
        """Return the number of a request in the order in which places will be given, from 1."""
        return next(
            number for number, queued_ticket in enumerate(self._order(self._tickets), 1) if queued_ticket is ticket
        )

    def estimate_wait_s(self, ticket: Ticket | None = None) -> float:
        """Return the expected wait in seconds of a request, ``ticket``, that would enter the queue now.

        Without a ticket, the request is an interactive one behind all other interactive ones.
        """
        if ticket is None:
            count_ahead = sum(not queued_ticket.is_batch for queued_ticket in self._tickets)
        else:
            tickets = sorted([*self._tickets, ticket], key=lambda queued_ticket: queued_ticket.entered_at)
            count_ahead = next(
                number for number, queued_ticket in enumerate(self._order(tickets)) if queued_ticket is ticket
            )
        answer_s = ASSUMED_ANSWER_S if self._answer_s is None else self._answer_s
        # Longer than usual without a change: the answers that run now are longer ones.
        return (count_ahead + 1) * max(answer_s, self._clock() - self._changed_at) / self.places

    def _is_shut(self, running: int, *, is_batch: bool) -> bool:
        places = self.places - compute_reserve(self.places) if is_batch else self.places
        return running >= places or self._clock() < self._paused_until

    def _may_load(self, model: str, running: int) -> bool:
        """Return whether a request of ``model`` may start: the models change only while nothing runs."""
        return not self.settings.one_model or model == self._model or not running

    def _drop_turn(self, ticket: Ticket) -> None:
        if not any(
            queued_ticket.account == ticket.account and queued_ticket.key == ticket.key
            for queued_ticket in self._tickets
        ):
            del self._turns[ticket.account, ticket.key]

    def _find_overdue(self, tickets: Sequence[Ticket]) -> Ticket | None:
        """Return the oldest request of another model than the loaded one if it has waited long enough; else None."""
        oldest = next((ticket for ticket in tickets if ticket.model != self._model), None)
        is_overdue = oldest is not None and self._clock() - oldest.entered_at >= self.settings.switch_after_s
        return oldest if is_overdue and self.settings.one_model else None

    def _find_urgent_line(self) -> Ticket | None:
        """Return the oldest line of a batch if it has waited long and no line got a place meanwhile; else None."""
        line = next((ticket for ticket in self._tickets if ticket.is_batch), None)
        urgent_after_s = _URGENT_SHARE * self.settings.wait_s
        is_urgent = line is not None and self._clock() - max(line.entered_at, self._line_granted_at) >= urgent_after_s
        return line if is_urgent else None

    def _order(self, tickets: Sequence[Ticket]) -> Iterator[Ticket]:
        """Yield ``tickets``, which are sorted by their entry, in the order in which they get places."""
        line = self._find_urgent_line()
        for is_batch in (False, True):
            group = [ticket for ticket in tickets if (ticket.is_batch and ticket is not line) is is_batch]
            for model_tickets in self._group(group) if self.settings.one_model else [group]:
                yield from self._take_turns(model_tickets)

    def _group(self, tickets: Sequence[Ticket]) -> list[list[Ticket]]:
        """Divide ``tickets`` by their models, in the order in which the models should be loaded.

        Once another model is overdue, the loaded model serves only those of its requests that waited when it was
        loaded, and only until its turn ends. Its other requests come last.
        """
        tickets_by_model: dict[str, list[Ticket]] = {}
        for ticket in tickets:
            tickets_by_model.setdefault(ticket.model, []).append(ticket)
        model_tickets = tickets_by_model.pop(self._model or "", [])
        others = sorted(tickets_by_model.values(), key=lambda group: self._find_waiting_since(group[0]))
        if self._find_overdue(tickets) is None:
            return [model_tickets, *others]
        since, turn_s = self._answered_since, self.settings.switch_after_s
        has_turn = since is None or self._clock() - since < turn_s  # while the model is loaded, its turn has not begun
        turn = [ticket for ticket in model_tickets if has_turn and ticket.entered_at <= self._model_since]
        return [turn, *others, [ticket for ticket in model_tickets if ticket not in turn]]

    def _find_waiting_since(self, oldest: Ticket) -> float:
        """Return since when the model of ``oldest``, its oldest request, has waited for its turn."""
        return max(oldest.entered_at, self._turn_ends.get(oldest.model, -math.inf))

    def _take_turns(self, tickets: Sequence[Ticket]) -> Iterator[Ticket]:
        """Yield one request of each account in turn; an account's keys take turns, too."""
        accounts: dict[int, dict[int, list[Ticket]]] = {}
        for account, key in self._turns:
            accounts.setdefault(account, {})[key] = []
        for ticket in tickets:
            accounts.setdefault(ticket.account, {}).setdefault(ticket.key, []).append(ticket)
        while accounts:
            for account, keys in list(accounts.items()):
                while keys:
                    key = next(iter(keys))
                    key_tickets = keys.pop(key)
                    if key_tickets:
                        yield key_tickets[0]
                        if key_tickets[1:]:
                            keys[key] = key_tickets[1:]
                        break
                if not keys:
                    del accounts[account]
