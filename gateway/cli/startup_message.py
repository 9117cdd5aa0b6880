"""The message that ``gateway serve`` prints once it answers requests."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from gateway import __version__
from gateway.cli.text import clean

if TYPE_CHECKING:
    from gateway.options import StartupInfo

_NON_CHAT_WORDS = (
    "embed",
    "image",
    "video",
    "tts",
    "whisper",
    "dall-e",
    "moderation",
    "rerank",
    "speech",
    "transcribe",
)
"""Name parts of models that do not support chat."""


def print_startup_message(address: str, info: "StartupInfo") -> None:
    """Print the address, models, failures and the console; if the first key was just created, also a sample request."""
    click.echo(f"\nModel gateway {__version__} answers at {click.style(address, fg='green', bold=True)}")
    click.echo(f"  models    {_format_models(info)}")
    for failure in info.failures:
        click.echo(f"  {click.style('failing', fg='red')}   {clean(failure)}")
    for line in format_console(address, info.setup_token):
        click.echo(line)
    if info.secret is None:
        click.echo(f"  base_url  {address}/v1\n  keys      create a key: {find_command()} keys add\n")
        return
    click.echo(f"  key       {click.style(info.secret, fg='green', bold=True)}")
    click.echo("            copy it now: it is not shown again, only its hash is stored\n")
    click.echo("Try it:\n")
    click.echo(click.style(f"  export GATEWAY_KEY={info.secret}", fg="cyan"))
    click.echo(click.style("\n".join(format_call(address, choose_model(info.models))), fg="cyan") + "\n")
    click.echo("Or with an OpenAI SDK, here in Python:\n")
    click.echo("  from openai import OpenAI")
    click.echo(f'  client = OpenAI(base_url="{address}/v1", api_key="{info.secret}")\n')


def format_call(address: str, model: str | None) -> Iterator[str]:
    """Yield the lines of a complete curl command: a chat with ``model``, or the list of models without ``model``."""
    if model is None:
        yield f'  curl {address}/v1/models -H "Authorization: Bearer $GATEWAY_KEY"'
        return
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    yield f"  curl -N {address}/v1/chat/completions \\"
    yield '    -H "Authorization: Bearer $GATEWAY_KEY" -H "Content-Type: application/json" \\'
    yield f"    -d {shlex.quote(orjson.dumps(body).decode())}"


def format_console(address: str, setup_token: str | None) -> Iterator[str]:
    """Yield the lines about the console, including the setup link if there is a token."""
    if setup_token is None:
        yield f"  console   {address}/console"
        return
    yield f"  console   {click.style(f'{address}/console/setup#{setup_token}', fg='green', bold=True)}"
    yield "            open this one-time link to create the admin account"


def _format_models(info: "StartupInfo") -> str:
    if info.demo:
        own_provider_hint = f"use your own: {find_command()} channels add openai, or New channel in the console"
        reason = "no provider has answered" if info.failures else "no channel is configured"
        return f"{', '.join(info.models)} (built-in demo: {reason})\n            {own_provider_hint}"
    if not info.models:
        return f"not loaded yet; see: {find_command()} models, or add a provider: {find_command()} channels add openai"
    return f"{len(info.models)}; see: {find_command()} models"


def find_command() -> str:
    """Return the command line that starts this program: ``gateway`` may be missing from the PATH."""
    if shutil.which("gateway"):
        return "gateway"
    return sys.argv[0] if Path(sys.argv[0]).name == "gateway" else "python -m gateway"


def choose_model(models: Sequence[str]) -> str | None:
    """Return the first model whose name suggests chat, preferring those not of the demo; None if there is none."""
    chat_models = [model for model in models if not any(word in model.lower() for word in _NON_CHAT_WORDS)]
    return next((model for model in chat_models if not model.startswith("demo-")), next(iter(chat_models), None))
