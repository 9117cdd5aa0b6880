"""An operation of the admin API: its route and required role. The handler is imported at the first request."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from aiohttp import web

from gateway.domain.member import Forbidden, Member, includes_rights
from gateway.frozen import frozen
from gateway.server.admin.prefix import PREFIX

if TYPE_CHECKING:  # routes are registered at start without importing handlers
    from gateway.server.admin.handler import AdminHandler

Access = Literal["anyone", "viewer", "member", "body_reader", "administrator"]
"""The minimum role to call an operation, or anyone. A bearer of the admin token is an administrator.

A body reader is an administrator, or a member of any role with the right to read its account's kept bodies.
"""
BODIES_UNREAD = "This needs the right to read kept bodies, which an administrator gives"


@frozen
class AdminOperation:
    """One operation of the admin API.

    ``path`` is the path without the prefix of the admin API. ``find_handler`` imports the handler's module and returns
    the handler. ``access`` is the required role. Members get 404 for objects of other accounts.
    """

    method: str
    path: str
    find_handler: "Callable[[], AdminHandler]"
    access: Access = "administrator"

    @property
    def full_path(self) -> str:
        return PREFIX + self.path

    @property
    def handler(self) -> "AdminHandler":
        return self.find_handler()


def check_access(member: Member, access: Access) -> None:
    """Raise ``Forbidden`` if the member may not call an operation with that ``access``."""
    if access == "body_reader":
        if member.role != "administrator" and not member.may_read_bodies:
            raise Forbidden(BODIES_UNREAD, should_retry=False)
    elif access != "anyone" and not includes_rights(member.role, access):
        raise Forbidden(f"This needs the role {access!r}; yours is {member.role!r}", should_retry=False)


Operations = Mapping[tuple[str, str], AdminOperation]
OPERATIONS: web.AppKey[Operations] = web.AppKey("operations")
"""Operations by method and full path."""


def register_operations(admin: web.Application, operations: Iterable[AdminOperation]) -> Operations:
    """Add a route for every admin operation, and return the operations by method and full path.

    Raises ``ValueError`` for two operations with the same method and path.
    """
    operations_by_path: dict[tuple[str, str], AdminOperation] = {}
    for operation in operations:
        admin.router.add_route(operation.method, operation.path, partial(_respond, operation))
        if operation.method == "GET":
            operations_by_path["HEAD", operation.full_path] = operation
        if operations_by_path.setdefault((operation.method, operation.full_path), operation) is not operation:
            raise ValueError(f"two operations at {operation.method} {operation.full_path}")
    return operations_by_path


async def _respond(operation: AdminOperation, request: web.Request) -> web.StreamResponse:
    return await operation.handler.respond(request)
