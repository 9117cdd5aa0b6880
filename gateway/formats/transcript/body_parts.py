"""Reads what the parts of kept bodies say: the JSON values in them, and the answers."""

from typing import Any

import orjson

from gateway.domain import exact_json
from gateway.domain.kept_body import BodyPart
from gateway.formats.redaction.body import EVENT_STREAM
from gateway.formats.redaction.event_texts import parse_event, split_events
from gateway.formats.transcript.answers import ShownAnswers, read_answers


def read_part_answers(part: BodyPart) -> ShownAnswers:
    """Return the answers in a kept body; none if it has no known form, such as JSON that was cut."""
    return read_answers(parse_values(part))


def parse_values(part: BodyPart) -> list[Any]:
    """Return the data of a stream's events, or the one JSON value of another body; empty if that is not JSON."""
    if part.media_type.startswith(EVENT_STREAM):
        return [parse_event(raw).data for raw in split_events(part.content)]
    try:
        return [exact_json.loads(part.content)]
    except orjson.JSONDecodeError:
        return []
