"""Runs coding agents over a route of three models at providers of three API formats; two of these fail on the way.

The task has ten turns. OpenAI answers 429 from the third on, Anthropic 402 from the sixth on, and Google ends the task.
The agent must end right and show no error. Then the rows of the requests tell the model, the steps, the causes and the
cost of each turn, and the books of the gateway agree with the rows.
"""

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import attrs

from gateway.domain.request_log import NO_CHANNEL, FailedAttempt, RequestRecord, parse_attempts
from scripts.client_runs.agents import AgentProgram, TaskResult, run_agent
from scripts.client_runs.environments import Missing
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess, ask_chat, open_caller
from tests.support.providers import Fails, Heard, Says
from tests.support.strict_providers import chat_vendors, own_formats
from tests.support.strict_providers.agent_task import FINISHED, LONG_TASK, NOT_FOUND, Agent, find_turn, write_turn

CHAIN = "OpenAI, Anthropic, Google"
TURNS = len(LONG_TASK) + 1
"""The last turn is a text."""
_ROUTES = {True: "gpt-5.5", False: "chain"}
"""The names of the route, by whether Codex knows a model of that name."""
_RATES = ("input_usd_per_million", "cached_input_usd_per_million", "output_usd_per_million")
_ERROR_WORDS = ("429", "402", "rate limit", "Rate limit", "no credit", "econnecting", "etrying", "API Error")
"""What an agent would show of an error, or of an attempt of its own to repeat a request."""


class Chained(Agent):
    """One of three providers of the task. From turn ``fails_from`` on it answers ``failure`` to every request."""

    fails_from: ClassVar[int] = TURNS + 1
    failure: ClassVar[Fails] = Fails(500, "This provider does not fail")
    rates: ClassVar[tuple[int, int, int]]
    """USD per million tokens: of the prompt, of its cached part, of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.is_failing = False

    def give(self) -> Says | Fails:
        heard: Heard = self.heard[-1]
        turn = find_turn(heard, LONG_TASK)
        self.is_failing |= turn is not None and turn >= self.fails_from
        return self.failure if self.is_failing else write_turn(heard, LONG_TASK)

    def find_cost(self, row: RequestRecord) -> int:
        """Return the cost of a row in nano-USD: a USD per million tokens is 1,000 nano-USD per token."""
        prompt, cached, completion = (1_000 * rate for rate in self.rates)
        fresh_tokens = row.prompt_tokens - row.cached_tokens
        return fresh_tokens * prompt + row.cached_tokens * cached + row.completion_tokens * completion


class LimitedOpenAI(Chained, chat_vendors.OpenAI):
    """Reaches its rate limit in the third turn."""

    fails_from = 3
    failure = Fails(429, "Rate limit reached for requests", headers={"retry-after": "600"})
    rates = (2, 1, 8)


class PoorAnthropic(Chained, own_formats.Anthropic):
    """Has no credit left in the sixth turn."""

    fails_from = 6
    failure = Fails(402, "Your credit balance is too low to access the Anthropic API.")
    rates = (5, 1, 25)


class LastGemini(Chained, own_formats.Gemini):
    """Answers to the end."""

    rates = (1, 0, 4)


async def run_chains(agents: list[AgentProgram], *, verbose: bool) -> list[TaskResult]:
    """Let each agent do the task, with providers and a gateway of its own."""
    return [await _run_chain(agent, verbose=verbose) for agent in agents]


async def _run_chain(agent: AgentProgram, *, verbose: bool) -> TaskResult:
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(kind()) for kind in (LimitedOpenAI, PoorAnthropic, LastGemini)]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway = await stack.enter_async_context(GatewayProcess(folder / "data", _write_tables(providers)))
        route = _ROUTES[agent.known]
        try:
            outcome = await run_agent(agent, gateway.url, route, folder / agent.environment)
        except Missing as missing:
            return TaskResult(agent.name, CHAIN, str(missing), skipped=True)
        refusals = tuple(one for up in providers for one in up.refusals if one != NOT_FOUND)
        outcome = attrs.evolve(outcome, refusals=refusals)
        error = outcome.find_fault() or _find_shown_error(outcome.text)
        error = error or await _check_headers(gateway, route) or await _check_rows(gateway, route, providers)
        if error and verbose:
            rows, _ = await gateway.read_rows()
            served = [f"{row.channel}: {row.tried}" for row in rows]
            error += "\n".join(["", outcome.text, *served])
        return TaskResult(agent.name, CHAIN, error)


def _write_tables(providers: list[Chained]) -> dict[str, Any]:
    """Return a configuration with a channel and a price for each provider, and the route under both names."""
    steps = [{"models": [up.model]} for up in providers]
    return {
        "channel": [up.channel(up.slug, models=[up.model], model_map={}) for up in providers],
        "price": [dict(zip(_RATES, up.rates, strict=True)) | {"model": up.model} for up in providers],
        "route": [{"name": name, "step": steps} for name in _ROUTES.values()],
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY}],
    }


def _find_shown_error(text: str) -> str:
    """Return a fault if the agent has shown an error to its user; empty if not."""
    shown = next((word for word in _ERROR_WORDS if word in text), None)
    return "" if shown is None else f"the user sees {shown!r}: {text[-600:]!r}"


async def _check_headers(gateway: GatewayProcess, route: str) -> str:
    """Ask the route once. Return a fault unless a header tells the step, and the body only the model."""
    body = {"model": route, "messages": [{"role": "user", "content": "Hello"}]}
    async with open_caller() as caller, ask_chat(caller, gateway.url, body) as response:
        answer = await response.json()
        headers_sent = response.status, response.headers.get("x-gateway-route"), response.headers.get("x-gateway-step")
    if headers_sent != (200, route, "3"):
        return f"status, route and step: {headers_sent}"
    return "" if answer["choices"][0]["message"]["content"] == FINISHED else f"the answer: {answer}"


async def _check_rows(gateway: GatewayProcess, route: str, providers: list[Chained]) -> str:
    """Return what is not right in the rows of the requests; empty if all is."""
    rows, _ = await gateway.read_rows()
    await gateway.check_books()
    await gateway.check_traffic(rows)
    answered: list[int] = []
    causes: set[tuple[int, str]] = set()
    for row in rows:
        attempts = parse_attempts(row.tried)
        fault = _find_row_fault(row, attempts, route, providers)
        if fault:
            return f"{fault}: {row}"
        answered.append(attempts[-1].step)
        causes |= {(attempt.step, attempt.cause) for attempt in attempts[:-1] if attempt.channel != NO_CHANNEL}
    if sorted(answered) != answered or set(answered) != {1, 2, 3}:
        return f"the steps that answered: {answered}"
    # The first provider is asked for its Responses API, which it does not have, before its chats.
    if causes - {(1, "unsupported")} != {(1, "rate_limited"), (2, "credit")}:
        return f"the causes: {causes}"
    turns = [len({turn for heard in up.heard if (turn := find_turn(heard, LONG_TASK)) is not None}) for up in providers]
    # The turn in which a provider fails is heard by it and by the next one.
    return "" if turns == [3, 4, 5] else f"turns that the providers have heard: {turns}"


def _find_row_fault(
    row: RequestRecord, attempts: tuple[FailedAttempt, ...], route: str, providers: list[Chained]
) -> str:
    """Return what is not right in one row: the outcome, the model that answered, or the cost."""
    if row.outcome != "completed" or row.status != 200:
        return f"{row.outcome}, {row.status}"
    last = attempts[-1]
    provider = providers[last.step - 1]
    served = row.model, row.route, row.served_model, row.channel, last.model, last.code
    if served != (route, route, provider.model, provider.slug, provider.model, "ok"):
        return f"who answered: {served}"
    if row.cost_nanos != provider.find_cost(row) or not row.cost_nanos:
        return f"the cost is {row.cost_nanos} and should be {provider.find_cost(row)}"
    return ""
