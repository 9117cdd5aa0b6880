"""What is measured, by name: the gateway and its variants, nginx, the bare relay, and other gateways."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial

import psutil

from scripts.bench_parts.ours import VARIANTS, start_ours
from scripts.bench_parts.peers import PEERS, install, start_peer
from scripts.bench_parts.processes import NoRelay, Place, Relay, await_answer, await_found, find_port, start_python

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
        raise NoRelay("nginx is not installed (Debian: apt install nginx-light)")
    folder, port = place.make_folder("nginx"), find_port()
    user = "root" if os.getuid() == 0 else "nobody"
    names = {"folder": folder, "user": user, "upstream": place.upstream, "port": port, "files": place.files}
    (folder / "nginx.conf").write_text(NGINX.format(**names))
    log, began = folder / "log", time.monotonic()
    process = place.launch([path, "-p", str(folder), "-c", str(folder / "nginx.conf")], log)
    master = psutil.Process(process.pid)
    worker = await_found(process, log, lambda: next((child.pid for child in master.children()), 0))
    return await_answer(Relay("nginx", worker, port, process, on="no key, no log, no money"), log, began)


def start_bare(place: Place) -> Relay:
    """The bare relay."""
    words, began = ["scripts.bench_parts.bare", f"http://127.0.0.1:{place.upstream}"], time.monotonic()
    relay = start_python("bare", words, place.core, place.others, place.prefix)
    relay.on = "aiohttp on both sides and nothing else"
    return await_answer(relay, place.folder, began)


STARTS: dict[str, Callable[[Place], Relay]] = {
    **{name: partial(start_ours, name=name) for name in VARIANTS},
    "nginx": start_nginx,
    "bare": start_bare,
    **{name: partial(start_peer, name=name) for name in PEERS},
}


def find_reason(name: str) -> str:
    """Install a peer; why a relay cannot be started, or nothing."""
    if name == "nginx":
        return "" if find_nginx() else "nginx is not installed (Debian: apt install nginx-light)"
    try:
        if name in PEERS:
            install(PEERS[name])
    except NoRelay as error:
        return str(error)
    return ""
