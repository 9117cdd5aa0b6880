"""What this machine, and no provider, lacks when a connection cannot be made."""

import errno
import os
import socket

from gateway.errors import FailureScope, ProviderError

_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Descriptors of this process, or of the machine; buffers; memory; ports to call from (connect(2), socket(2))."""
_MAX_CAUSES = 8


class ResourcesExhausted(ProviderError):
    """The gateway has no descriptor, buffer or port left for a connection to a provider; the provider has no part."""

    code = "overloaded"
    failure_scope: FailureScope = "nobody"

    def __init__(self) -> None:
        super().__init__("The gateway has no room for another connection to a provider", phase="connect")
        self.retry_after_s = 1


def find_exhaustion(error: BaseException) -> ResourcesExhausted | None:
    """The fault of an ``error`` that, or whose cause, is a lack of ours; None if it is not."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        if isinstance(cause, socket.gaierror):  # which does not say what was lacking
            lacking = not _may_open()
        else:
            lacking = isinstance(cause, OSError) and cause.errno in _LACKING
        if lacking:
            failure = ResourcesExhausted()
            failure.__cause__ = error
            return failure
        cause = cause.__cause__ or cause.__context__
    return None


def _may_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
