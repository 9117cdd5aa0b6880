"""Answers whose usage cannot be believed."""

from typing import Any

from tests.support.scripted_upstream import COMPLETION, answer

TEXT = "hello there"


MISSING = object()


UNBELIEVABLE = [
    MISSING,
    None,
    {},
    [],
    "12",
    {"total_tokens": 12},
    {"prompt_tokens": 5},
    {"prompt_tokens": -5, "completion_tokens": 7},
    {"prompt_tokens": 5, "completion_tokens": -7},
    {"prompt_tokens": 5.0, "completion_tokens": 7},
    {"prompt_tokens": 5, "completion_tokens": 7.5},
    {"prompt_tokens": "5", "completion_tokens": 7},
    {"prompt_tokens": 5, "completion_tokens": None},
    {"prompt_tokens": True, "completion_tokens": 7},
    {"prompt_tokens": 5, "completion_tokens": 10**9},
    {"prompt_tokens": 2**63, "completion_tokens": 7},
]


def answer_of(usage: Any) -> bytes:
    body = {key: value for key, value in COMPLETION.items() if key != "usage"}
    body["choices"] = [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]
    return answer(body if usage is MISSING else body | {"usage": usage})
