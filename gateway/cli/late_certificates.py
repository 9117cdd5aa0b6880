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
    """Reads the certificates at its first connection, and is an ordinary context from then on.

    Event loops connect through ``wrap_bio``. Until it is called, the context trusts no certificate.
    """

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.set_default_verify_paths()
        return self.wrap_bio(*args, **kwargs)
