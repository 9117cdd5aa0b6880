"""``gateway requests replay``: send kept requests again over other models, and compare the answers."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from gateway.cli.admin_client import AdminClient, run
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import resolve_key_id
from gateway.cli.options import client_command
from gateway.cli.output import print_answer
from gateway.cli.table import Column, print_table
from gateway.cli.text import ABSENT, clean_lines, format_usd, format_value
from gateway.cli.times import parse_past

MAX_REPLAYS = 1_000
MAX_RETRIES = 10
"""How often a request of a set is sent again after a refusal for a rate limit or a busy channel."""
MAX_RETRY_WAIT_S = 60.0
_PARALLEL = 4
_TIMEOUT_S = 900.0
"""Timeout of one answer, in seconds: a provider may take minutes for an answer."""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MARKS = {"same": " ", "old": "-", "new": "+"}
RUNS = (
    Column("", "which"),
    Column("MODEL", lambda run: run["served_model"] or run["model"], shrinks=True, width=16),
    Column("OUTCOME", "outcome", status=True),
    Column("IN", "prompt_tokens", align_right=True),
    Column("OUT", "completion_tokens", align_right=True),
    Column("COST", lambda run: format_usd(run["cost_usd"]), align_right=True),
    Column("FIRST", lambda run: format_value(run["first_byte_ms"]), align_right=True),
    Column("MS", "total_ms", align_right=True),
    Column("TOOLS", lambda run: ", ".join(run["tools"]), hidden_value="", shrinks=True, width=12),
    Column("VERDICT", lambda run: "; ".join(run["problems"]) or "ok", shrinks=True, width=16),
)
MODELS = (
    Column("MODEL", "model", shrinks=True, width=16),
    Column("SENT", "sent", align_right=True),
    Column("NOT SENT", "unsent", align_right=True),
    Column("SAME OUTCOME", "same_outcome", align_right=True),
    Column("SAME TEXT", "same_text", align_right=True),
    Column("SAME TOOLS", "same_tools", align_right=True),
    Column("PASSED", "passed", align_right=True),
    Column("COST", lambda row: format_usd(row["cost_usd"]), align_right=True),
    Column("FIRST COST", lambda row: format_usd(row["first_cost_usd"]), align_right=True),
    Column("MEAN MS", lambda row: ABSENT if row["mean_ms"] is None else f"{row['mean_ms']:.0f}", align_right=True),
)


@click.command("replay")
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--model", "models", multiple=True, help="Send it to this model or route; several are compared.")
@click.option("--channel", metavar="NAME", help="Only over this channel.")
@click.option(
    "--key", metavar="KEY", required=True, help="The key that pays: an id, a name or the last four characters."
)
@click.option("--allow-redacted", is_flag=True, help="Send redacted bodies, with marks in place of replaced values.")
@click.option("--expect", multiple=True, metavar="TEXT", help="A text that the answer must have.")
@click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON Schema of the answer."
)
@click.option("--of-model", help="Without ID: requests for this model.")
@click.option("--route", help="Without ID: requests for this route.")
@click.option("--account", metavar="NAME", help="Without ID: requests of this account.")
@click.option("--user", "end_user", metavar="NAME", help="Without ID: requests made for this end user.")
@click.option("--session", metavar="NAME", help="Without ID: requests of this session.")
@click.option("--tag", metavar="NAME=VALUE", help="Without ID: requests with this tag.")
@click.option("--outcome", metavar="WORD", help="Without ID: requests with this outcome, such as failed.")
@click.option("--since", metavar="TIME", callback=parse_past, help="Without ID: requests from then on.")
@click.option("--until", metavar="TIME", callback=parse_past, help="Without ID: requests up to then.")
@click.option("--limit", type=click.IntRange(1, MAX_REPLAYS), default=50, show_default=True, help="The most requests.")
@client_command
def replay(context: CliContext, *, request_id: str | None, schema: Path | None, **options: Any) -> None:
    """Send the kept request ID again, or the newest that match the options, and compare the answers.

    The key in --key pays, and its models and limits apply. Requests without kept bodies, and those that cannot be sent
    as they were, are counted as not sent.

    \b
    Examples:
      gateway requests replay 01993ac4d5e6 --model gpt-5-mini --key lab
      gateway requests replay --of-model gpt-5 --since 24h --model gpt-5-mini --model claude-haiku-4.5 --key lab
    """
    body: Json = {
        "channel": options.pop("channel"),
        "allow_redacted": options.pop("allow_redacted"),
        "expect": list(options.pop("expect")),
        "schema": None if schema is None else _read_schema(schema),
        "low_priority": request_id is None,
    }
    models, limit, key = options.pop("models") or (None,), options.pop("limit"), options.pop("key")

    async def work(admin: AdminClient) -> list[Json]:
        body["key"] = int((await resolve_key_id(admin, {"key": key}))["key"])
        ids = [request_id] if request_id else await _list_ids(admin, {**options, "limit": limit})
        slots = asyncio.Semaphore(_PARALLEL)
        return await asyncio.gather(
            *(replay_once(admin, kept_id, {**body, "model": model}, slots) for model in models for kept_id in ids)
        )

    results = run(context, work)
    if request_id:
        for result in results:
            if "error" in result:
                raise CliError(result["error"])
            print_answer(context, result, print_comparison)
    else:
        print_answer(context, {"results": results, "models": sum_models(results)}, print_sums)


def _read_schema(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise click.UsageError(f"{path} is no JSON") from None


async def _list_ids(admin: AdminClient, query: Json) -> list[str]:
    """Return the ids of matching requests, the newest first. Requests that are replays themselves are left out."""
    rows = (await admin.get("requests", query={"shadow": "false", **query}))["data"]
    return [row["id"] for row in rows if not row["replay_of"]]


async def replay_once(admin: AdminClient, request_id: str, body: Json, slots: asyncio.Semaphore) -> Json:
    """Return the comparison, or the error of a request that was not sent.

    A request of a set that was refused for now is sent again when that is allowed, at most ``MAX_RETRIES`` times.
    """
    answer: Json = {}
    async with slots:
        try:
            answer = await _send_once(admin, request_id, body)
            for _ in range(MAX_RETRIES):
                if answer["retry_after_s"] is None or not body["low_priority"]:
                    break
                await asyncio.sleep(min(max(answer["retry_after_s"], 1.0), MAX_RETRY_WAIT_S))
                answer = await _send_once(admin, request_id, body)
        except CliError as error:
            return {"id": request_id, "model": body["model"], "error": str(error)}
    return {"id": request_id, "model": body["model"], **answer}


async def _send_once(admin: AdminClient, request_id: str, body: Json) -> Json:
    return await admin.call("POST", "requests", request_id, "replay", body=body, timeout_s=_TIMEOUT_S)


def sum_models(results: Sequence[Json]) -> list[Json]:
    """Return the sums of each model, in the order of the first results."""
    by_model: dict[str, list[Json]] = {}
    for result in results:
        by_model.setdefault(result["model"] or "as before", []).append(result)
    return [_sum_model(model, model_results) for model, model_results in by_model.items()]


def _sum_model(model: str, results: Sequence[Json]) -> Json:
    sent = [result for result in results if "error" not in result and result["second"]["outcome"] != "refused"]
    times_ms = [result["second"]["total_ms"] for result in sent if result["second"]["outcome"] == "completed"]
    return {
        "model": model,
        "sent": len(sent),
        "unsent": len(results) - len(sent),
        "same_outcome": sum(result["first"]["outcome"] == result["second"]["outcome"] for result in sent),
        "same_text": sum(result["same_text"] is True for result in sent),
        "same_tools": sum(result["same_tools"] is True for result in sent),
        "passed": sum(not result["second"]["problems"] for result in sent),
        "cost_usd": sum(result["second"]["cost_usd"] for result in sent),
        "first_cost_usd": sum(result["first"]["cost_usd"] for result in sent),
        "mean_ms": fmean(times_ms) if times_ms else None,
    }


def print_comparison(result: Json) -> None:
    """Print both runs, and the parts in which their texts differ."""
    print_table(RUNS, [{"which": name, **result[name]} for name in ("first", "second")], "")
    if result["second"]["error"]:
        click.echo(f"\n{clean_lines(result['second']['error'])}")
    if result["cosine"] is not None:
        click.echo(f"\nCosine of the first vectors: {result['cosine']:.6f}")
    elif result["same_text"]:
        click.echo("\nBoth answers have the same text.")
    elif result["same_text"] is None:
        click.echo("\nThe texts are not compared: a request did not complete, or an answer is not kept as it was.")
    elif result["changes"] is None:
        click.echo("\nThe texts are too long to be compared.")
    else:
        click.echo()
        for change in result["changes"]:
            mark = _MARKS[change["kind"]]
            click.echo("\n".join(f"{mark} {line}" for line in clean_lines(change["text"]).splitlines() if line.strip()))


def print_sums(answer: Json) -> None:
    """Print a table of the models, and the errors of requests that were not sent or failed."""
    print_table(MODELS, answer["models"], "No requests found.")
    for result in answer["results"]:
        error = result["error"] if "error" in result else result["second"]["error"]
        if error:
            click.echo(f"{result['id']}: {clean_lines(error)}", err=True)
