"""docs/reference/providers.md: the providers, their keys and addresses and the API formats that they speak."""

from gateway.providers.base import Provider
from gateway.providers.registry import PROVIDERS
from scripts.reference_parts.markdown import join_blocks, write_table

_DEMO = "demo"
_INTRODUCTION = """\
# Providers

This page is generated from the program.

`provider` of a channel is one of these words. If no channel is configured, the gateway connects to every provider whose
key variable is set, and to model servers on the usual ports of this machine.

A provider with several API formats gets each request in the client's own format if it can. `gateway explain` shows
which one is used for a model.
"""
_LOCAL = """\
## On this machine

The gateway looks for these servers while no channel is configured. They need no key.
"""
_OWN = """\
## With an address of your own

These channels need a `base_url`, and are not found by variables. `custom` is any server with the OpenAI API:

```toml
[[channel]]
name = "my-server"
provider = "custom"
base_url = "https://models.example.com/v1"
api_key = "${MY_SERVER_KEY}"
models = ["my-model"]
```
"""
_CLOUD_KEYS = """\
## Keys of cloud providers

| Provider | Key |
| --- | --- |
| Azure OpenAI | The API key, or `TENANT:CLIENT_ID:CLIENT_SECRET` of an app registration in Microsoft Entra ID with \
the role "Cognitive Services OpenAI User". The gateway fetches the tokens and renews them before they expire. `TENANT` \
can also be the address of an authority, such as `https://login.microsoftonline.com/contoso.onmicrosoft.com`. |
| Amazon Bedrock (Converse) | `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with `:SESSION_TOKEN` at its end for temporary \
credentials, or a Bedrock API key. |
| Google Vertex AI | The key file of a service account (JSON) in base64 and in one line, or an access token. |
| Kling AI | The API key, or `ACCESS_KEY:SECRET_KEY`. |
"""


def build_providers() -> str:
    """Build the page."""
    listed = [one for one in PROVIDERS.values() if one.slug != _DEMO]
    remote = [one for one in listed if one.base_url is not None and one.local_port is None]
    local = [one for one in listed if one.local_port is not None]
    own = [one for one in listed if one.base_url is None and one.local_port is None]
    return join_blocks(
        [
            _INTRODUCTION,
            write_table(
                ("Provider", "`provider`", "Key variable", "Base URL", "API formats"), map(_write_remote, remote)
            ),
            _LOCAL,
            write_table(("Server", "`provider`", "Port", "API formats"), map(_write_local, local)),
            _OWN,
            write_table(("Provider", "`provider`", "Key variable", "API formats"), map(_write_own, own)),
            _CLOUD_KEYS,
        ]
    )


def _write_remote(provider: Provider) -> tuple[str, ...]:
    title, slug, key, formats = _write_own(provider)
    return title, slug, key, f"`{provider.base_url}`", formats


def _write_local(provider: Provider) -> tuple[str, ...]:
    title, slug, _, formats = _write_own(provider)
    return title, slug, str(provider.local_port), formats


def _write_own(provider: Provider) -> tuple[str, str, str, str]:
    """Return title, slug, key variable and API formats; every provider has them."""
    key = f"`{provider.env_key}`" if provider.env_key else ""
    formats = dict.fromkeys(endpoint.wire for endpoint in provider.endpoints)
    return provider.title, f"`{provider.slug}`", key, ", ".join(f"`{wire}`" for wire in formats)
