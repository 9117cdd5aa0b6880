"""The second parcel: what the caller asks for, read once from the body and checked."""

from typing import Any, Literal

import attrs

Operation = Literal["chat", "embeddings"]


@attrs.frozen
class Call:
    """One checked request. ``body`` is the parsed JSON; what is forwarded is serialised from it, not from the bytes.

    Attributes:
        model: as the caller named it.
        stream: whether the answer is a stream of events.
        choices: how many answers were asked for (``n``).
        wants_usage: the caller asked for the usage frame itself.
        encoding: the embedding encoding the caller asked for, float where it said nothing.
        prompt_chars: characters of text in the prompt, for an estimate.
    """

    operation: Operation
    model: str
    body: dict[str, Any] = attrs.field(repr=False)
    stream: bool = False
    choices: int = 1
    wants_usage: bool = False
    encoding: Literal["float", "base64"] = "float"
    prompt_chars: int = 0
