"""The TLS certificate (``server.tls_certificate``, ``server.tls_key``), which can be renewed with open connections.

A new connection gets the certificate that is current when it begins; an open connection keeps its own.
"""

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway.frozen import frozen

CHECK_EVERY_S = 60.0
WARN_DAYS = 21
WARN_EVERY_S = 86_400.0
_DAY_S = 86_400

log = structlog.stdlib.get_logger(__name__)


class CertificateError(Exception):
    """The certificate or its key cannot be used; the message is for the operator."""


@frozen
class Certificate:
    """A certificate and its key.

    ``fingerprint``: the SHA-256 of the certificate, in hexadecimal. ``expires_s``: Unix seconds. ``content_digest``: a
    digest of both files.
    """

    context: ssl.SSLContext
    fingerprint: str
    expires_s: float
    content_digest: bytes

    def find_days_left(self, now_s: float) -> int:
        """Return the whole days until the certificate expires; negative afterwards."""
        return int((self.expires_s - now_s) // _DAY_S)

    @property
    def expires(self) -> str:
        return datetime.fromtimestamp(self.expires_s, UTC).isoformat(timespec="minutes")


def read_certificate(certificate: Path, key: Path) -> Certificate:
    """Read a PEM file with the certificate chain, and one with the key. Raises ``CertificateError``."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - only a gateway with TLS needs it
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415

    try:
        pem, content_digest = certificate.read_bytes(), _hash_files(certificate, key)
        leaf = load_pem_x509_certificates(pem)[0]
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(certificate, key, password=lambda: b"")  # otherwise OpenSSL would prompt on a terminal
    except ssl.SSLError as error:
        reason = "it does not belong to the certificate" if "MISMATCH" in str(error.reason) else error.reason or error
        raise CertificateError(f"server.tls_key: {key}: {reason}. It must be a PEM file without a passphrase") from None
    except OSError as error:
        raise CertificateError(f"The TLS file {error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise CertificateError(f"server.tls_certificate: {certificate} is no PEM certificate: {error}") from None
    return Certificate(context, leaf.fingerprint(SHA256()).hex(), leaf.not_valid_after_utc.timestamp(), content_digest)


def _hash_files(*paths: Path) -> bytes:
    return hashlib.sha256(b"\n".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).digest()


class ServerCertificate:
    """The certificate of a running gateway. Raises ``CertificateError`` if the first read fails.

    ``current``: the certificate for new connections. ``context``: the server's TLS context, which passes each
    connection to ``current``. ``on_change``: called after another certificate has become current.
    """

    def __init__(self, certificate: Path, key: Path, clock: Callable[[], float] = time.time) -> None:
        self._certificate = certificate
        self._key = key
        self._clock = clock
        self._last_warning_s = float("-inf")
        self._reported_error = ""
        self.on_change: Callable[[], None] = _do_nothing
        self.current = first = read_certificate(certificate, key)
        # A renewal switches contexts: ``load_cert_chain`` on the one in use could fail between certificate and key.
        self.context = first.context
        self.context.sni_callback = self._hand_over
        self._warn()

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self.current.context

    def read_changed_certificate(self) -> Certificate | None:
        """Return the certificate in the files; None if they are those of ``current``. Raises ``CertificateError``."""
        try:
            if _hash_files(self._certificate, self._key) == self.current.content_digest:
                return None
        except OSError as error:
            raise CertificateError(f"The TLS file {error.filename} cannot be read: {error.strerror}") from None
        return read_certificate(self._certificate, self._key)

    def adopt(self, certificate: Certificate) -> None:
        self.current = certificate
        log.info("certificate_renewed", path=str(self._certificate), reason=f"it expires at {certificate.expires}")
        self._last_warning_s = float("-inf")
        self._warn()
        self.on_change()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self.check()

    async def check(self) -> None:
        """Use changed files. If they are not usable, log this once and keep the current certificate.

        Also warn, once a day, of a certificate that expires soon.
        """
        try:
            certificate = await asyncio.to_thread(self.read_changed_certificate)
        except CertificateError as error:
            if str(error) != self._reported_error:
                log.error("certificate_not_renewed", error=str(error))  # noqa: TRY400 - files, not a bug
            self._reported_error = str(error)
            return
        self._reported_error = ""
        if certificate is not None:
            self.adopt(certificate)
        self._warn()

    def _warn(self) -> None:
        now_s = self._clock()
        if self.current.find_days_left(now_s) < WARN_DAYS and now_s - self._last_warning_s >= WARN_EVERY_S:
            self._last_warning_s = now_s
            log.warning("certificate_expires", path=str(self._certificate), reason=f"at {self.current.expires}")


def open_certificate(certificate: str, key: str) -> ServerCertificate | None:
    """Read the configured files; None if no certificate is configured. Raises ``CertificateError``."""
    return ServerCertificate(Path(certificate), Path(key)) if certificate else None


def _do_nothing() -> None:
    """Do nothing, because nothing depends on the certificate yet."""
