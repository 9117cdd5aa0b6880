"""What is measured, in processes of their own on a core of their own: the gateway, nginx, the bare relay, peers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

import attrs
import psutil

from gateway.storage.data_folder import find_holder
from scripts.bench_parts.meter import pin
from scripts.bench_parts.wire import KEY, MODEL

ROOT = Path(__file__).parents[2]
START_S = 60.0
END_S = 20.0
GATEWAY = f"""
[server]
port = 0
log_format = "json"
[[account]]
name = "bench"
quota_usd = 1000000
quota_period = "monthly"
rpm = 100000000
tpm = 1000000000
max_concurrency = 100000
[[key]]
name = "bench"
account = "bench"
secret = "{KEY}"
quota_usd = 1000000
quota_period = "daily"
models = ["bench-*"]
rpm = 100000000
tpm = 1000000000
max_concurrency = 100000
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
max_concurrency = 100000
"""
OBSERVED = """
[tracing]
endpoint = "http://127.0.0.1:{observer}"
sample_ratio = 0.01
"""
NGINX = """
daemon off;
user {user};
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
worker_rlimit_nofile {files};
events {{ worker_connections {files}; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  upstream provider {{
    server 127.0.0.1:{upstream};
    keepalive 512;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://provider;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
"""
_SET = {"GATEWAY_DISCOVER": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Nobody looks for anything outside of this machine."""
LITELLM = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: provider-key-of-the-bench
general_settings:
  master_key: {key}
"""


class NoRelay(Exception):
    """A relay is not installed, or did not start."""


@attrs.frozen
class Place:
    """Where relays are started.

    Attributes:
        folder: for all they write.
        upstream: the provider's port.
        core: the one they are pinned to, None where none is.
        others: the one that this process goes back to.
        files: descriptors that each may have.
        tree: of the gateway's source.
        before: of another gateway's, to be measured beside it.
    """

    folder: Path
    upstream: int
    core: int | None
    others: int | None
    files: int
    tree: Path = ROOT
    before: Path = ROOT


@attrs.define
class Relay:
    """One that runs. ``pid`` is the process that does the work."""

    name: str
    pid: int
    port: int
    _process: subprocess.Popen[bytes]
    observer: "Relay | None" = None

    def stop(self) -> None:
        """End it; killed where it does not."""
        if self.observer is not None:
            self.observer.stop()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def start_python(name: str, words: list[str], core: int | None, others: int | None) -> Relay:
    """A module in a process of its own, at the port that it prints."""
    pin(core)
    try:
        process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, cwd=ROOT)
    finally:
        pin(others)
    line = process.stdout.readline() if process.stdout else b""
    if not line.strip().isdigit():
        process.kill()
        raise NoRelay(f"{words[0]} did not start")
    return Relay(name, process.pid, int(line), process)


def _launch(place: Place, command: list[str], log: IO[bytes], tree: Path = ROOT) -> subprocess.Popen[bytes]:
    """Start ``command`` on the relay's core: what it starts in turn stays there, too."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    pin(place.core)
    try:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=tree, env=kept | _SET)
    finally:
        pin(place.others)


def _await(process: subprocess.Popen[bytes], log: Path, find: Callable[[], int]) -> int:
    """What ``find`` finds, once that is not 0. Raises ``NoRelay`` with the log where the process ends before."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    process.kill()
    raise NoRelay(f"It did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _make_folder(place: Place, name: str) -> Path:
    """One that nobody had: a relay may be started many times in a run."""
    folder = place.folder / f"{name}-{time.monotonic_ns()}"
    folder.mkdir()
    return folder


def start_gateway(place: Place) -> Relay:
    """The gateway with everything on: keyed, quotas and limits on key and account, prices, rows, its log in a file."""
    return _start_gateway(place, "gateway", place.tree)


def start_before(place: Place) -> Relay:
    """The gateway of another tree, set up alike."""
    return _start_gateway(place, "before", place.before)


def start_observed(place: Place) -> Relay:
    """The same gateway, its metrics scraped every five seconds, and one request of a hundred traced."""
    observer = start_python("observer", ["scripts.bench_parts.observer"], place.others, place.others)
    relay = _start_gateway(place, "observed", place.tree, OBSERVED.format(observer=observer.port))
    relay.observer = observer
    with urllib.request.urlopen(f"http://127.0.0.1:{observer.port}/watch/{relay.port}", b""):
        return relay


def _start_gateway(place: Place, name: str, tree: Path, more: str = "") -> Relay:
    folder = _make_folder(place, name)
    config, data, log = folder / "gateway.toml", folder / "data", folder / "log"
    config.write_text(GATEWAY.format(upstream=place.upstream) + more)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--data", str(data)]
    with log.open("wb") as file:
        process = _launch(place, command, file, tree)

    def find() -> int:
        url = str((find_holder(data) or {}).get("url", "")) if data.exists() else ""
        return int(url.rpartition(":")[2].rstrip("/")) if url else 0

    return Relay(name, process.pid, _await(process, log, find), process)


def find_nginx() -> str | None:
    """Its path."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def read_nginx_version() -> str:
    """What it says of itself, empty where it is not installed."""
    path = find_nginx()
    text = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stderr if path else ""
    return text.rpartition("/")[2].strip()


def start_nginx(place: Place) -> Relay:
    """Nginx with one worker, which is what is measured; unbuffered, and connections to the provider kept."""
    path = find_nginx()
    if path is None:
        raise NoRelay(f"nginx is not installed ({HINTS['nginx']})")
    folder, port = _make_folder(place, "nginx"), _find_port()
    user = "root" if os.getuid() == 0 else "nobody"
    names = {"folder": folder, "user": user, "upstream": place.upstream, "port": port, "files": place.files}
    (folder / "nginx.conf").write_text(NGINX.format(**names))
    log = folder / "log"
    with log.open("wb") as file:
        process = _launch(place, [path, "-p", str(folder), "-c", str(folder / "nginx.conf")], file)
    master = psutil.Process(process.pid)
    worker = _await(process, log, lambda: next((child.pid for child in master.children()), 0))
    return Relay("nginx", worker, port, process)


def _find_port() -> int:
    """One that is free now: nginx cannot be told to take any, and say which."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_bare(place: Place) -> Relay:
    """The bare relay."""
    words = ["scripts.bench_parts.bare", f"http://127.0.0.1:{place.upstream}"]
    return start_python("bare", words, place.core, place.others)


def start_litellm(place: Place) -> Relay:
    """LiteLLM's proxy, where it is installed: one worker, no database."""
    path = shutil.which("litellm")
    if path is None:
        raise NoRelay(f"litellm is not installed ({HINTS['litellm']})")
    folder, port = _make_folder(place, "litellm"), _find_port()
    (folder / "config.yaml").write_text(LITELLM.format(model=MODEL, upstream=place.upstream, key=KEY))
    log = folder / "log"
    words = ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as file:
        process = _launch(place, [path, *words], file)
    listening = lambda: port if b"Uvicorn running" in log.read_bytes() else 0  # noqa: E731
    return Relay("litellm", process.pid, _await(process, log, listening), process)


STARTS: dict[str, Callable[[Place], Relay]] = {
    "gateway": start_gateway,
    "observed": start_observed,
    "before": start_before,
    "nginx": start_nginx,
    "bare": start_bare,
    "litellm": start_litellm,
}
PEERS = ("litellm",)
HINTS = {"nginx": "Debian: apt install nginx-light", "litellm": "pip install 'litellm[proxy]', on the PATH"}


def is_installed(name: str) -> bool:
    """Whether there is something to start."""
    if name == "nginx":
        return find_nginx() is not None
    return name not in PEERS or shutil.which(name) is not None
