"""Tests channels: lists the provider's models, which is free, and sends a real request of one token if wanted.

Records the outcome and the time of the answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from gateway.answer_fields import Count
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import InvalidRequest, ProviderAuthError, ProviderError, ProviderRejected
from gateway.frozen import frozen
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import KeyState, LastError, TestResult
from gateway.routing.load_balancer import LoadBalancer

if TYPE_CHECKING:  # imported when a channel is tested with a chat
    from gateway.routing.chat_request import SendChat

Fetch = Callable[[Channel], Awaitable[Sequence[ModelInfo]]]
"""Lists the models of a channel's provider. Raises ``ProviderError``."""

_NO_LIST = frozenset({404, 405})
"""HTTP statuses of a server that has no model list, or has it at another path."""
_MIN_SHOWN_KEY_CHARS = 16
"""The minimum length of a key whose last four characters may be shown."""


@frozen
class Answer:
    """A provider's answer: its models, or the error. If ``requested`` is False, the channel could not be tested."""

    listing: Sequence[ModelInfo] | None = None
    error: ProviderError | None = None
    took_ms: int = 0
    requested: bool = True

    @property
    def passes(self) -> bool:
        """Whether the channel may get requests: its test succeeded, or was not possible."""
        return self.error is None or not self.requested


@frozen
class RequestTestResult:
    """The result of one real request. ``ms`` is None if it failed."""

    model: str
    ok: bool
    error: str | None
    ms: Count | None


@frozen
class KeyTestResult:
    """The result of listing the models with one key of a channel."""

    last4: str
    ok: bool
    error: str | None
    models: Count | None


@frozen
class ChannelTestResult:
    """The result of a channel's test. ``keys`` is empty for a channel with one key."""

    name: str
    ok: bool
    error: str | None
    models: Count | None
    request: RequestTestResult | None
    keys: Sequence[KeyTestResult]


class ChannelTester:
    """Tests channels, and records the results in their live states."""

    def __init__(self, load_balancer: LoadBalancer, fetch: Fetch, send: "SendChat", clock: Callable[[], float]) -> None:
        self.load_balancer = load_balancer
        self._fetch = fetch
        self._send = send
        self._clock = clock

    async def ask(self, channel: Channel) -> Answer:
        """Ask a channel's provider for its models.

        If the provider has no list, only a synchronized channel fails, or one whose address lacks ``/v1``.
        """
        if PROVIDERS[channel.provider].models_path is None and not channel.sync:
            return Answer(requested=False)
        began = time.perf_counter()
        try:
            listing = await self._fetch(channel)
        except ProviderError as error:
            took_ms = _count_ms(began)
            if error.phase == "connect":  # error messages leave out the address, but administrators may see it
                error.message += f" ({urlsplit(channel.base_url).netloc.rpartition('@')[2]})"
            if not isinstance(error, ProviderRejected) or error.status not in _NO_LIST:
                return Answer(error=error, took_ms=took_ms)
            if await self._answers_below_v1(channel):
                error.message += f"; the address lacks its version: use {channel.base_url}/v1"
            elif not channel.sync:
                return Answer(error=error, took_ms=took_ms, requested=False)
            return Answer(error=error, took_ms=took_ms)
        return Answer(listing, took_ms=_count_ms(began))

    async def ask_chat(
        self, channel: Channel, answer: Answer, model: str | None = None
    ) -> tuple[Answer, RequestTestResult]:
        """Send a real request of one token to ``model`` or to any of the channel's; return its outcome and a report.

        Raises ``InvalidRequest`` if the channel has no model with a chat.
        """
        from gateway.routing.chat_request import find_chat_model  # noqa: PLC0415 - as above

        tested_model = model or find_chat_model(channel, [model_info.id for model_info in answer.listing or ()])
        if tested_model is None:
            raise InvalidRequest("The channel has no model for a chat request; name one", param="model")
        error: ProviderError | None = None
        took_ms = 0
        try:
            took_ms = await self._send(channel, tested_model)
        except ProviderError as fault:
            error = fault
        chat_answer = Answer(answer.listing, error, took_ms)
        return chat_answer, RequestTestResult(
            tested_model, error is None, _read_error(chat_answer), took_ms if error is None else None
        )

    async def _answers_below_v1(self, channel: Channel) -> bool:
        """Return whether the model list is at ``/v1`` below the channel's address."""
        if channel.base_url.endswith("/v1"):
            return False
        try:
            await self._fetch(attrs.evolve(channel, base_url=f"{channel.base_url}/v1"))
        except ProviderAuthError:
            return True
        except ProviderError:
            return False
        return True

    def record(self, channel: Channel, answer: Answer, by_key: Sequence[Answer] = ()) -> None:
        """Record a test's result. ``by_key``: the answer for each key; empty if only the first key was tested."""
        state = self.load_balancer.channels.get(channel.name)
        if not answer.requested or state is None:
            return
        state.test = TestResult(int(self._clock()), answer.took_ms, _read_error(answer), state.calls - state.failures)
        if answer.error is not None:
            state.last_error = LastError(answer.error.message, state.test.at_s)
        for key, key_answer in zip(state.keys, by_key or (answer,), strict=False):
            self.record_key(key, key_answer)

    def record_key(self, key: KeyState, answer: Answer) -> None:
        """Record a test's result for one key."""
        key.test_error, key.test_refused = _read_error(answer), isinstance(answer.error, ProviderAuthError)
        if answer.error is not None:
            key.last_error = LastError(answer.error.message, int(self._clock()))

    async def test(self, channel: Channel, *, request: bool = False, model: str | None = None) -> ChannelTestResult:
        """List the provider's models with every key of a channel, and record the results.

        A provider without a model list cannot be tested for free, so its channel passes. With ``request``, and unless a
        key failed, one real request is sent, too; its outcome is then the channel's. Raises ``InvalidRequest`` if there
        is no model for that request.
        """
        keys = channel.usable_keys or ("",)
        answers = await asyncio.gather(
            *(self.ask(attrs.evolve(channel, api_keys=(key,) if key else ())) for key in keys)
        )
        failed_answers = [answer for answer in answers if answer.error is not None]
        reported_answer, chat_report = (failed_answers or answers)[0], None
        if request and (not failed_answers or not reported_answer.requested):
            reported_answer, chat_report = await self.ask_chat(channel, answers[0], model)
        passing_answer = next((answer for answer in answers if answer.passes), reported_answer)
        self.record(
            channel, reported_answer if chat_report else passing_answer, answers
        )  # one working key is enough for the channel
        results = [
            KeyTestResult(format_last4(key), answer.passes, _read_error(answer), _count_models(answer))
            for key, answer in zip(keys, answers, strict=True)
        ]
        models = next((result.models for result in results if result.models is not None), None)
        listed_results = results if len(results) > 1 else []
        return ChannelTestResult(
            channel.name, reported_answer.passes, _read_error(reported_answer), models, chat_report, listed_results
        )


def format_last4(key: str) -> str:
    """Return the last four characters of a key; an empty string for a short key."""
    return key[-4:] if len(key) >= _MIN_SHOWN_KEY_CHARS else ""


def _count_models(answer: Answer) -> int | None:
    return None if answer.listing is None else len(answer.listing)


def _read_error(answer: Answer) -> str | None:
    return None if answer.error is None else answer.error.message


def _count_ms(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
