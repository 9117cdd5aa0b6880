"""Receivers of alerts: a web server that keeps what it gets, and a mail server."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any

import attrs
import orjson
from aiohttp import web
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session


@attrs.define
class Post:
    """One request that a receiver got."""

    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = orjson.loads(self.body)
        return value


@attrs.define
class Receiver:
    """A web server at ``url``; ``answers`` are the statuses of its next answers, then 204."""

    url: str
    posts: list[Post] = attrs.Factory(list)
    answers: list[int] = attrs.Factory(list)

    def list_kinds(self) -> list[str]:
        return [post.json["type"] for post in self.posts]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver("")

    async def keep(request: web.Request) -> web.Response:
        receiver.posts.append(Post(dict(request.headers), await request.read()))
        status = receiver.answers.pop(0) if receiver.answers else 204
        return web.Response(status=status, text="" if status == 204 else "not now")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", keep)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    receiver.url = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


class Mailbox:
    """Keeps every mail."""

    def __init__(self) -> None:
        self.mails: list[Message] = []

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
        content = envelope.content
        assert isinstance(content, bytes)
        self.mails.append(message_from_bytes(content))
        return "250 OK"


@asynccontextmanager
async def reading_mail() -> AsyncIterator[tuple[Mailbox, int]]:
    """A mailbox and the port of its SMTP server."""
    mailbox = Mailbox()
    with socket.socket() as free:  # the controller connects to the port that it is given
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()
