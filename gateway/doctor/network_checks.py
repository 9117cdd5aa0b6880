"""Checks of the clock (against a provider's), the certificate, and the port."""

import contextlib
import http.client
import sqlite3
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.config.certificate import WARN_DAYS, CertificateError, read_certificate
from gateway.config.schema import Config
from gateway.config.server_schema import ServerSection
from gateway.doctor.finding import Finding
from gateway.providers.registry import PROVIDERS
from gateway.serve import PortInUse, bind
from gateway.storage import channels
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.identity import MASTER_KEY_NAME
from gateway.storage.integrity_check import build_read_only_uri

TIMEOUT_S = 3.0
MAX_ASKED_URLS = 3
WARN_AFTER_S = 30.0
"""The error of the clock above which it is a problem: one step of a second factor. Webhooks tolerate five minutes."""


def check_clock(config: Config, data: Path, database: Path) -> Iterator[Finding]:
    """Compare the clock with the ``Date`` header of the first provider that answers, of ``MAX_ASKED_URLS`` at most."""
    urls = [channel.base_url or _find_base_url(channel.provider) for channel in config.channel if not channel.proxy]
    for url in list(dict.fromkeys(filter(None, [*urls, *_list_stored_addresses(config, data, database)])))[
        :MAX_ASKED_URLS
    ]:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, TypeError):
            ahead_s = time.time() - _read_date(url)
            text = f"The clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of {url}"
            if abs(ahead_s) > WARN_AFTER_S:
                fix = "Set it (timedatectl set-ntp true): second factors, webhooks and daily quotas depend on it"
                yield Finding("clock", "problem", text, fix)
            else:
                yield Finding("clock", "ok", f"The clock agrees with that of {url}")
            return
    yield Finding("clock", "skipped", "No provider could be asked for the time")


def _find_base_url(provider: str) -> str | None:
    return PROVIDERS[provider].base_url if provider in PROVIDERS else None


def _list_stored_addresses(config: Config, data: Path, database: Path) -> list[str | None]:
    """Return the addresses of active stored channels without a proxy; empty if they cannot be read."""
    try:
        master_key = bytes.fromhex(config.store.master_key) or (data / MASTER_KEY_NAME).read_bytes()
        box = SecretBox(master_key).derive(channels.PURPOSE)
        with closing(sqlite3.connect(build_read_only_uri(database), uri=True)) as connection:
            rows = connection.execute("SELECT id, provider, base_url, sealed FROM channels WHERE status = 'active'")
            return [
                base_url or _find_base_url(provider)
                for channel_id, provider, base_url, sealed in rows
                if not orjson.loads(box.open(sealed, context=channels.build_associated_data(channel_id))).get("proxy")
            ]
    except (sqlite3.Error, OSError, ValueError, DecryptionFailed):
        return []


def _read_date(url: str) -> float:
    """Return a server's time in Unix seconds.

    Raises ``OSError``, ``HTTPException``, ``ValueError`` or ``TypeError`` if the server gives none.
    """
    date = _ask(url, "HEAD").headers["Date"]
    return parsedate_to_datetime(date).timestamp()


def _ask(url: str, method: str, *, verify: bool = True) -> http.client.HTTPResponse:
    url_parts = urlsplit(url)
    host = url_parts.hostname or ""
    connection = http.client.HTTPConnection(host, url_parts.port, timeout=TIMEOUT_S)
    if url_parts.scheme == "https":
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, url_parts.port, timeout=TIMEOUT_S, context=context)
    with closing(connection):
        connection.request(method, url_parts.path or "/")
        response = connection.getresponse()
        response.read()
        return response


def check_port(server: ServerSection, holder: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Check that the running gateway answers, or that the port is free.

    ``holder`` is what the running gateway announces; None if no gateway runs.
    """
    if holder is None:
        yield _check_free(server)
        return
    pid, url = holder.get("pid", "unknown"), holder.get("url")
    if not url:
        yield Finding("port", "warning", f"Process {pid} has the data folder and announces no address", "Wait for it")
        return
    try:
        status = _ask(f"{url}/readyz", "GET", verify=False).status
    except (OSError, http.client.HTTPException) as error:
        text = f"The gateway of process {pid} does not answer at {url}: {error}"
        yield Finding("port", "problem", text, f"See its log; end it: kill {pid}")
        return
    if status == http.HTTPStatus.OK:
        yield Finding("port", "ok", f"The gateway of process {pid} answers at {url}")
    else:
        text = f"The gateway of process {pid} at {url} is not ready (HTTP {status})"
        yield Finding("port", "problem", text, f"Read why: {url}/readyz, gateway health")


def check_certificate(server: ServerSection) -> Iterator[Finding]:
    """Check the TLS certificate and its key, if configured."""
    if not server.tls_certificate:
        return
    key = Path(server.tls_key)
    try:
        certificate = read_certificate(Path(server.tls_certificate), key)
    except CertificateError as error:
        yield Finding("tls", "problem", str(error), "Renew the files of server.tls_certificate and server.tls_key")
        return
    if key.stat().st_mode & stat.S_IRWXO:
        yield Finding("tls", "problem", f"Every user can read the key {key}", f"chmod 600 {key}")
    days = certificate.find_days_left(time.time())
    if days < WARN_DAYS:
        expiry_text = "has expired" if days < 0 else f"expires in {days} days"
        text = f"The certificate {server.tls_certificate} {expiry_text}, at {certificate.expires}"
        yield Finding("tls", "problem" if days < 0 else "warning", text, "Renew it; the gateway takes it by itself")
    else:
        yield Finding("tls", "ok", f"The certificate is valid until {certificate.expires}")


def _check_free(server: ServerSection) -> Finding:
    address = f"{server.host}:{server.port}"
    try:
        for sock in bind(server.host, server.port):
            sock.close()
    except PortInUse as error:
        return Finding("port", "problem", str(error), "End the program that has it, or use --host and --port")
    return Finding("port", "ok", f"No gateway runs with this data folder; {address} is free")
