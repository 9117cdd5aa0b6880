"""Compares a route's own requests with the copies that were sent to its shadow models."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, case, func, literal_column, select

from gateway.domain.price import ONE_PPM
from gateway.domain.request_log import NON_FAILURES
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.schema import requests

MAX_ROWS = 200_000
"""How many of the newest rows of the request log a comparison reads."""
_COLUMNS = requests.c
_EMPTY: ColumnElement[str] = literal_column("''")  # PostgreSQL groups by no expression with a parameter


@frozen
class ModelSums:
    """The requests of one model for a route. ``shadow``: whether they were copies.

    ``model`` is the model's name at the provider. The means are of completed requests, and None without any.

    Attributes:
        compared: how many copies' answers were compared with those that callers got. The next fields are about these.
        mean_agreement: the mean share of words that both answers have, from 0 to 1; None without any.
        same_text: how many answers had an equal text; likewise ``same_tools`` for tool calls and ``same_finish`` for
            why they ended.
    """

    model: str
    shadow: bool
    requests: int
    failures: int
    mean_first_byte_ms: float | None
    mean_total_ms: float | None
    mean_completion_tokens: float | None
    cost_nanos: int
    compared: int = 0
    mean_agreement: float | None = None
    same_text: int = 0
    same_tools: int = 0
    same_finish: int = 0


async def compare_models(database: Database, route: str, since_ms: int) -> Sequence[ModelSums]:
    """Return the sums of each model for ``route``, copies last.

    Of the newest ``MAX_ROWS`` rows of all routes, those settled since ``since_ms`` count.
    """
    newest = select(func.max(_COLUMNS.sequence)).scalar_subquery()
    model = case((_COLUMNS.served_model == _EMPTY, _COLUMNS.model), else_=_COLUMNS.served_model)
    is_completed = _COLUMNS.outcome == "completed"
    means = [
        func.avg(case((is_completed, column)))
        for column in (_COLUMNS.first_byte_ms, _COLUMNS.total_ms, _COLUMNS.completion_tokens)
    ]
    failures = func.sum(case((_COLUMNS.outcome.in_(NON_FAILURES), 0), else_=1))
    columns: list[ColumnElement[Any]] = [
        model,
        _COLUMNS.shadow,
        func.count(),
        failures,
        *means,
        func.sum(_COLUMNS.cost_nanos),
        func.count(_COLUMNS.agreement_ppm),
        func.avg(_COLUMNS.agreement_ppm),
        *(func.sum(case((_COLUMNS.agreed_on.contains(part), 1), else_=0)) for part in ("text", "tools", "finish")),
    ]
    statement = (
        select(*columns)
        .where(_COLUMNS.sequence > newest - MAX_ROWS, _COLUMNS.settled_ms >= since_ms, _COLUMNS.route == route)
        .group_by(model, _COLUMNS.shadow)
        .order_by(_COLUMNS.shadow, func.count().desc(), model)
    )
    return [_build_sums(row) for row in await database.read_long(statement)]


def _build_sums(row: Row[Any]) -> ModelSums:
    model, shadow, count, failures, *means, cost_nanos, compared, agreement, text, tools, finish = tuple(row)
    first_byte_ms, total_ms, tokens = (None if mean is None else round(float(mean), 1) for mean in means)
    return ModelSums(
        model,
        bool(shadow),
        *(int(count), int(failures), first_byte_ms, total_ms, tokens, int(cost_nanos), int(compared)),
        None if agreement is None else round(float(agreement) / ONE_PPM, 4),
        *map(int, (text, tools, finish)),
    )
