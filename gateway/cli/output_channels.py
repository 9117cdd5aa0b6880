"""What the command prints for people about channels: how they stand, what a test found, who would serve a call."""

from collections.abc import Sequence
from pathlib import Path

import click

from gateway.cli.output import (
    ABSENT,
    Cells,
    Json,
    clean,
    format_limits,
    format_usd,
    format_value,
    is_narrow,
    print_cells,
    print_fields,
)

_USUAL: tuple[tuple[str, str, object], ...] = (
    (">PRIO", "priority", 0),
    (">WEIGHT", "weight", 1),
    (">RUNNING", "running", 0),
    ("GROUPS", "groups", []),
    (">FIRST", "latency_ms", None),
    (">OK", "success_ratio", None),
)
"""Columns that say something only where a channel is unlike this."""
_FIGURES = frozenset({">FIRST", ">OK"})
"""Columns that a narrow terminal has no room for."""
_GLOB_MARKS = frozenset("*?[")
_TIMEOUTS = ("connect", "first_byte", "idle", "total")
_NONE = "There is no channel."
_MOST_NAMED = 5
_FOUND = frozenset({"environment", "local"})


def print_channels(channels: Sequence[Json]) -> None:
    """A table of channels."""
    hidden = {title for title, field, usual in _USUAL if all(channel[field] == usual for channel in channels)}
    hidden |= _FIGURES if is_narrow() else set()
    cells = [
        {
            "NAME": channel["name"],
            "PROVIDER": channel["provider"],
            "FROM": format_origin(channel),
            "STATE": format_standing(channel),
            ">PRIO": str(channel["priority"]),
            ">WEIGHT": str(channel["weight"]),
            ">RUNNING": str(channel["running"]),
            ">FIRST": f"{channel['latency_ms']['p50']} ms" if channel["latency_ms"] else ABSENT,
            ">OK": _format_ratio(channel),
            "GROUPS": format_value(channel["groups"]),
            ">MODELS": _format_count(channel),
            "ADDRESS": channel["base_url"],
        }
        for channel in channels
    ]
    shown = [{title: text for title, text in cell.items() if title not in hidden} for cell in cells]
    print_cells(shown, _NONE, gap=1 if is_narrow() else 2)


def _format_ratio(channel: Json) -> str:
    """The part of the last calls that was answered. Rounded down: 100 % is all of them."""
    ratio = channel["success_ratio"]
    return ABSENT if ratio is None else f"{round(ratio * 10_000) // 10 / 10:g} %"


def _format_calls(channel: Json) -> str:
    if not channel["calls"]:
        return "none yet"
    return f"{channel['calls']}, {channel['failures']} failed; of the last ones {_format_ratio(channel)} answered"


def _format_latency(channel: Json) -> str:
    figures = channel["latency_ms"]
    return ", ".join(f"{name} {ms} ms" for name, ms in figures.items()) if figures else ABSENT


def format_origin(channel: Json) -> str:
    """Where a channel came from: ``here`` is a channel that was added while the gateway ran."""
    origin: str = channel["origin"]
    return "here" if origin == "stored" else origin


def format_state(state: str, wait_s: float | None, share: float) -> str:
    """``up``, ``up 40 %`` shortly after it was down, ``down 12 s``, ``trial``."""
    if state == "up":
        return "up" if share >= 1 else f"up {share * 100:.0f} %"
    # What has rested is as good as on trial: the next call decides.
    return f"down {wait_s:.0f} s" if state == "down" and wait_s else "trial"


def format_standing(channel: Json) -> str:
    """How a channel stands, and how many of its keys are down: ``up, 1/3 keys down``, ``keys down 27 s``."""
    if channel["status"] != "active":
        return "disabled"
    state = format_state(channel["state"], channel["cooldown_s"], channel["share"])
    keys = channel["keys"]
    if channel["state"] == "up" and (failing := {circuit["model"] for circuit in channel["circuits"]}):
        state += f", {len(failing)} {'model' if len(failing) == 1 else 'models'} failing"
    down = [key["cooldown_s"] for key in keys if key["state"] != "up"]
    if down and len(down) == len(keys) and channel["state"] == "up":
        return _format_all_down(down)  # it is well, and cannot be called
    return f"{state}, {len(down)}/{len(keys)} keys down" if down else state


def _format_all_down(waits_s: Sequence[float | None]) -> str:
    """``key down 27 s``, ``keys down 27 s``: until the first is tried again."""
    wait_s = min(wait_s or 0 for wait_s in waits_s)
    return f"{'key' if len(waits_s) == 1 else 'keys'} {format_state('down', wait_s, 1)}"


def _format_count(channel: Json) -> str:
    """How many models a channel offers; ``+``: and whatever matches its globs."""
    if channel["offers"] is None:
        return "?"
    globs = not channel["sync"] and any(_GLOB_MARKS & set(model) for model in channel["models"])
    return f"{channel['offers']}{'+' if globs else ''}"


def print_channel(channel: Json) -> None:
    """Everything about one channel, a line each."""
    offered = channel.get("offered")
    print_fields(
        {
            "name": channel["name"],
            "provider": channel["provider"],
            "from": format_origin(channel),
            "added": channel["created_at"],
            "address": channel["base_url"],
            "state": _format_reason(format_standing(channel), channel["reason"]),
            **_format_circuits(channel["circuits"]),
            "running": channel["running"],
            "first byte": _format_latency(channel),
            "calls": _format_calls(channel),
            **_format_keys(channel["keys"]),
            "serves": "what the provider lists" if channel["sync"] else format_value(channel["models"]),
            **({"of that only": channel["models"]} if channel["sync"] and channel["models"] else {}),
            "model map": channel["model_map"],
            "offers": _format_count(channel)
            if offered is None
            else f"{_format_count(channel)}: {format_value(offered)}",
            **(_format_sync(channel) if channel["sync"] else {}),
            "groups": channel["groups"],
            "priority": channel["priority"],
            "weight": channel["weight"],
            "limits": format_limits({**channel, "tpm": None}),
            "timeouts": ", ".join(f"{name.replace('_', ' ')} {channel[f'{name}_timeout_s']:g} s" for name in _TIMEOUTS),
            "proxy": channel["has_proxy"],
            "headers": channel["header_names"],
            "price multiplier": channel["price_multiplier"],
            "owned by": channel["owned_by"] or "system",
            "allowed fields": channel["allow_fields"],
        },
    )


def print_given_way(before: Sequence[Json], made: Json) -> None:
    """Which found channels the first that was made has displaced, on standard error: nobody expects that of an add."""
    found = [channel["name"] for channel in before if channel["origin"] in _FOUND and channel["name"] != made["name"]]
    if found:
        text = f"No longer in use, for found channels give way to added ones: {', '.join(found)}. Add what is to stay."
        click.echo(clean(text), err=True)


def _format_keys(keys: Sequence[Json]) -> dict[str, str]:
    """A line a key."""
    if not keys:
        return {"key": "none"}
    return {"key" if len(keys) == 1 else f"key {number}": _format_key(key) for number, key in enumerate(keys, 1)}


def _format_key(key: Json) -> str:
    text = _format_reason(f"…{key['last4']} {format_state(key['state'], key['cooldown_s'], 1)}", key["reason"])
    refused = list(dict.fromkeys(circuit["model"] or "all models" for circuit in key["circuits"]))
    if refused:
        text += f"; refused for {format_some(refused)}"
    limited = key["limited_models"]
    return f"{text}; rate-limited for {format_some(limited)}" if limited else text


def _format_circuits(circuits: Sequence[Json]) -> dict[str, str]:
    """A line for each of the first few models that fail, and for how many more there are."""
    lines = {}
    for number, circuit in enumerate(circuits[:_MOST_NAMED], 1):
        whose = "" if circuit["account"] is None else f" for the account {circuit['account']}"
        state = format_state(circuit["state"], circuit["cooldown_s"], 1)
        what = circuit["model"] or "all models"
        lines[f"failing {number}"] = _format_reason(f"{what}{whose}: {state}", circuit["reason"])
    if len(circuits) > _MOST_NAMED:
        lines["failing"] = f"and {len(circuits) - _MOST_NAMED} more"
    return lines


def _format_reason(text: str, reason: str | None) -> str:
    # What was the matter before a channel came up again is no news.
    return f"{text} ({reason})" if reason and not text.startswith("up") else text


def _format_sync(channel: Json) -> dict[str, str | None]:
    """When the provider was asked, and what came of it."""
    came, went = (format_some(channel[name]) for name in ("came", "went"))
    return {
        "synced": channel["synced_at"],
        "sync error": channel["sync_error"],
        "changed": channel["changed_at"] and f"{channel['changed_at']}: came {came}; went {went}",
    }


def format_some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return format_value(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def print_tests(results: Sequence[Json]) -> None:
    """A table of what the channels' providers answered, with a row of its own for each of several keys."""
    cells = [cell for result in results for cell in _format_test(result)]
    print_cells(cells, _NONE, rare=("KEY",))


def _format_test(result: Json) -> list[Cells]:
    keys = result["keys"]
    rows = [(f"{number}/{len(keys)}", key) for number, key in enumerate(keys, 1)] or [(ABSENT, result)]
    return [
        {
            "CHANNEL": result["name"],
            "KEY": number,
            "RESULT": "ok" if row["ok"] else "failed",
            ">MODELS": format_value(row["models"]),
            "ERROR": row["error"] or "",
        }
        for number, row in rows
    ]


def print_syncs(channels: Sequence[Json]) -> None:
    """A table of channels whose providers have just been asked for their models."""
    cells = []
    for channel in channels:
        fresh = channel["sync_error"] is None and channel["changed_at"] == channel["synced_at"] is not None
        cells.append(
            {
                "CHANNEL": channel["name"],
                "RESULT": "ok" if channel["sync_error"] is None else "failed",
                ">MODELS": _format_count(channel),
                "CAME": format_some(channel["came"]) if fresh else ABSENT,
                "WENT": format_some(channel["went"]) if fresh else ABSENT,
                "ERROR": channel["sync_error"] or ABSENT,
            },
        )
    print_cells(cells, "No channel synchronises its models.", rare=("CAME", "WENT", "ERROR"))


def print_report(report: Json, *, config: Path | None) -> None:
    """What a check found."""
    if report["problems"]:
        click.echo("\n".join(report["problems"]), err=True)
        return
    click.echo(f"The configuration is valid ({config or 'no file: defaults and environment'}).\n")
    print_tests(report["channels"])


def print_explanation(found: Json) -> None:
    """Who would serve a call, and what the caller has left."""
    key = found["key"]
    whom = f"the key {key['id']} ({key['name']}) of the account {key['account']!r}" if key else "anybody"
    click.echo(clean(f"{found['model']!r} as {found['operation']}, for {whom}:") + "\n")
    cells = [_format_line(line, found["model"]) for line in found["channels"]]
    print_cells(cells, _NONE, gap=1 if is_narrow() else 2)
    if found["refused"]:
        click.echo("\n" + clean(f"It would be refused: {found['refused']['message']}"))
    elif not found["served"]:
        click.echo("\nNobody would serve it now.")
    if found["room"]:
        click.echo()
        print_cells([_format_room(*item) for item in found["room"].items()], "", rare=("RESETS",))


def _format_line(line: Json, model: str) -> Cells:
    """The cells of a channel; one that is out of the question has a reason and nothing else."""
    cells = {
        "CHANNEL": line["channel"],
        ">RANK": format_value(line["rank"]),
        ">CHANCE": f"{line['chance'] * 100:.0f} %" if line["chance"] else ABSENT,
    }
    if "state" not in line:
        return {**cells, "STATE": ABSENT, ">PRICE": ABSENT, "LANGUAGE": ABSENT, "REASON": line["reason"]}
    theirs = line["upstream_model"]
    return {
        **cells,
        "STATE": format_state(line["state"], line["wait_s"], line["share"]),
        ">PRICE": format_price(line["price"], line["price_multiplier"]),
        "LANGUAGE": line["language"],
        "REASON": line["reason"] or ("" if theirs == model else f"as {theirs!r}"),
    }


_UNITS = (("image", "an image"), ("second", "a second"), ("million_characters", "a million characters"))


def format_price(price: Json | None, multiplier: float) -> str:
    """What the caller pays for a million tokens in / out: ``$0.25/$2.00``; ``+``: long prompts cost more.

    Of what is not sold by the token, for a picture, a second or a million characters.
    """
    if price is None:
        return ABSENT
    tokens = [price[f"{kind}_usd_per_million"] * multiplier for kind in ("input", "output")]
    if not any(tokens):
        for unit, words in _UNITS:
            if amount := price[f"usd_per_{unit}"]:
                return f"{format_usd(amount * multiplier)} {words}"
    return "/".join(map(format_usd, tokens)) + ("+" if price["tiers"] else "")


def _format_room(whose: str, room: Json) -> Cells:
    return {
        "ROOM OF THE": whose,
        ">LEFT": format_usd(room["left_usd"]) if room["left_usd"] is not None else "any",
        ">HELD": format_usd(room["held_usd"]),
        "RESETS": format_value(room["resets_at"]),
        "LIMITS": format_limits(room),
    }
