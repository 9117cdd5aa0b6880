"""Prints routes, the channels of their steps, the results of their tests, and comparisons with shadow models."""

from collections.abc import Sequence

import click

from gateway.cli.output import print_fields
from gateway.cli.output_explain import format_price
from gateway.cli.step_text import format_step
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, Json, format_usd, format_value

ROUTES = (
    Column("ROUTE", "name", shrinks=True, width=12),
    Column("STEPS", lambda route: " → ".join(format_steps(route)), shrinks=True, width=24),
    Column("FROM", lambda route: route["source"] + (" (overridden)" if route["overridden"] else "")),
    Column("ABOUT", "about", hidden_value=ABSENT, shrinks=True, width=12, drop=1),
)
SERVED_MODELS = (
    Column("STEP", "step", align_right=True),
    Column("MODEL", "model", shrinks=True, width=16),
    Column("WEIGHT", "weight", align_right=True, hidden_value="1"),
    Column("CHANNEL", "channel", shrinks=True, width=12),
    Column("PRICE", lambda row: format_price(row["price"], row["price_multiplier"]), align_right=True),
)
TESTS = (
    Column("STEP", "step", align_right=True),
    Column("MODEL", "model", shrinks=True, width=16),
    Column("CHANNEL", "channel", shrinks=True, width=12),
    Column("RESULT", lambda result: "ok" if result["ok"] else f"failed: {result['error']}", shrinks=True, width=24),
    Column("MS", "ms", align_right=True),
)
COMPARISON = (
    Column("MODEL", "model", shrinks=True, width=16),
    Column("", lambda row: "shadow" if row["shadow"] else ""),
    Column("REQUESTS", "requests", align_right=True),
    Column("FAILED", "failures", align_right=True),
    Column("FIRST BYTE", lambda row: _format_mean(row["mean_first_byte_ms"], " ms"), align_right=True),
    Column("DURATION", lambda row: _format_mean(row["mean_total_ms"], " ms"), align_right=True),
    Column("TOKENS OUT", lambda row: _format_mean(row["mean_completion_tokens"], ""), align_right=True),
    Column("COST", lambda row: format_usd(row["cost_usd"]), align_right=True),
    Column("SAME WORDS", lambda row: _format_share(row["mean_agreement"]), align_right=True),
    Column("SAME TEXT", lambda row: _format_count(row, "same_text"), align_right=True, drop=2),
    Column("SAME TOOLS", lambda row: _format_count(row, "same_tools"), align_right=True, drop=3),
    Column("SAME END", lambda row: _format_count(row, "same_finish"), align_right=True, drop=1),
)
_UNSERVED_CHANNEL: Json = {"channel": "none", "price": None, "price_multiplier": 1}


def format_steps(route: Json) -> list[str]:
    """Format the steps of a route, each as one text."""
    return [format_step(step) for step in route["step"]]


def print_routes(routes: Sequence[Json]) -> None:
    """Print a table of routes."""
    print_table(ROUTES, routes, "No routes. Add one with: gateway routes add")


def print_route(route: Json) -> None:
    """Print a route, and the channels that serve each of its steps."""
    fields = {name: route[name] for name in ("name", "about", "source", "max_attempts", "deadline_s", "cache_ttl_s")}
    print_fields({name: value for name, value in fields.items() if value not in {None, ""}})
    for number, step in enumerate(format_steps(route), 1):
        click.echo(f"step {number}  {format_value(step)}")
    click.echo()
    rows = [
        {**served_model, **channel}
        for served_model in route["served"]
        for channel in served_model["channels"] or (_UNSERVED_CHANNEL,)
    ]
    print_table(SERVED_MODELS, rows, "")


def print_comparison(rows: Sequence[Json]) -> None:
    """Print the requests of a route's models beside the copies for its shadow models."""
    print_table(COMPARISON, rows, "No requests.")


def _format_mean(mean: float | None, unit: str) -> str:
    return ABSENT if mean is None else f"{mean:.0f}{unit}"


def _format_share(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"


def _format_count(row: Json, name: str) -> str:
    """Format how many of the compared answers are the same in ``name``."""
    return f"{row[name]} of {row['compared']}" if row["compared"] else ABSENT


def print_tests(results: Sequence[Json]) -> None:
    """Print a table of the results of a route's test: a row for each model of each step."""
    print_table(TESTS, results, "")
