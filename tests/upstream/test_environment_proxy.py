"""The proxies of the environment: which URL goes through which one."""

import pytest

from gateway.upstream.environment_proxy import NO_PROXY, list_tls_proxies, open_environment_proxies, use_channels_proxy
from tests.support.table_rows import table_rows

PROVIDER = "https://api.provider.test/v1"
BOTH = {"HTTP_PROXY": "http://plain:3128", "HTTPS_PROXY": "http://tls:3128"}

pytestmark = pytest.mark.unit


@table_rows(
    ("environ", "url", "proxy"),
    [
        ({}, PROVIDER, None),
        (BOTH, PROVIDER, "http://tls:3128"),
        (BOTH, "http://api.provider.test/v1", "http://plain:3128"),
        (BOTH, "wss://api.provider.test/v1/realtime", "http://tls:3128"),
        (BOTH, "ws://api.provider.test/v1/realtime", "http://plain:3128"),
        ({"https_proxy": "http://small:1", "HTTPS_PROXY": "http://large:1"}, PROVIDER, "http://small:1"),
        ({"HTTPS_PROXY": "proxy.corp:8080"}, PROVIDER, "http://proxy.corp:8080"),
        ({"HTTPS_PROXY": " http://proxy.corp:8080\n"}, PROVIDER, "http://proxy.corp:8080"),
        ({"ALL_PROXY": "socks5h://all:1080"}, PROVIDER, "socks5h://all:1080"),
        ({"ALL_PROXY": "socks5h://all:1080", **BOTH}, PROVIDER, "http://tls:3128"),
        ({"HTTPS_PROXY": ""}, PROVIDER, None),
        (BOTH | {"NO_PROXY": "*"}, PROVIDER, None),
        (BOTH | {"NO_PROXY": "other.test, provider.test"}, PROVIDER, None),
        (BOTH | {"NO_PROXY": "other.test provider.test"}, PROVIDER, None),
        (BOTH | {"NO_PROXY": "api.provider.test:443"}, PROVIDER, None),
        (BOTH | {"NO_PROXY": "api.provider.test:443"}, "http://api.provider.test/v1", "http://plain:3128"),
        (BOTH | {"NO_PROXY": "[fd00::1]:8000"}, "http://[fd00::1]:8000/v1", None),
        (BOTH | {"NO_PROXY": ".provider.test"}, PROVIDER, None),
        (BOTH | {"no_proxy": "API.Provider.TEST"}, PROVIDER, None),
        (BOTH | {"NO_PROXY": "vider.test"}, PROVIDER, "http://tls:3128"),
        (BOTH | {"NO_PROXY": "api.provider.test:8443"}, "https://api.provider.test:8443/v1", None),
        (BOTH | {"NO_PROXY": "api.provider.test:8443"}, PROVIDER, "http://tls:3128"),
        (BOTH | {"NO_PROXY": "api.provider.test"}, "https://api.provider.test:8443/v1", None),
        (BOTH | {"NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3:8000/v1", None),
        (BOTH | {"NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3:8000/v1", "http://plain:3128"),
        (BOTH | {"NO_PROXY": "fd00::/8, nonsense/x"}, "http://[fd00::1]:8000/v1", None),
        (BOTH, "http://127.0.0.1:11434/v1", None),
        (BOTH, "http://127.8.9.10:11434/v1", None),
        (BOTH, "http://[::1]:11434/v1", None),
        (BOTH, "http://localhost:11434/v1", None),
        (BOTH, "http://ollama.localhost:11434/v1", None),
        (BOTH, "http://host:port/", None),
    ],
)
def test_the_environment_names_the_proxy_of_a_url(environ: dict[str, str], url: str, proxy: str | None) -> None:
    assert open_environment_proxies(environ)(None, url) == proxy


@table_rows(
    ("environ", "names"),
    [
        (BOTH | {"ALL_PROXY": "socks5h://all:1080", "NO_PROXY": "https://x"}, []),
        ({"HTTPS_PROXY": " https://tls:3128", "https_proxy": "HTTPS://tls"}, ["https_proxy", "HTTPS_PROXY"]),
        ({"HTTP_PROXY": "https://tls:3128", "all_proxy": "https://tls:3128"}, ["HTTP_PROXY", "all_proxy"]),
    ],
)
def test_proxies_that_want_tls_are_named(environ: dict[str, str], names: list[str]) -> None:
    assert list(list_tls_proxies(environ)) == names


@table_rows("find", [open_environment_proxies(BOTH), use_channels_proxy])
def test_the_channels_own_proxy_replaces_the_environments_and_none_opts_out(find: object) -> None:
    assert callable(find)
    assert find("http://own:1", PROVIDER) == "http://own:1"
    assert find(NO_PROXY, PROVIDER) is None
