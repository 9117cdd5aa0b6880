"""Detects failed connections whose cause is a lack of resources on this machine, not the provider."""

import errno
import os
import socket

from gateway.errors import FailureScope, ProviderError

_RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors for a lack of descriptors (of the process or machine), buffers, memory or local ports (connect(2),
socket(2))."""
_MAX_CAUSES = 8


class ResourcesExhausted(ProviderError):
    """The gateway has no descriptor, buffer, memory or port left for a connection. The provider is not at fault."""

    code = "overloaded"
    failure_scope: FailureScope = "nobody"

    def __init__(self) -> None:
        super().__init__("The gateway has no room for another connection to a provider", phase="connect")
        self.retry_after_s = 1


def find_exhaustion(error: BaseException) -> ResourcesExhausted | None:
    """Return the error if ``error`` or its cause is a lack of local resources; None otherwise."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        if isinstance(cause, socket.gaierror):  # its error code does not name the resource
            is_exhausted = not _can_open_file()
        else:
            is_exhausted = isinstance(cause, OSError) and cause.errno in _RESOURCE_ERRORS
        if is_exhausted:
            failure = ResourcesExhausted()
            failure.__cause__ = error
            return failure
        cause = cause.__cause__ or cause.__context__
    return None


def _can_open_file() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
