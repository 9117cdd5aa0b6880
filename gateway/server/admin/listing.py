"""Search, order and pages of lists whose objects the gateway reads as a whole."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, ListPage, Query
from gateway.server.admin.io import MAX_LISTED, parse_search
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number

T = TypeVar("T")
V = TypeVar("V")


@frozen
class Listing(Generic[T]):
    """How the objects of a list are searched, sorted and divided into pages.

    Attributes:
        find_id: returns the text that identifies an object in ``after``.
        find_texts: returns the texts of an object that a search looks at.
        sort_keys: the functions that return the values to sort by, by the name of a field. Objects without a value
            (None) come last in both directions. Texts are compared without regard to case.
        searched_fields: what ``find_texts`` returns, in words for the documentation.
    """

    find_id: Callable[[T], str]
    find_texts: Callable[[T], Iterable[str | None]]
    sort_keys: Mapping[str, Callable[[T], Any]]
    searched_fields: str

    @property
    def query(self) -> tuple[Query, ...]:
        """The query parameters of an operation that answers with this list."""
        names = tuple(name for field in self.sort_keys for name in (field, f"-{field}"))
        return (
            Query("search", f"Only objects with each of these words in {self.searched_fields}, in any case."),
            Query("sort", "The field to sort by; with `-` before it, in descending order.", s.one_of(*names)),
            Query("limit", f"Page size, at most {MAX_LISTED}; without it, the page has all objects.", s.COUNT),
            Query("after", "`next` of one page leads to the next page."),
        )

    def list_page(self, request: AdminRequest, objects: Iterable[T]) -> ListPage[T]:
        """Return the page of ``objects`` that the request asks for. Raises ``InvalidRequest``."""
        return self._cut(request, self._sort(request, self._search(request, objects)))

    def _search(self, request: AdminRequest, objects: Iterable[T]) -> list[T]:
        words = set(parse_search(request).lower().split())
        return [candidate for candidate in objects if not words or self._has_words(candidate, words)]

    def _has_words(self, candidate: T, words: Iterable[str]) -> bool:
        text = "\n".join(filter(None, self.find_texts(candidate))).lower()
        return all(word in text for word in words)

    def _sort(self, request: AdminRequest, objects: list[T]) -> list[T]:
        order = request.query.get("sort")
        if order is None:
            return objects
        find_value = self.sort_keys.get(order.removeprefix("-"))
        if find_value is None:
            raise InvalidRequest(
                f"'sort' must be one of {', '.join(self.sort_keys)}, or one of these after '-'", param="sort"
            )
        pairs = [(_fold(find_value(item)), item) for item in objects]
        valued_pairs = [pair for pair in pairs if pair[0] is not None]
        valued_pairs.sort(key=lambda pair: pair[0], reverse=order.startswith("-"))
        return [item for _, item in (*valued_pairs, *(pair for pair in pairs if pair[0] is None))]

    def _cut(self, request: AdminRequest, objects: list[T]) -> ListPage[T]:
        limit, after, start = parse_number(request.query, "limit"), request.query.get("after"), 0
        if limit == 0:
            raise InvalidRequest("'limit' must be at least 1", param="limit")
        if after is not None:
            start = next((index for index, item in enumerate(objects, 1) if self.find_id(item) == after), 0)
            if not start:
                raise InvalidRequest(
                    "'after' is not in this list, or no longer: begin with the first page", param="after"
                )
        size = len(objects) if limit is None else min(limit, MAX_LISTED)
        end = start + size
        previous_index = start - size - 1
        return ListPage(
            objects[start:end],
            total=len(objects),
            start=start,
            next_after=self.find_id(objects[end - 1]) if end < len(objects) else None,
            previous_after=None if not start else self.find_id(objects[previous_index]) if previous_index >= 0 else "",
        )


def _fold(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def replace_objects(page: ListPage[Any], views: Sequence[V]) -> ListPage[V]:
    """Return ``page`` with ``views`` in place of its objects."""
    return ListPage(
        views, total=page.total, start=page.start, next_after=page.next_after, previous_after=page.previous_after
    )
