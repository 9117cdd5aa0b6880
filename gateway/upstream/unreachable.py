"""The error of a connection that could not be opened. Its message states the cause, but neither host nor port."""

import os
import socket

from gateway.errors import ProviderBadResponse


def build_unreachable(error: BaseException) -> ProviderBadResponse:
    """Build the error for an exception of the socket or the resolver, or for an exception caused by one."""
    if isinstance(error.__cause__, OSError):
        error = error.__cause__
    if isinstance(error, socket.gaierror):
        cause = "DNS lookup failed"
    elif isinstance(error, ConnectionRefusedError):
        cause = "connection refused"
    elif isinstance(error, OSError) and error.errno is not None:
        cause = os.strerror(error.errno).lower()
    else:
        cause = ""
    message = "The provider could not be reached"
    return ProviderBadResponse(f"{message}: {cause}" if cause else message, phase="connect")
