"""A response of the Responses API that the gateway keeps itself, because its provider does not."""

import attrs


@attrs.frozen
class KeptResponse:
    """A response and what it answers.

    Attributes:
        id: ``resp_`` and the digits of the request's id.
        expires_ms: when it is deleted, in Unix milliseconds.
        body: the response as JSON.
        items: the input items of the whole conversation up to this response, as a JSON array.
    """

    id: str
    account_id: int
    created_ms: int
    expires_ms: int
    body: bytes = attrs.field(repr=False)
    items: bytes = attrs.field(repr=False)
