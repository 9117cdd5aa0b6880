"""Lists that can be searched, sorted and paged: what the templates in ``list.html`` show of them.

The address of a list page has the parameters of the admin API: ``search``, ``sort``, ``after`` and those of filters.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlencode

from aiohttp import web

from gateway.errors import InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.server.admin.handler import ListPage
from gateway.server.console.page import ask_admin_api
from gateway.server.console.routes import ROOT

PAGE_SIZE = 50


@frozen(kw_only=True)
class ListView:
    """A page of a list.

    Attributes:
        path: the path of the list's page.
        cursor: the name of the query parameter with the cursor of a page.
        total: the number of objects on all pages; None if they are not counted.
        start: the number of objects on the pages before this one.
        next: the cursor of the next page; None after the last one.
        previous: the cursor of the page before; empty for the first page, None if there is none.
    """

    path: str
    rows: Sequence[Any]
    search: str = ""
    sort: str = ""
    filters: Mapping[str, str]
    cursor: str = "after"
    total: int | None = None
    start: int = 0
    next: str | None
    previous: str | None

    @property
    def is_filtered(self) -> bool:
        return bool(self.search or self.filters)

    @property
    def next_url(self) -> str | None:
        return None if self.next is None else self._write_url(self.sort, self.next)

    @property
    def previous_url(self) -> str | None:
        return None if self.previous is None else self._write_url(self.sort, self.previous)

    def find_direction(self, field: str) -> Literal["ascending", "descending", "none"]:
        """Return how the rows are sorted by ``field``: a value of ``aria-sort``."""
        if self.sort == field:
            return "ascending"
        return "descending" if self.sort == f"-{field}" else "none"

    def write_sort_url(self, field: str, *, descending_first: bool) -> str:
        """Return the address of the first page sorted by ``field``; the other way if the list is already sorted so."""
        directions = (f"-{field}", field) if descending_first else (field, f"-{field}")
        return self._write_url(directions[self.sort == directions[0]], "")

    def _write_url(self, sort: str, cursor: str) -> str:
        query = {"search": self.search, **self.filters, "sort": sort, self.cursor: cursor}
        text = urlencode({name: value for name, value in query.items() if value})
        return f"{self.path}?{text}" if text else self.path


async def load_list(
    request: web.Request,
    path: str,
    filters: Sequence[str] = (),
    *,
    page_path: str | None = None,
    default_sort: str = "",
    **fixed: Any,
) -> ListView:
    """Load the page of the admin API's list ``path`` that the request's query asks for.

    ``filters`` are the names of the list's other query parameters, ``fixed`` those with a fixed value. ``default_sort``
    is the ``sort`` of an address without one. A cursor of an object that is no longer in the list leads to the first
    page; a filter that names no object leaves no rows. Raises ``InvalidRequest``.
    """
    query = request.query
    values = {name: query[name] for name in filters if query.get(name)}
    search, sort = query.get("search", ""), query.get("sort") or default_sort
    asked = {"limit": PAGE_SIZE, "search": search, "sort": sort, **values, **fixed}
    try:
        page: ListPage[Any] = await ask_admin_api(request, path, after=query.get("after"), **asked)
    except InvalidRequest as error:
        if error.param != "after":
            raise
        page = await ask_admin_api(request, path, **asked)
    except NotFound:  # of an object that a filter names
        page = ListPage((), total=0, start=0, next_after=None, previous_after=None)
    return ListView(
        path=f"{ROOT}{page_path or path}",
        rows=page,
        search=search,
        sort=sort,
        filters=values,
        total=page.total,
        start=page.start,
        next=page.next_after,
        previous=page.previous_after,
    )
