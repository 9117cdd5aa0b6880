"""What a vendor is to the gateway: an address, a signer, and small pure quirks."""

from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

import attrs

from gateway.domain.channel import Channel
from gateway.domain.plan import Plan

Path = Literal["/chat/completions", "/embeddings", "/models"]
Signer = Callable[[str], dict[str, str]]


def sign_bearer(key: str) -> dict[str, str]:
    """``Authorization: Bearer``, what every provider of the convention reads; nothing where there is no key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def keep_model_id(listed: str) -> str:
    """A model's id as the provider lists it."""
    return listed


@attrs.frozen
class Provider:
    """One vendor of the chat-completion convention.

    Attributes:
        slug: what a channel's ``provider`` says.
        title: its name for people.
        base_url: its address; None where every channel has to say its own.
        env_key: the environment variable that usually holds its key; None where there is no custom.
        local_port: the port on which it usually listens on the same machine; None for remote vendors.
        sign: key -> headers.
        sign_list: the same for its model list, where that differs.
        read_model_id: its listed id -> the id callers use.
        list_query: query string of its model list.
    """

    slug: str
    title: str
    base_url: str | None = None
    env_key: str | None = None
    local_port: int | None = None
    sign: Signer = sign_bearer
    sign_list: Signer | None = None
    read_model_id: Callable[[str], str] = keep_model_id
    list_query: str = ""

    def plan_post(self, channel: Channel, path: Path, key: str, body: bytes, *, stream: bool) -> Plan:
        """A POST of ``body``. Nothing of the caller's travels but the body: every header is ours or the channel's."""
        ours = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if stream else "application/json",
            "Accept-Encoding": "identity",
            **self.sign(key),
        }
        headers = _lay_over(ours, channel)
        return Plan("POST", channel.base_url + path, headers, body, channel.timeouts, channel.proxy)

    def plan_models(self, channel: Channel, key: str) -> Plan:
        """A GET of the provider's model list."""
        sign = self.sign_list or self.sign
        headers = _lay_over({"Accept": "application/json", "Accept-Encoding": "identity", **sign(key)}, channel)
        url = f"{channel.base_url}/models{self.list_query}"
        return Plan("GET", url, headers, None, channel.timeouts, channel.proxy)


def _lay_over(ours: dict[str, str], channel: Channel) -> dict[str, str]:
    """Our headers under the channel's own; a name is the same in any spelling."""
    theirs = {name.lower() for name, _ in channel.headers}
    return {name: value for name, value in ours.items() if name.lower() not in theirs} | dict(channel.headers)


def find_url_problem(url: str) -> str | None:
    """Why ``url`` cannot be a base URL, or None where it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if not url.isprintable() or " " in url:
        return "a URL has no spaces or control characters"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return "expected http:// or https:// and a host"
    if parts.query or parts.fragment:
        return "a base URL has no query or fragment"
    if parts.username or parts.password:
        return "credentials belong in api_key, not in the URL"
    return None
