"""The commands ``chat`` and ``open``: try the gateway in the terminal, or in the browser."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - aiohttp and ``webbrowser`` are imported when needed, which keeps help texts fast.

import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime

import click
import orjson

from gateway.cli.admin_client import AdminClient, call, find_running_process, require_running, run
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.new_key import create_key
from gateway.cli.options import channel_command, running_command
from gateway.cli.output import print_answer
from gateway.cli.startup_message import choose_model
from gateway.cli.times import resolve_moment

_EVENT_PREFIX = b"data: "
_END_MARK = b"[DONE]"
_LAYOUT_CHARS = "\n\t"
_KEY_LIFETIME = "24h"
"""Lifetime of the temporary key, in case the command cannot delete it."""


@click.command(short_help="Chat with a model in the terminal.")
@click.argument("model", required=False)
@click.argument("prompt", nargs=-1)
@click.option("--api-key", envvar="GATEWAY_KEY", show_envvar=True, metavar="KEY", help="[default: a temporary key]")
@click.option("--account", metavar="NAME", help="Account of the temporary key.  [default: the only one]")
@click.option("--system", metavar="TEXT", help="Instructions for the model.")
@channel_command
def chat(
    context: CliContext,
    model: str | None,
    prompt: Sequence[str],
    *,
    api_key: str | None,
    account: str | None,
    system: str | None,
) -> None:
    """Chat with MODEL, and print each answer while it is generated.

    Given a PROMPT, or if standard input is not a terminal, print one answer and end. Ctrl-C ends an answer, Ctrl-D the
    chat. A temporary key is deleted at the end.

    \b
    Examples:
      gateway chat
      gateway chat gpt-5-mini "Name three rivers"
      git diff | gateway chat gpt-5-mini --system "Write a commit message"
    """
    model_id = model or run(context, _choose_model)
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    with _open_temporary_key(context, api_key, account) as secret:
        for text in _read_prompts(" ".join(prompt), model_id):
            messages.append({"role": "user", "content": text})
            reply = _print_reply(context, secret, {"model": model_id, "messages": messages})
            messages.append({"role": "assistant", "content": reply})


async def _choose_model(admin: AdminClient) -> str:
    await admin.await_models()
    model = choose_model([item["id"] for item in (await admin.get("models"))["data"]])
    if model is None:
        raise CliError("No model can chat; see: gateway models")
    return model


@contextlib.contextmanager
def _open_temporary_key(context: CliContext, given_key: str | None, account: str | None) -> Iterator[str]:
    """Yield ``given_key``, or if it is None the secret of a temporary key, which is deleted afterwards."""
    if given_key is not None:
        yield given_key
        return
    expires_at = resolve_moment(_KEY_LIFETIME, datetime.now(UTC), 1)
    fields = {"name": f"chat-{secrets.token_hex(4)}", "expires_at": expires_at}
    new_key = run(context, lambda admin: create_key(admin, account, fields))
    try:
        yield new_key["secret"]
    finally:
        call(context, "DELETE", "keys", str(new_key["id"]))


def _read_prompts(prompt: str, model: str) -> Iterator[str]:
    """Yield ``prompt``, or the entire standard input as one prompt; at a terminal, each line as a prompt."""
    if prompt or not sys.stdin.isatty():
        if text := prompt or sys.stdin.read().strip():
            yield text
        return
    click.echo(f"Chat with {model}. Ctrl-D ends it.", err=True)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives ``input`` a history
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            if text := input(">>> ").strip():
                yield text
    click.echo(err=True)


def _print_reply(context: CliContext, secret: str, body: Json) -> str:
    """Print the answer to a chat request as it arrives, and return it. Ctrl-C stops the answer."""
    texts: list[str] = []

    async def work(admin: AdminClient) -> None:
        await admin.await_models()
        async for text in stream_reply(admin, secret, body):
            texts.append(text)
            if not context.as_json:
                click.echo(_clean_text(text), nl=False)

    with contextlib.suppress(KeyboardInterrupt):
        run(context, work)
    reply = "".join(texts)
    print_answer(context, {"model": body["model"], "content": reply}, lambda _: click.echo())
    return reply


def _clean_text(text: str) -> str:
    """Replace control characters except line breaks and tabs."""
    return "".join(char if char.isprintable() or char in _LAYOUT_CHARS else "\ufffd" for char in text)


async def stream_reply(admin: AdminClient, secret: str, body: Json) -> AsyncIterator[str]:
    """Send a chat request, and yield the text pieces of the stream. Raises ``CliError``."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    url, headers = f"{admin.url}/v1/chat/completions", {"Authorization": f"Bearer {secret}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.post(url, json={**body, "stream": True}, ssl=admin.certificate) as response,
        ):
            if response.status != 200:  # noqa: PLR2004
                raise CliError(_read_error(await response.read()))
            async for event in _read_events(response.content.iter_any()):
                for choice in event.get("choices", ()):
                    if text := choice["delta"].get("content"):
                        yield text
                if "error" in event:
                    raise CliError(f"\n{event['error']['message']}")
    except (aiohttp.ClientError, OSError) as error:
        raise CliError(f"The gateway at {admin.url} does not answer: {error}") from None


async def _read_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    """Yield the JSON events of an OpenAI stream."""
    unread_bytes = b""
    async for piece in pieces:
        *lines, unread_bytes = (unread_bytes + piece).split(b"\n")
        for line in lines:
            if line.startswith(_EVENT_PREFIX) and (data := line.removeprefix(_EVENT_PREFIX).strip()) != _END_MARK:
                yield orjson.loads(data)


def _read_error(body: bytes) -> str:
    try:
        message: str = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return "The gateway's answer is not JSON"
    return message


@click.command("open", short_help="Open the console in the browser.")
@click.option("--print", "only_print", is_flag=True, help="Print the address only.")
@running_command
def open_console(context: CliContext, *, only_print: bool) -> None:
    """Open the console of the running gateway in the browser, and print its address.

    \b
    Examples:
      gateway open
      gateway open --print
    """
    require_running(context, "open")
    setup = call(context, "GET", "setup")
    url = f"{context.url or (find_running_process(context.data) or {})['url']}/console"
    print_answer(context, {"url": url}, lambda _: click.echo(url))
    if setup["open"]:
        click.echo("There is no administrator yet. Use the one-time link that 'gateway serve' has printed.", err=True)
    if not only_print and not context.as_json:
        import webbrowser

        if not webbrowser.open(url):
            click.echo("No browser was found. Open the address yourself.", err=True)
