"""Prints the routing of a request: candidate channels, prices, and the remaining quotas and limits."""

from collections.abc import Sequence

import click

from gateway.cli.output_channels import format_state
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, Json, clean, format_limits, format_usd, format_value

_UNITS = (("image", "per image"), ("second", "per second"), ("million_characters", "per million characters"))


def format_price(price: Json | None, multiplier: float) -> str:
    """Format a price: ``$0.25/$2.00`` per million input and output tokens. ``+``: long prompts cost more."""
    if price is None:
        return ABSENT
    tokens = [price[f"{kind}_usd_per_million"] * multiplier for kind in ("input", "output")]
    if not any(tokens):
        for unit, text in _UNITS:
            if amount := price[f"usd_per_{unit}"]:
                return f"{format_usd(amount * multiplier)} {text}"
    return "/".join(map(format_usd, tokens)) + ("+" if price["tiers"] else "")


def _format_state(row: Json) -> str:
    return format_state(row["state"], row["wait_s"], row["share"]) if "state" in row else ABSENT


def _format_price(row: Json) -> str:
    return format_price(row["price"], row["price_multiplier"]) if "state" in row else ABSENT


def _format_reason(row: Json) -> str:
    if row["reason"] or row["upstream_model"] == row["model"]:
        return row["reason"] or ""
    return f"as '{row['upstream_model']}'"


ROUTE = (
    Column("CHANNEL", "channel", shrinks=True, width=12),
    Column("RANK", "rank", right=True),
    Column("CHANCE", lambda row: f"{row['chance'] * 100:.0f} %" if row["chance"] else ABSENT, right=True),
    Column("STATE", _format_state, status=True),
    Column("PRICE", _format_price, right=True),
    Column("FORMAT", lambda row: format_value(row.get("api_format")), drop=1),
    Column("REASON", _format_reason, usual="", shrinks=True, width=16),
)
STEP = (Column("STEP", "step", right=True), Column("MODEL", "model", shrinks=True, width=12))
"""The columns before those of ``ROUTE``, for a route."""
STEPS = (
    Column("STEP", "step", right=True),
    Column("MODELS", lambda step: ", ".join(one["model"] for one in step["models"]), shrinks=True, width=12),
    Column("VERDICT", "verdict", status=True),
    Column("RESERVED", lambda step: format_usd(step["reserved_usd"]), right=True),
    Column("ON", lambda step: ", ".join(step["on"]), shrinks=True, width=12, drop=1),
    Column("REASON", lambda step: step["reason"] or "", usual="", shrinks=True, width=16),
)
ROOM = (
    Column("REMAINING", "owner"),
    Column("LEFT", lambda room: "unlimited" if room["left_usd"] is None else format_usd(room["left_usd"]), right=True),
    Column("HELD", lambda room: format_usd(room["held_usd"]), right=True),
    Column("RESETS", "resets_at", usual=ABSENT),
    Column("LIMITS", format_limits, shrinks=True, width=12),
)


def print_explanation(found: Json) -> None:
    """Print the channels that may serve a request, and the remaining quotas and limits of its key."""
    click.echo(clean(f"{_format_subject(found)}: {_format_verdict(found)}") + "\n")
    if found["steps"] is not None:
        _print_steps(found["steps"])
    else:
        print_table(ROUTE, [{"model": found["model"], **row} for row in found["channels"]], "No channels.")
    if found["room"]:
        click.echo()
        print_table(ROOM, [{"owner": owner, **room} for owner, room in found["room"].items()], "")


def _print_steps(steps: Sequence[Json]) -> None:
    print_table(STEPS, steps, "")
    rows = [
        {"step": step["step"], "model": model["model"], **row}
        for step in steps
        for model in step["models"]
        for row in model["channels"]
    ]
    if rows:
        click.echo()
        print_table((*STEP, *ROUTE), rows, "")


def _format_subject(found: Json) -> str:
    key = found["key"]
    caller = f", key {key['id']} ({key['name']}) of account '{key['account']}'" if key else ""
    return f"{found['model']} ({found['operation']}){caller}"


def _format_verdict(found: Json) -> str:
    if found["refused"]:
        return f"no route. {found['refused']['message']}"
    return "routed as follows." if found["served"] else "no route. No channel can serve it now."
