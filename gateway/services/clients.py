"""Opens the clients that send requests to providers, and tracing, which adds a header to these requests."""

from contextlib import AsyncExitStack

from gateway.frozen import frozen
from gateway.observability.trace_context import TracedHttpClient
from gateway.options import AppOptions
from gateway.server.context import TracingServices
from gateway.services.observability import open_tracing
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.environment_proxy import open_environment_proxies
from gateway.upstream.interface import HttpClient
from gateway.upstream.websocket import WebSocketClient


@frozen
class Clients:
    """The clients for HTTP and for WebSocket connections. ``tracing`` is None if tracing is off."""

    http: HttpClient
    websockets: WebSocketClient
    tracing: TracingServices | None


def open_clients(options: AppOptions, stack: AsyncExitStack) -> Clients:
    """Open the clients. Raises ``ConfigError`` if the extra for tracing is missing."""
    find_proxy = open_environment_proxies(options.environ)
    http = PooledHttpClient(find_proxy=find_proxy)
    stack.push_async_callback(http.close)
    websockets = WebSocketClient(http.access_tokens.authorize, find_proxy)
    stack.push_async_callback(websockets.close)
    tracing = open_tracing(options.config.tracing, stack)
    return Clients(http if tracing is None else TracedHttpClient(http, tracing.current), websockets, tracing)
