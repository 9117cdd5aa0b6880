"""Prints the routing of a request: steps, candidate channels, prices, and the remaining quotas and limits."""

from collections.abc import Sequence

import click

from gateway.cli.output_channels import format_measurements, format_state
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, Json, clean, format_limits, format_usd, format_value

_UNIT_LABELS = (("image", "per image"), ("second", "per second"), ("million_characters", "per million characters"))


def format_price(price: Json | None, multiplier: float) -> str:
    """Format a price: ``$0.25/$2.00`` per million input and output tokens, or ``$0.04 per image``.

    ``+``: long prompts cost more. ``-``: there is no price.
    """
    if price is None:
        return ABSENT
    tokens = [price[f"{kind}_usd_per_million"] * multiplier for kind in ("input", "output")]
    if not any(tokens):
        for unit, text in _UNIT_LABELS:
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


def _format_models(models: Sequence[Json]) -> str:
    """Format the models of a step, several with their shares of its requests: ``gpt-5-mini 90 %, gpt-5-nano 10 %``."""
    if len(models) == 1:
        return str(models[0]["model"])
    return ", ".join(f"{model['model']} {model['chance'] * 100:.0f} %" for model in models)


def _format_queue(row: Json) -> str:
    """Format a channel's queue: ``2 of 50, 12 s, qwen3``: those that wait, the expected wait, the loaded model."""
    queue = row.get("queue")
    if queue is None:
        return ABSENT
    text = f"{queue['waiting']} of {queue['length']}, {queue['expected_wait_s']:.0f} s"
    return f"{text}, {queue['loaded_model']}" if queue["loaded_model"] else text


def _format_score(row: Json) -> str:
    """Format what a balance compares: ``0.42 s, 97 % ok``; without the share of successes if no attempt failed."""
    score = row.get("score")
    if score is None:
        return ABSENT
    amount, unit = score["amount"], score["unit"]
    if amount is None:
        text = "not measured"
    elif unit == "usd_per_million_tokens":
        text = f"{format_usd(amount)}/M"
    else:
        text = f"{amount:.3g} {'s' if unit == 'seconds' else 's/token'}"
    return text if score["success_share"] == 1 else f"{text}, {score['success_share'] * 100:.0f} % ok"


def _format_places(row: Json) -> str:
    """Format the places of a channel with a queue: ``1/2`` in use."""
    queue = row.get("queue")
    return ABSENT if queue is None else f"{row['running']}/{queue['places']}"


ROUTE_COLUMNS = (
    Column("CHANNEL", "channel", shrinks=True, width=12),
    Column("RANK", "rank", align_right=True),
    Column("CHANCE", lambda row: f"{row['chance'] * 100:.0f} %" if row["chance"] else ABSENT, align_right=True),
    Column("STATE", _format_state, status=True),
    Column("PRICE", _format_price, align_right=True),
    Column(
        "MEASURED",
        lambda row: format_measurements(row.get("measured", ())),
        hidden_value=ABSENT,
        shrinks=True,
        width=16,
    ),
    Column("SCORE", _format_score, hidden_value=ABSENT, align_right=True),
    Column("PLACES", _format_places, hidden_value=ABSENT, align_right=True),
    Column("QUEUE", _format_queue, hidden_value=ABSENT, shrinks=True, width=12),
    Column("FORMAT", lambda row: format_value(row.get("api_format")), drop=1),
    Column("REASON", _format_reason, hidden_value="", shrinks=True, width=16),
)
LEADING_COLUMNS = (Column("STEP", "step", align_right=True), Column("MODEL", "model", shrinks=True, width=12))
"""The columns before those of ``ROUTE_COLUMNS``, for a route."""
STEP_COLUMNS = (
    Column("STEP", "step", align_right=True),
    Column("MODELS", lambda step: _format_models(step["models"]), shrinks=True, width=12),
    Column("VERDICT", "verdict", status=True),
    Column("RESERVED", lambda step: format_usd(step["reserved_usd"]), align_right=True),
    Column("BALANCE", lambda step: step["balance"] or ABSENT, hidden_value=ABSENT),
    Column("ON", lambda step: ", ".join(step["on"]), shrinks=True, width=12, drop=1),
    Column("REASON", lambda step: step["reason"] or "", hidden_value="", shrinks=True, width=16),
)
QUOTA_COLUMNS = (
    Column("REMAINING", "owner"),
    Column(
        "LEFT", lambda room: "unlimited" if room["left_usd"] is None else format_usd(room["left_usd"]), align_right=True
    ),
    Column("HELD", lambda room: format_usd(room["held_usd"]), align_right=True),
    Column("RESETS", "resets_at", hidden_value=ABSENT),
    Column("LIMITS", format_limits, shrinks=True, width=12),
)


def print_explanation(explanation: Json) -> None:
    """Print the steps and channels that may serve a request, and the remaining quotas and limits of its key."""
    click.echo(clean(f"{_format_subject(explanation)}: {_format_verdict(explanation)}") + "\n")
    if explanation["steps"] is not None:
        _print_steps(explanation["steps"])
    else:
        print_table(
            ROUTE_COLUMNS, [{"model": explanation["model"], **row} for row in explanation["channels"]], "No channels."
        )
    if explanation["affinity"]["has_choice"]:
        click.echo("\n" + _format_affinity(explanation["affinity"]))
    if explanation["room"]:
        click.echo()
        print_table(QUOTA_COLUMNS, [{"owner": owner, **room} for owner, room in explanation["room"].items()], "")


def _print_steps(steps: Sequence[Json]) -> None:
    print_table(STEP_COLUMNS, steps, "")
    rows = [
        {"step": step["step"], "model": model["model"], **row}
        for step in steps
        for model in step["models"]
        for row in model["channels"]
    ]
    if rows:
        click.echo()
        print_table((*LEADING_COLUMNS, *ROUTE_COLUMNS), rows, "")


def _format_affinity(affinity: Json) -> str:
    """Format whether a conversation stays on the target that answered it last, and for how long."""
    if affinity["mode"] == "off":
        return 'Conversations are not kept together (routing.affinity = "off").'
    subject = "A conversation" if affinity["mode"] == "auto" else "A conversation that its client names"
    return f"{subject} stays where it was answered last, for {affinity['keeps_s']:g} s after each answer."


def _format_subject(explanation: Json) -> str:
    key = explanation["key"]
    caller = f", key {key['id']} ({key['name']}) of account '{key['account']}'" if key else ""
    return f"{explanation['model']} ({explanation['operation']}){caller}"


def _format_verdict(explanation: Json) -> str:
    if explanation["refused"]:
        return f"no route. {explanation['refused']['message']}"
    if not explanation["served"]:
        return "no route. No channel can serve it now."
    balance = explanation["balance"]
    return "routed as follows." if balance == "weight" else f"routed as follows, balanced by measured {balance}."
