"""What the bench's own ends say to each other: the bytes of calls and answers, all made beforehand.

Every event of a stream is as long as every other and carries the moment at which the provider sent it. The client
reads from it how long the event was under way: both read the same clock (``CLOCK_MONOTONIC``), on one machine.
"""

import ssl
import time

import attrs

KEY = "sk-bench-bench-bench-bench"
MODEL = "bench-model"
PROMPT = "Say in a few plain sentences what a relay does between a caller and a provider, and what it must not do. " * 3
STREAMED = b'"stream":true'
LAST_CHUNK = b"0\r\n\r\n"
MARK = b'"content":" '
"""Stands in every event of the provider once, before its moment."""
STAMP_DIGITS = 19

_EVENT_HEAD = (
    b'data: {"id":"chatcmpl-bench0123456789abcdef","object":"chat.completion.chunk","created":1750000000,'
    b'"model":"bench-model","system_fingerprint":"fp_bench","choices":[{"index":0,"delta":{' + MARK
)
_EVENT_TAIL = b'"},"finish_reason":null}]}\n\n'
EVENT_BYTES = len(_EVENT_HEAD) + STAMP_DIGITS + len(_EVENT_TAIL)
_CHUNK_HEAD = b"%x\r\n" % EVENT_BYTES + _EVENT_HEAD
_CHUNK_TAIL = _EVENT_TAIL + b"\r\n"

_TEXT = (
    "A relay takes what a caller asks, hands it to a provider and hands back what the provider says, byte for byte. "
    "It must not keep the caller waiting, lose a piece, put pieces in another order, or say what was not said."
)
_USAGE = b'"usage":{"prompt_tokens":64,"completion_tokens":48,"total_tokens":112}'
_ANSWER = (
    b'{"id":"chatcmpl-bench0123456789abcdef","object":"chat.completion","created":1750000000,"model":"bench-model",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"%b","refusal":null},"logprobs":null,'
    b'"finish_reason":"stop"}],%b,"service_tier":"default","system_fingerprint":"fp_bench"}'
) % (_TEXT.encode(), _USAGE)
_MODELS = b'{"object":"list","data":[{"id":"bench-model","object":"model","created":1750000000,"owned_by":"bench"}]}'
_HEAD = (
    b"HTTP/1.1 200 OK\r\nDate: Sat, 01 Nov 2025 00:00:00 GMT\r\nServer: bench\r\nX-Request-Id: req_bench0123456789\r\n"
)
STREAM_HEAD = (
    _HEAD + b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def _write_json(body: bytes) -> bytes:
    return _HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


ANSWER = _write_json(_ANSWER)
MODELS = _write_json(_MODELS)


def _write_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_CHUNK_NOW = b'data: {"id":"chatcmpl-bench0123456789abcdef","object":"chat.completion.chunk","created":1750000000,'
STREAM_END = (
    _write_chunk(_CHUNK_NOW + b'"model":"bench-model","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    + _write_chunk(_CHUNK_NOW + b'"model":"bench-model","choices":[],' + _USAGE + b"}\n\n")
    + _write_chunk(b"data: [DONE]\n\n")
    + LAST_CHUNK
)


def write_event() -> bytes:
    """An event as a chunk of its own, sent now."""
    return b"%b%019d%b" % (_CHUNK_HEAD, time.monotonic_ns(), _CHUNK_TAIL)


@attrs.frozen
class Format:
    """The API format that a client speaks.

    Attributes:
        path: of its requests.
        mark: stands in every event with text once, before its moment.
        done: stands in the end of every stream.
    """

    path: str
    mark: bytes
    done: bytes


CHAT = Format("/v1/chat/completions", MARK, b"[DONE]")
MESSAGES = Format("/v1/messages", b'"text":" ', b'"message_stop"')


def _trust_all() -> ssl.SSLContext:
    """The certificate is one of the bench's own, and the peer is on this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


TRUSTING = _trust_all()


@attrs.frozen
class Address:
    """Where a relay listens, and how it wants to be spoken to."""

    port: int
    format: Format = CHAT
    tls: bool = False


def read_delay_ns(piece: bytes, mark: bytes = MARK) -> int | None:
    """How long ago the first event in ``piece`` was sent; None if no whole one is in it."""
    at = piece.find(mark) + len(mark)
    stamp = piece[at : at + STAMP_DIGITS]
    return time.monotonic_ns() - int(stamp) if at >= len(mark) and len(stamp) == STAMP_DIGITS else None


def write_call(address: Address, *, events: int = 0) -> bytes:
    """A client's request: for a stream of so many ``events``, or for a whole answer."""
    stream = b'"stream":true,"max_tokens":%d' % events if events else b'"max_tokens":64'
    body = b'{"model":"%b",%b,"temperature":0.7,"messages":[{"role":"user","content":"You are brief."},' % (
        MODEL.encode(),
        stream,
    )
    body += b'{"role":"user","content":"%b"}]}' % PROMPT.encode()
    return (
        f"POST {address.format.path} HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\n"
        f"Authorization: Bearer {KEY}\r\nAccept: application/json\r\n"
        f"User-Agent: bench/1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
