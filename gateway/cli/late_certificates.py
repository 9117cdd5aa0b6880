"""Imports aiohttp without reading the trusted certificates, which takes longer than all of its modules' own code."""

import ssl
import sys
from importlib import import_module
from typing import Any


def import_aiohttp() -> None:
    """Import aiohttp, whose TLS contexts then read the trusted certificates at their first connection.

    aiohttp creates two contexts when it is imported, and each would read the system's certificates for 23 ms.
    """
    if "aiohttp" in sys.modules:
        return
    ssl.SSLContext.set_default_verify_paths = _postpone  # type: ignore[assignment, method-assign]
    try:
        import_module("aiohttp")
    finally:
        del ssl.SSLContext.set_default_verify_paths  # uncovers the method of the base class


def _postpone(context: ssl.SSLContext) -> None:
    context.__class__ = _LateContext


class _LateContext(ssl.SSLContext):
    """Reads the certificates at its first connection, and is an ordinary context once it has any.

    Event loops connect through ``wrap_bio``. Until it is called, the context trusts no certificate. If the file of the
    certificates cannot be opened then, as without a free descriptor, the next connection reads the file again.
    """

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        self.set_default_verify_paths()
        if self.cert_store_stats()["x509"]:  # else the file could not be read: OpenSSL raises no error for that
            self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        return ssl.SSLContext.wrap_bio(self, *args, **kwargs)
