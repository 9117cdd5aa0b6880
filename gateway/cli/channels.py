"""The ``channels`` and ``explain`` commands."""
# ruff: noqa: PLC0415 - the providers are imported only by ``channels add``.
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import sys
from collections.abc import Collection
from typing import Any

import click
from click.core import ParameterSource

from gateway.cli import output_channels
from gateway.cli.admin_client import PROVIDER_TIMEOUT_S, AdminClient, run, run_with_channels
from gateway.cli.context import CliContext, Json
from gateway.cli.objects import edit_object, get_with_models, resolve_key_id
from gateway.cli.options import ListByDefault, channel_command, exit_unless
from gateway.cli.output import print_answer
from gateway.cli.output_explain import print_explanation
from gateway.cli.resource_options import build_changes, build_new_fields, channel_options
from gateway.cli.toggles import add_toggles
from gateway.wording import did_you_mean


@click.group(cls=ListByDefault)
def channels() -> None:
    """Manage channels, the connections to providers.

    Changes apply at once; running requests are not affected. Channels of the configuration file are read-only here. If
    there are no channels, the gateway uses provider keys of the environment and model servers on this machine.

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
def list_channels(context: CliContext) -> None:
    """List channels and their health.

    STATE: untested (the provider has not been asked), healthy, failing, cooling down with the seconds until the next
    trial, recovering with its traffic share, or disabled. A channel that was added with --force and has never answered
    is failing and gets no requests. MODELS: '+' if the channel also serves all models that match a glob, '?' until the
    provider's models are fetched. FIRST: median time to the first byte. OK: success rate of the last calls.
    """
    print_answer(context, get_with_models(context, "channels"), output_channels.print_channels)


@channels.command("show", short_help="Show a channel.")
@click.argument("name")
@channel_command
def show_channel(context: CliContext, name: str) -> None:
    """Show the channel NAME, without secrets: the last four characters of its keys, the names of its headers."""
    print_answer(context, get_with_models(context, "channels", name), output_channels.print_channel)


@channels.command("add", short_help="Add a channel.")
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Add it even if the provider does not answer; it gets no requests until then."
)
@click.option("--request", is_flag=True, help="Also check it with one chat request of one token, which costs money.")
@channel_options
@channel_command
def add_channel(context: CliContext, name: str, *, force: bool, request: bool, **options: Any) -> None:
    """Add the channel NAME. If NAME is a provider, --provider can be omitted.

    The provider is asked for its models first. If it does not answer, or rejects the key, nothing is added.

    Asks for the provider's API key if it usually needs one. Without --model and --sync, the channel serves the models
    that the provider lists. Once you add a channel, discovered channels are no longer used. The demo is built in: to
    add it sets routing.demo to "on".

    \b
    Examples:
      gateway channels add openai
      gateway channels add demo
      gateway channels add backup --provider openai --api-key-stdin --priority -1 < key.txt
      gateway channels add ollama --base-url http://10.0.0.7:11434/v1
      gateway channels add lab --provider custom --base-url http://10.0.0.7:8000/v1 --map fast=qwen3-8b
    """
    from gateway.providers.registry import PROVIDERS

    slug = options["provider"] or _find_provider(name)
    if slug == "demo":
        _offer_demo(context, name, {*options, "force", "request"} - {"provider"})
        return
    provider = PROVIDERS.get(slug)
    keys = _read_keys(options, channel=name, required=provider is not None and provider.env_key is not None)
    fields = build_new_fields({**options, "provider": slug, "api_keys": keys})
    if "models" not in fields and "sync" not in fields:
        fields["sync"] = provider is not None and provider.models_path is not None

    async def add(admin: AdminClient) -> tuple[list[Json], Json]:
        channels_before = (await admin.get("channels"))["data"]
        body = {"name": name, **fields}
        query = {"check": "hold" if force else "refuse", "request": "true" if request else None}
        return channels_before, await admin.call(
            "POST", "channels", body=body, query=query, timeout_s=PROVIDER_TIMEOUT_S
        )

    channels_before, channel = run(context, add)
    print_answer(context, channel, lambda _: output_channels.print_added_channel(channel))
    output_channels.print_replaced_channels(channels_before, channel)


def _find_provider(name: str) -> str:
    """Return ``name`` if it is the name of a provider, else raise ``UsageError``."""
    from gateway.providers.registry import PROVIDERS

    if name in PROVIDERS:
        return name
    provider_names = ", ".join(slug for slug in PROVIDERS if slug != "demo")
    hint = did_you_mean(name, PROVIDERS)
    raise click.UsageError(f"Unknown provider '{name}'{hint or f'. Pass --provider: {provider_names}'}")


def _check_demo(name: str, options: Collection[str]) -> None:
    """Raise ``UsageError`` if the demo is added under another name or with any of ``options``."""
    if name != "demo":
        raise click.UsageError("The demo is built in, and its channel is called demo: gateway channels add demo")
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in options and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"The demo is built in and takes no options: leave out {option.opts[0]}")


def _offer_demo(context: CliContext, name: str, options: Collection[str]) -> None:
    """Enable the built-in demo next to the other channels, and print the number of its models.

    Raises ``UsageError``.
    """
    _check_demo(name, options)

    async def offer(admin: AdminClient) -> Json:
        await admin.call("PUT", "settings", "routing", "demo", body={"value": "on"})
        return await admin.get("channels", "demo")

    offer_channel = run(context, offer)
    print_answer(context, offer_channel, lambda _: click.echo(f"The demo is on: {offer_channel['offers']} models"))


@channels.command("edit", short_help="Edit a channel.")
@click.argument("name")
@click.option("--name", "new_name", metavar="NEW", help="New name.")
@channel_options
@channel_command
def edit_channel(context: CliContext, name: str, new_name: str | None, **options: Any) -> None:
    """Edit the channel NAME. Use 'none' to clear a setting. Options not given stay as they are, also API keys.

    \b
    Examples:
      gateway channels edit openai --api-key-stdin
      gateway channels edit openai --model 'gpt-5*' --weight 3
      gateway channels edit lab --rpm none --no-sync --model qwen3-8b
    """
    keys = _read_keys(options, channel=name, required=False)
    body = build_changes({"name": new_name, **options, "api_keys": keys})
    edit_object(context, "channels", name, body, timeout_s=PROVIDER_TIMEOUT_S)


def _read_keys(options: Json, *, channel: str, required: bool) -> list[str] | None:
    """Return API keys of the options, of standard input, or asked for at a terminal; None without keys.

    Nothing is asked for unless keys are ``required`` or read from standard input. Raises ``UsageError`` if keys are
    given in two ways, or standard input has none.
    """
    api_keys, from_stdin = list(options["api_keys"]), options.pop("api_key_stdin")
    if api_keys and from_stdin:
        raise click.UsageError("Give either --api-key or --api-key-stdin")
    if api_keys or not (from_stdin or required):
        return api_keys or None
    if sys.stdin.isatty():
        prompt = f"API key of {channel} (hidden; leave blank for none)"
        text: str = click.prompt(prompt, default="", hide_input=True, show_default=False, err=True)
        return text.split() or None
    if not from_stdin:
        return None
    keys = sys.stdin.read().split()
    if not keys:
        raise click.UsageError("There is no key on standard input")
    return keys


@channels.command("test", short_help="Test channels.")
@click.argument("name", required=False)
@click.option("--request", is_flag=True, help="Also send one chat request of one token, which costs money.")
@click.option("--model", metavar="M", help="The model of that request.  [default: the first that fits]")
@channel_command
def test_channels(context: CliContext, name: str | None, *, request: bool, model: str | None) -> None:
    """Test the channel NAME, or all active ones: fetch the provider's models with every API key.

    TIME: how long the answer to the chat request of --request took. Exits with 1 if a test fails.
    """
    query = {"request": "true" if request else None, "model": model}
    results = run_with_channels(context, lambda admin: admin.test_channels(*([name] if name else []), **query))
    _print_each(context, results, output_channels.print_tests, is_single=name is not None)
    exit_unless(all(result["ok"] for result in results))


@channels.command("sync", short_help="Fetch the models of channels.")
@click.argument("name", required=False)
@channel_command
def sync_channels(context: CliContext, name: str | None) -> None:
    """Fetch the models of the channel NAME, or of all channels with --sync.

    The gateway does this every ten minutes (routing.sync_interval_s). A model is removed once it was missing twice in a
    row. If a provider fails, its models stay, and the command exits with 1.
    """
    synced_channels = run(context, lambda admin: admin.sync_channels(*([name] if name else [])))
    _print_each(context, synced_channels, output_channels.print_syncs, is_single=name is not None)
    exit_unless(all(channel["sync_error"] is None for channel in synced_channels))


def _print_each(context: CliContext, answers: list[Json], print_text: Any, *, is_single: bool) -> None:
    answer = answers[0] if is_single else {"object": "list", "data": answers}
    print_answer(context, answer, lambda _: print_text(answers))


add_toggles(channels, "channels", click.argument("name_or_id", metavar="NAME"), "channel")


@click.command(short_help="Explain how a model is routed.")
@click.argument("model", required=False)
@click.option("--model", "same_model", metavar="M", help="The same as the argument.")
@click.option(
    "--key", metavar="KEY", help="For requests with this key: id, name or last four characters.  [default: none]"
)
@click.option("--operation", help="Such as chat, messages, responses or embeddings.  [default: chat]")
@click.option("--prompt-tokens", metavar="N", type=click.IntRange(0), help="The prompt's length, for a route's steps.")
@click.option("--images", is_flag=True, help="The request has images, for a route's steps.")
@click.option("--tools", is_flag=True, help="The request has tools, for a route's steps.")
@click.option("--stream", is_flag=True, help="The request is a stream, for a route's steps.")
@click.option(
    "--prefer",
    metavar="BALANCE",
    type=click.Choice(("latency", "throughput", "cost")),
    help="The caller's wish, as in the header x-gateway-prefer.",
)
@channel_command
def explain(context: CliContext, model: str | None, same_model: str | None, **query: Any) -> None:
    """Explain how MODEL, or a route, would be routed: channels, price, and remaining quota.

    RANK: the order in which channels are tried; CHANCE: the share among equal priorities. PRICE: per million tokens,
    input/output; '-' if unknown. SCORE: what a balance by measurement compares; lower is better. Nothing is sent or
    changed. Exits with 1 if no channel can serve the model.

    For a route, the steps come first. VERDICT: first for the step that gets the request, next for one that gets it if
    the step before fails with a cause in ON, skipped for one that does not get it. RESERVED: the most that the request
    can cost there.

    \b
    Examples:
      gateway explain gpt-5-mini
      gateway explain --model gpt-5-mini --key 3
      gateway explain text-embedding-3-small --operation embeddings --json
      gateway explain fast --prompt-tokens 50000 --images --key laptop
    """
    if (model is None) == (same_model is None):
        raise click.UsageError("Give the name of one model")
    query.update({name: "true" if query[name] else None for name in ("images", "tools", "stream")})

    async def work(admin: AdminClient) -> Json:
        await admin.await_models()
        return await admin.get("explain", query=await resolve_key_id(admin, {"model": model or same_model, **query}))

    explanation = run_with_channels(context, work)
    print_answer(context, explanation, print_explanation)
    exit_unless(explanation["served"])
