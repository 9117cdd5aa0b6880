"""The commands about channels: made, changed, tested, synchronised; and who would serve a call."""
# ruff: noqa: PLC0415 - the providers are imported where one is added.
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import sys
from typing import Any

import click

from gateway.cli.admin_client import (
    PROVIDER_TIMEOUT_S,
    AdminClient,
    CliContext,
    Json,
    ask,
    ask_channels,
    call,
    get_settled,
)
from gateway.cli.options import (
    ListByDefault,
    changed_fields,
    channel_command,
    channel_options,
    exit_unless,
    new_fields,
)
from gateway.cli.output import print_answer
from gateway.cli.output_channels import (
    print_channel,
    print_channels,
    print_explanation,
    print_given_way,
    print_syncs,
    print_tests,
)
from gateway.cli.toggles import add_switches


@click.group(cls=ListByDefault)
def channels() -> None:
    """The ways to providers: declared in the file, added here, or else found.

    What is added or changed here is live at once; calls under way finish as they began. What the file declares is
    changed there ('gateway reload'). Without any channel, provider keys of the environment and model servers on this
    machine are used.

    \b
    Examples:
      gateway channels
      gateway channels add openai
      gateway channels add lab --provider custom --base-url http://10.0.0.7:8000/v1 --model 'qwen*'
      gateway channels edit lab --priority 10 --max-concurrency 8
      gateway channels test
      gateway channels disable lab
    """


@channels.command("list")
@channel_command
def list_channels(place: CliContext) -> None:
    """Every channel, and how it stands.

    STATE is 'down' with the seconds until it is tried again, 'trial' while one call tries it, 'up' with its share of
    calls shortly after. MODELS ends in '+' where a channel serves whatever matches a glob, and is '?' until its
    provider has said what it has.
    """
    print_answer(place, get_settled(place, "channels"), print_channels)


@channels.command("show", short_help="Show everything about the channel NAME.")
@click.argument("name")
@channel_command
def show_channel(place: CliContext, name: str) -> None:
    """Show everything about the channel NAME; of its keys the last four characters, of its headers the names."""
    print_answer(place, get_settled(place, "channels", name), print_channel)


@channels.command("add", short_help="Add the channel NAME.")
@click.argument("name")
@channel_options
@channel_command
def add_channel(place: CliContext, name: str, **options: Any) -> None:
    """Add the channel NAME. Where NAME is a provider, --provider may be left out.

    A key that a provider usually wants is asked for where it is not given. Without --model and --sync the models are
    what the provider lists, where it lists any. Channels that were found give way to the first that is added.

    \b
    Examples:
      gateway channels add openai
      gateway channels add backup --provider openai --api-key-stdin --priority -1 < key.txt
      gateway channels add ollama --base-url http://10.0.0.7:11434/v1
      gateway channels add lab --provider custom --base-url http://10.0.0.7:8000/v1 --map fast=qwen3-8b
    """
    from gateway.providers.registry import PROVIDERS

    slug = options["provider"] or (name if name in PROVIDERS else None)
    if slug is None:
        chosen = ", ".join(known for known in PROVIDERS if known != "demo")  # which is built in
        raise click.UsageError(f"Whose channel? Choose with --provider: {chosen}")
    provider = PROVIDERS.get(slug)
    keys = _read_keys(options, wanted=provider is not None and provider.env_key is not None, of=name)
    fields = new_fields({**options, "provider": slug, "api_keys": keys})
    if "models" not in fields and "sync" not in fields:
        fields["sync"] = provider is not None and provider.models_path is not None

    async def add(admin: AdminClient) -> tuple[list[Json], Json]:
        before = (await admin.get("channels"))["data"]
        body = {"name": name, **fields}
        return before, await admin.call("POST", "channels", body=body, timeout_s=PROVIDER_TIMEOUT_S)

    before, made = ask(place, add)
    print_answer(place, made, print_channel)
    print_given_way(before, made)


@channels.command("edit", short_help="Change the channel NAME.")
@click.argument("name")
@click.option("--name", "new_name", metavar="NEW", help="Rename it.")
@channel_options
@channel_command
def edit_channel(place: CliContext, name: str, new_name: str | None, **options: Any) -> None:
    """Change the channel NAME; 'none' takes a setting back. What is not named stays, its keys too.

    \b
    Examples:
      gateway channels edit openai --api-key-stdin
      gateway channels edit openai --model 'gpt-5*' --weight 3
      gateway channels edit lab --rpm none --no-sync --model qwen3-8b
    """
    keys = _read_keys(options, wanted=False, of=name)
    body = changed_fields({"name": new_name, **options, "api_keys": keys})
    changed = call(place, "PATCH", "channels", name, body=body, timeout_s=PROVIDER_TIMEOUT_S)
    print_answer(place, changed, print_channel)


def _read_keys(options: Json, *, wanted: bool, of: str) -> list[str] | None:
    """Keys from the options, standard input, or whoever sits at the terminal; None: none were given.

    Where they are ``wanted`` and not given, a terminal is asked.
    """
    given, from_stdin = list(options["api_keys"]), options.pop("api_key_stdin")
    if given and from_stdin:
        raise click.UsageError("Give either --api-key or --api-key-stdin")
    if given or not (from_stdin or wanted):
        return given or None
    if sys.stdin.isatty():
        what = f"API key of {of} (not shown; empty: none)"
        text: str = click.prompt(what, default="", hide_input=True, show_default=False, err=True)
        return text.split() or None
    if not from_stdin:
        return None
    keys = sys.stdin.read().split()
    if not keys:
        raise click.UsageError("There is no key on standard input")
    return keys


@channels.command("test", short_help="Does its provider answer, with every key?")
@click.argument("name", required=False)
@channel_command
def test_channels(place: CliContext, name: str | None) -> None:
    """Ask the provider of the channel NAME, or of all, for its models now, with every key.

    Exits with 1 where one fails. Without NAME disabled channels are left out.
    """
    results = ask_channels(place, lambda admin: admin.test_channels(*([name] if name else [])))
    _answer_each(place, results, print_tests, one=name is not None)
    exit_unless(all(result["ok"] for result in results))


@channels.command("sync", short_help="Take in now which models its provider has.")
@click.argument("name", required=False)
@channel_command
def sync_channels(place: CliContext, name: str | None) -> None:
    """Take in now which models the provider of the channel NAME has, or of all that synchronise theirs.

    The gateway does so by itself every ten minutes, or as routing.sync_interval_s says. A model goes once it was
    missing twice in a row. Exits with 1 where a provider fails; its models stay as they were.
    """
    synced = ask(place, lambda admin: admin.sync_channels(*([name] if name else [])))
    _answer_each(place, synced, print_syncs, one=name is not None)
    exit_unless(all(channel["sync_error"] is None for channel in synced))


def _answer_each(place: CliContext, answers: list[Json], for_people: Any, *, one: bool) -> None:
    answer = answers[0] if one else {"object": "list", "data": answers}
    print_answer(place, answer, lambda _: for_people(answers))


add_switches(channels, "channels", click.argument("which", metavar="NAME"), "channel", by="over")


@click.command(short_help="Who would serve a call, in which order, and at what price?")
@click.argument("model", required=False)
@click.option("--model", "named", metavar="M", help="The same as the argument.")
@click.option("--key", type=int, metavar="ID", help="For this key.  [default: for anybody]")
@click.option("--operation", help="Such as chat, messages, responses or embeddings.  [default: chat]")
@channel_command
def explain(place: CliContext, model: str | None, named: str | None, **query: Any) -> None:
    """Who would serve a call of MODEL now, who would not and why, at what price, and what the caller has left.

    RANK is the order in which channels would be tried; those of equal priority get the calls by their CHANCE. PRICE is
    what the caller pays for a million tokens in / out, '-' where none is known. Nothing is called or changed. Exits
    with 1 where nobody would serve it.

    \b
    Examples:
      gateway explain gpt-5-mini
      gateway explain --model gpt-5-mini --key 3
      gateway explain text-embedding-3-small --operation embeddings --json
    """
    if (model is None) == (named is None):
        raise click.UsageError("Give the name of one model")
    found = get_settled(place, "explain", query={"model": model or named, **query})
    print_answer(place, found, print_explanation)
    exit_unless(found["served"])
