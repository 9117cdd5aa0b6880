"""The gateway as it is measured: each variant with everything on, and what is particular to it."""

import contextlib
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs

from gateway.storage.data_folder import find_holder
from scripts.bench_parts.processes import NoRelay, Place, Relay, await_answer, await_found, start_python
from scripts.bench_parts.wire import CHAT, KEY, MESSAGES, MODEL, Format
from tests.support.certificates import write_certificate
from tests.support.postgres import PACKAGES, make_server

EVERYTHING = "a key; quotas, rate limits and concurrency of key and account; prices; a row and a log line a request"
# A crowd's streams all come from one address, which may have half of the connections otherwise.
GATEWAY = f"""
[server]
port = 0
log_format = "json"
max_connections_per_address = 9000
[[account]]
name = "bench"
quota_usd = 1000000
quota_period = "monthly"
{{limits}}
[[key]]
name = "bench"
account = "bench"
secret = "{KEY}"
quota_usd = 1000000
quota_period = "daily"
models = ["bench-*"]
{{limits}}
{{key}}
[[price]]
model = "{MODEL}"
input_usd_per_million = 2.5
output_usd_per_million = 10
[[channel]]
name = "bench"
provider = "custom"
base_url = "http://127.0.0.1:{{upstream}}/v1"
api_key = "provider-key-of-the-bench"
models = ["{MODEL}"]
"""
LIMITS = "rpm = 100000000\ntpm = 1000000000\nmax_concurrency = 100000"
CHANNEL_LIMIT = "max_concurrency = 100000\n"
OBSERVED = """
[tracing]
endpoint = "http://127.0.0.1:{observer}"
sample_ratio = 0.01
"""
TLS = """
[server]
port = 0
log_format = "json"
max_connections_per_address = 9000
tls_certificate = "{folder}/cert.pem"
tls_key = "{folder}/key.pem"
"""
POSTGRES = """
[store]
url = "{url}"
"""
KEPT = """
[streams]
keep_s = 60
"""
"""Kept for the usual ten minutes, streams would fill memory until a run of ten minutes ends."""
ALONE = {"GATEWAY_DISCOVER": "0"}
"""It does not look for model servers on this machine."""
Prepare = Callable[[Place, Path, contextlib.ExitStack], str]
"""Place, folder, what stops at the end -> the end of the configuration file."""


@attrs.frozen
class Variant:
    """A gateway as it is measured.

    Attributes:
        on: what it has switched on.
        prepare: starts what stands beside it.
        format: that clients speak to it.
        key: settings of the key that it is called with.
    """

    on: str
    prepare: Prepare = lambda _place, _folder, _stack: ""
    format: Format = CHAT
    tls: bool = False
    before: bool = False
    key: str = ""


def _run_observer(place: Place, _folder: Path, stack: contextlib.ExitStack) -> str:
    observer = start_python("observer", ["scripts.bench_parts.observer"], place.others, place.others)
    stack.callback(observer.stop)
    return OBSERVED.format(observer=observer.port)


def _run_postgres(_place: Place, folder: Path, stack: contextlib.ExitStack) -> str:
    """A server on the other core: its CPU is not the gateway's."""
    if not PACKAGES.is_dir():
        raise NoRelay("PostgreSQL is not installed (Debian: apt install postgresql)")
    for parent in (folder, folder.parent):
        parent.chmod(0o755)  # the server may run as another user
    server = make_server(folder / "postgres")
    server.start()
    stack.callback(server.stop)
    return POSTGRES.format(url=server.name_url("postgres"))


def _write_tls(_place: Place, folder: Path, _stack: contextlib.ExitStack) -> str:
    write_certificate(folder)
    return TLS.format(folder=folder)


VARIANTS = {
    "gateway": Variant(EVERYTHING + "; SQLite"),
    "postgres": Variant("as gateway, on PostgreSQL (whose own CPU is not counted)", _run_postgres),
    "tls": Variant("as gateway; clients come over TLS", _write_tls, tls=True),
    "translated": Variant("as gateway; clients speak Anthropic's format, the provider OpenAI's", format=MESSAGES),
    "observed": Variant("as gateway; metrics scraped each 5 s, 1 % of requests traced", _run_observer),
    "kept": Variant(
        "as gateway; all bodies kept, each stream resumable",
        lambda _place, _folder, _stack: KEPT,
        key='keep_bodies = "all"\nresumable = true',
    ),
    "before": Variant("the gateway of another tree, as gateway", before=True),
}


def build_command(config: Path, data: Path) -> list[str]:
    """Return the command that serves with the configuration file ``config`` and the data folder ``data``."""
    return [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--data", str(data)]


def find_port(data: Path) -> int:
    """Return the port of the gateway that serves with this data folder; 0 if there is none yet."""
    url = str((find_holder(data) or {}).get("url", "")) if data.exists() else ""
    return int(url.rpartition(":")[2].rstrip("/")) if url else 0


def start_ours(place: Place, name: str) -> Relay:
    """A variant of the gateway. Raises ``NoRelay``."""
    variant, folder = VARIANTS[name], place.make_folder(name)
    config, data, log = folder / "gateway.toml", folder / "data", folder / "log"
    with contextlib.ExitStack() as stack:
        more = variant.prepare(place, folder, stack)
        base = GATEWAY.format(upstream=place.upstream, limits=LIMITS, key=variant.key) + CHANNEL_LIMIT
        config.write_text(more + base[base.index("[[account]]") :] if variant.tls else base + more)
        began = time.monotonic()
        tree = place.before if variant.before else place.tree
        process = place.launch([*place.prefix, *build_command(config, data)], log, tree, ALONE)
        port = await_found(process, log, partial(find_port, data))
        relay = Relay(name, process.pid, port, process, variant.format, variant.tls, variant.on, log)
        await_answer(relay, log, began)
        relay.beside.append(stack.pop_all().close)
    if name == "observed":
        observer = more.rpartition("127.0.0.1:")[2].partition('"')[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{observer}/watch/{port}", b""):
            pass
    return relay
