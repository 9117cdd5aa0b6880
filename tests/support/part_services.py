"""Services of which a test uses a few."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from gateway.server.context import HttpSettings, Services
from gateway.server.multipart import FormLimits

HTTP = HttpSettings(1, FormLimits(max_body_bytes=1, max_file_bytes=1), "", (), "")


def build_services(**given: Any) -> Services:
    """The services that are ``given``; all others are None."""
    fields: dict[str, Any] = dict.fromkeys(field.name for field in attrs.fields(Services))
    return Services(**fields | given)


@contextmanager
def replace_admin(services: Services, **given: Any) -> Iterator[None]:
    """Give a running gateway other services of its admin API during the block."""
    before = services.admin
    object.__setattr__(services, "admin", attrs.evolve(before, **given))
    try:
        yield
    finally:
        object.__setattr__(services, "admin", before)
