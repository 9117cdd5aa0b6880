"""The ``routes`` commands: show, change and test names with steps, which clients use as models."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import tomllib
from pathlib import Path
from typing import Any

import click

from gateway.cli import output_routes
from gateway.cli.admin_client import PROVIDER_TIMEOUT_S, AdminClient, call, run, run_with_channels
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import get_with_models, print_edit
from gateway.cli.options import (
    Command,
    ListByDefault,
    NumberOrNone,
    channel_command,
    client_command,
    confirm,
    exit_unless,
)
from gateway.cli.output import print_answer
from gateway.cli.resource_options import build_fields
from gateway.cli.step_text import parse_step
from gateway.cli.times import parse_past

_FIELDS = ("about", "max_attempts", "deadline_s", "cache_ttl_s", "step")
_NAME = click.argument("name")
_FILE = click.Path(path_type=Path, readable=False)  # reading the file reports a better error


@click.group(cls=ListByDefault)
def routes() -> None:
    """Manage routes: names that clients use as a model, with steps that are tried in their order.

    Changes apply at once; running requests keep their route. Routes of the configuration file are read-only here.

    A STEP is a text: one or more models, then conditions. A model's weight follows after '*'. Conditions:
    channels=NAME,GLOB (only these channels), on=CAUSE,CAUSE (only after these causes), min_prompt_tokens=N,
    max_prompt_tokens=N, images=yes|no, tools=yes|no, stream=yes|no (what the request must be),
    balance=weight|latency|throughput|cost (how a channel is chosen), wait_s=SECONDS (the longest wait in a channel's
    queue before the next step), shadow=MODEL shadow_share=0.05 shadow_max_running=4 (copies for another model, whose
    answers are dropped). Causes: unavailable, timeout, rate_limited, credit, context, unsupported, budget, queue,
    content, invalid.  [default: all but the last two]

    \b
    Examples:
      gateway routes
      gateway routes add fast --step gpt-5-mini --step 'claude-haiku-4.5 on=unavailable,rate_limited'
      gateway routes add fast --step 'gpt-5-mini*9 gpt-5-nano channels=azure-*' --step 'llama-3.3-70b on=budget'
      gateway routes edit fast --deadline-s 20
      gateway routes add fast --from gateway.toml
      gateway routes test fast
      gateway routes shadow fast --since 24h
      gateway explain fast --prompt-tokens 50000 --images --key laptop
    """


@routes.command("list")
@client_command
def list_routes(context: CliContext) -> None:
    """List routes with their steps. FROM: file, or console (added in the console or with 'gateway routes add')."""
    print_answer(context, call(context, "GET", "routes"), output_routes.print_routes)


@routes.command("show", short_help="Show a route.")
@_NAME
@channel_command
def show_route(context: CliContext, name: str) -> None:
    """Show the route NAME, and the channels that serve each of its steps, with their prices."""
    print_answer(context, get_with_models(context, "routes", name), output_routes.print_route)


def _route_options(command: Command) -> Command:
    for option in (
        click.option("--step", "steps", metavar="STEP", multiple=True, help="A step; repeat for the next one."),
        click.option(
            "--from", "file", metavar="FILE", type=click.Path(path_type=Path), help="TOML with the [[route]]."
        ),
        click.option("--about", help="A description for people."),
        click.option(
            "--max-attempts",
            type=NumberOrNone(whole_numbers=True, name="N"),
            help="Attempts over all steps; none: as the setting routing.max_attempts.",
        ),
        click.option(
            "--deadline-s",
            type=NumberOrNone(whole_numbers=False, name="SECONDS"),
            help="Seconds for the first byte over all steps; none: no such limit.",
        ),
    ):
        command = option(command)
    return command


@routes.command("add", short_help="Add a route.")
@_NAME
@_route_options
@client_command
def add_route(context: CliContext, name: str, **options: Any) -> None:
    """Add the route NAME.

    \b
    Examples:
      gateway routes add fast --step gpt-5-mini --step 'claude-haiku-4.5 on=unavailable,rate_limited'
      gateway routes add small --step 'llama-3.3-70b max_prompt_tokens=30000 images=no' --step gpt-5-mini
    """
    fields = _build_fields(name, **options)

    async def work(admin: AdminClient) -> Json:
        if await _find_route(admin, name):
            raise CliError(f"There is a route '{name}' already; change it with: gateway routes edit")
        return await admin.call("PUT", "routes", name, body={**fields, "version": "none"})

    print_answer(context, run(context, work), lambda new_route: output_routes.print_routes([new_route]))


@routes.command("edit", short_help="Change a route.")
@_NAME
@_route_options
@client_command
def edit_route(context: CliContext, name: str, **options: Any) -> None:
    """Change the route NAME. --step and --from replace all of its steps; what is not named stays."""
    fields = _build_fields(name, **options)

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        before = await _find_route(admin, name)
        if not before:
            raise CliError(f"There is no route '{name}'; add it with: gateway routes add")
        kept_fields = {field: before[field] for field in _FIELDS}
        body = {**kept_fields, **fields, "version": before["version"]}
        return before, await admin.call("PUT", "routes", name, body=body)

    before, after = run(context, work)
    before, after = ({**row, "step": output_routes.format_steps(row)} for row in (before, after))
    print_answer(context, after, lambda _: print_edit(name, before, after, fields))


@routes.command("delete")
@_NAME
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete_route(context: CliContext, name: str, *, yes: bool) -> None:
    """Delete the route NAME. Its requests stay in the log."""
    if not yes:
        confirm(f"Delete the route {name}?")
    print_answer(
        context, call(context, "DELETE", "routes", name), lambda _: click.echo(f"The route {name} is deleted.")
    )


@routes.command("shadow", short_help="Compare a route with its shadow models.")
@_NAME
@click.option(
    "--since", metavar="TIME", callback=parse_past, help="From then on: 24h, yesterday, 2027-01-31T12:00 (UTC)."
)
@client_command
def compare_shadow(context: CliContext, name: str, since: str | None) -> None:
    """Compare the requests of the route NAME with the copies for its shadow models.

    Without --since, those of the last week are compared. The means are of completed requests. A step makes copies with
    the words shadow=MODEL shadow_share=0.05.
    """
    answer = call(context, "GET", "routes", name, "shadow", query={"since": since})
    print_answer(context, answer, output_routes.print_comparison)


@routes.command("test", short_help="Test the steps of a route.")
@_NAME
@channel_command
def test_route(context: CliContext, name: str) -> None:
    """Send one chat request of one token, which costs money, to each model of each step of the route NAME.

    The request goes to the channel that is tried first. Exits with 1 if one of them fails.
    """

    async def work(admin: AdminClient) -> Json:
        await admin.await_models()
        return await admin.call("POST", "routes", name, "test", timeout_s=PROVIDER_TIMEOUT_S)

    answer = run_with_channels(context, work)
    print_answer(context, answer, output_routes.print_tests)
    exit_unless(all(result["ok"] for result in answer["data"]))


def _build_fields(name: str, *, steps: tuple[str, ...], file: Path | None, **options: Any) -> Json:
    """Return the fields of a route that the options name. Raises ``click.UsageError``."""
    if steps and file is not None:
        raise click.UsageError("Give the steps by --step or by --from, not both")
    fields = build_fields(options)
    if steps:
        fields["step"] = [parse_step(step) for step in steps]
    if file is not None:
        fields = {**_read_route(file, name), **fields}
    if not fields:
        raise click.UsageError("Give a step, such as --step gpt-5-mini")
    return fields


def _read_route(file: Path, name: str) -> Json:
    """Return the fields of the ``[[route]]`` called ``name`` in a TOML file. Raises ``CliError``."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CliError(f"{file} cannot be read: {error}") from None
    route_tables = table.get("route")
    for route in route_tables if isinstance(route_tables, list) else ():
        if isinstance(route, dict) and route.get("name") == name:
            return {field: value for field, value in route.items() if field != "name"}
    raise CliError(f'{file} has no [[route]] with name = "{name}"')


async def _find_route(admin: AdminClient, name: str) -> Json:
    """Return the route in force; empty if there is none."""
    route_rows = (await admin.get("routes"))["data"]
    return next((route for route in route_rows if route["name"] == name and not route["overridden"]), {})
