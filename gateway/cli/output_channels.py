"""Prints channels: a table, all fields of one, results of tests and synchronizations, and of ``gateway check``."""

from collections.abc import Sequence
from pathlib import Path

import click

from gateway.cli.output import print_fields, print_unpriced_models
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, Json, clean, format_limits, format_some, format_usd, format_value

_TIMEOUTS = ("connect", "first_byte", "idle", "total")
_CHANNELS_HINT = "No channels. Add one: gateway channels add PROVIDER"
_MAX_CIRCUITS = 5
_DISCOVERED_ORIGINS = frozenset({"environment", "local"})


def format_state(state: str, wait_s: float | None, share: float) -> str:
    """Format the state of a circuit breaker: ``healthy``, ``recovering 40 %``, ``cooling down 12 s``.

    ``wait_s``: the seconds until the next trial. ``share``: the share of the usual requests that the channel gets.
    """
    if state == "closed":
        return "healthy" if share >= 1 else f"recovering {share * 100:.0f} %"
    # After the cooldown, the next request is the trial, so the channel counts as recovering.
    return f"cooling down {wait_s:.0f} s" if state == "open" and wait_s else "recovering"


def format_health(channel: Json) -> str:
    """Format the health of a channel: ``healthy, 1/3 keys failing`` or ``healthy, 54 % answered``."""
    health = channel["health"]
    if health == "disabled":
        return "disabled"
    if health == "draining":
        return f"draining, {channel['running']} running"
    text = format_state(channel["state"], channel["cooldown_s"], channel["share"])
    if health in {"untested", "failing"}:
        text = health
    elif health == "healthy" and channel["health_reason"]:
        text += f", {_format_ratio(channel)} answered"
    if channel["state"] == "closed" and (failing_models := {circuit["model"] for circuit in channel["circuits"]}):
        text += f", {len(failing_models)} {'model' if len(failing_models) == 1 else 'models'} failing"
    keys = channel["keys"]
    failing_count = sum(1 for key in keys if key["state"] != "closed")
    disabled_count = sum(1 for key in keys if key.get("status") == "disabled")
    noun = "key" if len(keys) == 1 else "keys"
    if failing_count:
        text += f", {failing_count}/{len(keys)} {noun} failing"
    return f"{text}, {disabled_count}/{len(keys)} {noun} disabled" if disabled_count else text


def _format_origin(channel: Json) -> str:
    origin: str = channel["origin"]
    return "here" if origin == "stored" else origin


def _format_ratio(channel: Json) -> str:
    """Format the success rate of the last calls, rounded down: 100 % means no failures."""
    ratio = channel["success_ratio"]
    return ABSENT if ratio is None else f"{round(ratio * 10_000) // 10 / 10:g} %"


def _format_first_byte(channel: Json) -> str:
    return f"{channel['latency_ms']['p50']} ms" if channel["latency_ms"] else ABSENT


def _format_count(channel: Json) -> str:
    """Format the number of models. ``+``: in addition to models that match a glob. ``?``: not fetched yet."""
    if channel["offers"] is None:
        return "?"
    return f"{channel['offers']}{'+' if channel['matches_globs'] else ''}"


def _format_difference(channel: Json, field: str) -> str:
    """Format the models that the latest synchronization added or removed, as ``field`` says."""
    is_current = channel["sync_error"] is None and channel["changed_at"] == channel["synced_at"] is not None
    return format_some(channel[field]) if is_current else ABSENT


def _format_request(result: Json) -> str:
    request_result = result.get("request")
    return ABSENT if request_result is None or request_result["ms"] is None else f"{request_result['ms']} ms"


def _format_result(result: Json) -> str:
    """Return the word for a test's result. Without a provider's model list, the test says nothing about the channel."""
    if not result["ok"]:
        return "failed"
    return "untested" if result["error"] else "ok"


CHANNELS = (
    Column("NAME", "name", shrinks=True, width=12),
    Column("PROVIDER", "provider"),
    Column("FROM", _format_origin),
    Column("STATE", format_health, shrinks=True, width=12, status=True),
    Column("PRIO", "priority", align_right=True, hidden_value="0"),
    Column("WEIGHT", "weight", align_right=True, hidden_value="1"),
    Column("RUNNING", "running", align_right=True, hidden_value="0"),
    Column("FIRST", _format_first_byte, align_right=True, hidden_value=ABSENT, drop=2),
    Column("OK", _format_ratio, align_right=True, hidden_value=ABSENT, drop=2),
    Column("GROUPS", "groups", hidden_value=ABSENT, shrinks=True, width=6),
    Column("MODELS", _format_count, align_right=True),
    Column("ADDRESS", "base_url", shrinks=True, width=16, drop=1),
)
TESTS = (
    Column("CHANNEL", "name", shrinks=True, width=12),
    Column("KEY", "key", hidden_value=ABSENT),
    Column("RESULT", _format_result, status=True),
    Column("MODELS", "models", align_right=True),
    Column("TIME", _format_request, hidden_value=ABSENT, align_right=True),
    Column("ERROR", "error", hidden_value=ABSENT, shrinks=True, width=24),
)
SYNCS = (
    Column("CHANNEL", "name", shrinks=True, width=12),
    Column("RESULT", lambda row: "ok" if row["sync_error"] is None else "failed", status=True),
    Column("MODELS", _format_count, align_right=True),
    Column("ADDED", lambda row: _format_difference(row, "models_added"), hidden_value=ABSENT, shrinks=True, width=12),
    Column(
        "REMOVED", lambda row: _format_difference(row, "models_removed"), hidden_value=ABSENT, shrinks=True, width=12
    ),
    Column("ERROR", "sync_error", hidden_value=ABSENT, shrinks=True, width=24),
)


def print_channels(channels: Sequence[Json]) -> None:
    """Print a table of channels."""
    print_table(CHANNELS, channels, _CHANNELS_HINT)


def print_channel(channel: Json) -> None:
    """Print all fields of a channel, one per line."""
    model_ids = channel.get("offered")
    print_fields(
        {
            "name": channel["name"],
            "provider": channel["provider"],
            "from": _format_origin(channel),
            "added": channel["created_at"],
            "address": channel["base_url"],
            "state": _format_reason(format_health(channel), channel["health_reason"]),
            **_format_circuits(channel["circuits"]),
            **_format_last_error(channel),
            "tested": f"{channel['last_tested_at']}, {channel['test_ms']} ms" if channel["last_tested_at"] else "never",
            "running": channel["running"],
            "first byte": _format_latency(channel),
            "calls": _format_calls(channel),
            **_format_keys(channel["keys"]),
            **_list_measurements(channel["keys"]),
            "serves": "models listed by the provider" if channel["sync"] else format_value(channel["models"]),
            **({"filter": channel["models"]} if channel["sync"] and channel["models"] else {}),
            "model map": channel["model_map"],
            "offers": _format_count(channel)
            if model_ids is None
            else f"{_format_count(channel)}: {format_value(model_ids)}",
            **(_format_sync(channel) if channel["sync"] else {}),
            "groups": channel["groups"],
            "priority": channel["priority"],
            "weight": channel["weight"],
            "limits": format_limits(channel),
            **({"queue": _format_queue(channel)} if channel["queue"] else {}),
            "timeouts": ", ".join(f"{name.replace('_', ' ')} {channel[f'{name}_timeout_s']:g} s" for name in _TIMEOUTS),
            "proxy": channel["has_proxy"],
            "headers": channel["header_names"],
            "price multiplier": channel["price_multiplier"],
            "owned by": channel["owned_by"] or "system",
            "allowed fields": channel["allow_fields"],
        }
    )


def _format_last_error(channel: Json) -> dict[str, str]:
    """Return the time of the last error, and the error unless the channel is healthy or its state tells it."""
    if not channel["last_error"]:
        return {}
    is_repeated = channel["health"] == "healthy" or channel["last_error"] == channel["health_reason"]
    return {**({} if is_repeated else {"last error": channel["last_error"]}), "last error at": channel["last_error_at"]}


def _format_queue(channel: Json) -> str:
    """Format the queue: ``3 of 50 waiting, for at most 120 s, one model at a time``."""
    queue = channel["queue"]
    text = f"{channel['queued']} of {queue['length']} waiting, for at most {queue['wait_s']:g} s"
    return f"{text}, one model at a time" if queue["one_model"] else text


def print_added_channel(channel: Json) -> None:
    """Print a newly added channel on one line: ``lab is healthy: 12 models``."""
    count = _format_count(channel)
    health = _format_reason(format_health(channel), channel["health_reason"])
    click.echo(clean(f"{channel['name']} is {health}: {count} model{'' if count == '1' else 's'}"))


def print_replaced_channels(old_channels: Sequence[Json], new_channel: Json) -> None:
    """Print to standard error the discovered channels that ``new_channel`` has replaced."""
    replaced_names = [
        channel["name"]
        for channel in old_channels
        if channel["origin"] in _DISCOVERED_ORIGINS and channel["name"] != new_channel["name"]
    ]
    if replaced_names:
        text = f"Discovered channels are no longer used: {', '.join(replaced_names)}. Add those that you want to keep."
        click.echo(clean(text), err=True)


def _format_calls(channel: Json) -> str:
    if not channel["calls"]:
        return "none yet"
    return f"{channel['calls']}, {channel['failures']} failed; success rate of the last calls {_format_ratio(channel)}"


def _format_latency(channel: Json) -> str:
    figures = channel["latency_ms"]
    return ", ".join(f"{name} {ms} ms" for name, ms in figures.items()) if figures else ABSENT


def _format_keys(keys: Sequence[Json]) -> dict[str, str]:
    if not keys:
        return {"key": "none"}
    return {"key" if len(keys) == 1 else f"key {key['number']}": _format_key(key) for key in keys}


def _format_key(key: Json) -> str:
    names = (key["name"] or "", f"…{key['last4']}" if key["last4"] else "")
    # The reason belongs to the last failure and does not apply to a key that works again.
    reason = None if key["health"] in {"healthy", "disabled"} else key["reason"]
    state = format_state(key["state"], key["cooldown_s"], 1) if key["health"] == "cooling_down" else key["health"]
    text = _format_reason(" ".join(filter(None, (*names, state))), reason)
    refused_models = list(dict.fromkeys(circuit["model"] or "all models" for circuit in key["circuits"]))
    if refused_models:
        text += f"; refused for {format_some(refused_models)}"
    limited_models = key["limited_models"]
    return f"{text}; rate-limited for {format_some(limited_models)}" if limited_models else text


def format_measurements(measurements: Sequence[Json]) -> str:
    """Format what was measured of a model at one or more keys: ``412 ms, 80 tokens/s, 1 % failed, $1.20/M``."""
    return "; ".join(filter(None, map(_format_performance, measurements))) or ABSENT


def _format_performance(measurement: Json) -> str:
    wait_ms = measurement["answer_ms"] if measurement["first_event_ms"] is None else measurement["first_event_ms"]
    parts = [
        f"{wait_ms} ms" if wait_ms is not None else "",
        f"{measurement['tokens_per_s']:g} tokens/s" if measurement["tokens_per_s"] is not None else "",
        f"{measurement['failed_share'] * 100:.0f} % failed" if measurement["failed_share"] else "",
        f"{measurement['cached_share'] * 100:.0f} % cached" if measurement["cached_share"] else "",
        f"{format_usd(measurement['usd_per_million'])}/M" if measurement["usd_per_million"] is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _list_measurements(keys: Sequence[Json]) -> dict[str, str]:
    """Return a line for each model that was measured at each of ``keys``."""
    has_several_keys = len(keys) > 1
    return {
        f"measured {measurement['model']}"
        + (f" (key {key['number']})" if has_several_keys else ""): format_measurements([measurement])
        for key in keys
        for measurement in key["measured"]
    }


def _format_circuits(circuits: Sequence[Json]) -> dict[str, str]:
    """Format a line for each of the first failing models, and one line with the number of the others."""
    lines = {}
    for number, circuit in enumerate(circuits[:_MAX_CIRCUITS], 1):
        account_name = circuit["account_name"] or circuit["account"]
        account = "" if account_name is None else f" for account {account_name}"
        state = format_state(circuit["state"], circuit["cooldown_s"], 1)
        lines[f"failing {number}"] = _format_reason(
            f"{circuit['model'] or 'all models'}{account}: {state}", circuit["reason"]
        )
    if len(circuits) > _MAX_CIRCUITS:
        lines["failing"] = f"and {len(circuits) - _MAX_CIRCUITS} more"
    return lines


def _format_reason(text: str, reason: str | None) -> str:
    return f"{text} ({reason})" if reason else text


def _format_sync(channel: Json) -> dict[str, str | None]:
    models_added, models_removed = (format_some(channel[field]) for field in ("models_added", "models_removed"))
    return {
        "synced": channel["synced_at"],
        "sync error": channel["sync_error"],
        "changed": channel["changed_at"] and f"{channel['changed_at']}: added {models_added}; removed {models_removed}",
    }


def print_tests(results: Sequence[Json]) -> None:
    """Print a table of test results, with a row for each key of a channel."""
    print_table(TESTS, [row for result in results for row in _list_tested_keys(result)], _CHANNELS_HINT)


def _list_tested_keys(result: Json) -> list[Json]:
    keys = result["keys"]
    return [
        {**key, "name": result["name"], "key": f"…{key['last4']}" if key["last4"] else f"{number}/{len(keys)}"}
        for number, key in enumerate(keys, 1)
    ] or [{**result, "key": None}]


def print_syncs(channels: Sequence[Json]) -> None:
    """Print a table of channels after the synchronization of their models."""
    print_table(SYNCS, channels, "No channel synchronizes its models.")


def print_report(report: Json, *, config: Path | None) -> None:
    """Print the result of ``gateway check``."""
    if report["problems"]:
        click.echo("\n".join(report["problems"]), err=True)
        return
    click.echo(f"The configuration is valid ({config or 'no file: defaults and environment'}).\n")
    print_tests(report["channels"])
    print_unpriced_models(report["unpriced"])
    for warning in report["warnings"]:
        click.echo(clean(f"{warning}."), err=True)
