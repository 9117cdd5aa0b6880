"""Answers of admin handlers as clients get them."""

from typing import Any

import orjson

from gateway.server.admin.answer import write_answer


def to_json(answer: Any) -> Any:
    return orjson.loads(orjson.dumps(answer, default=write_answer))
