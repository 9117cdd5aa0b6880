"""Requests for client secrets of the Realtime API, also in the beta's shape, and their answers."""

from typing import Any

import orjson

from gateway.errors import InvalidRequest
from gateway.formats.realtime.events import check_limits, check_model, check_names
from gateway.formats.wire.fields import parse_integer, parse_list, parse_object, read_text
from gateway.formats.wire.json_values import as_object
from gateway.frozen import frozen

Body = dict[str, Any]
DEFAULT_TTL_S, MIN_TTL_S, MAX_TTL_S = 600, 10, 7_200
MAX_SESSION_BYTES = 32 * 1024
_SESSION_OBJECT = "realtime.session"
_STRING_FIELDS = ("instructions",)
_LIST_FIELDS = ("tools", "output_modalities", "modalities", "include")
_OBJECT_FIELDS = ("audio", "prompt", "turn_detection", "input_audio_transcription", "input_audio_noise_reduction")
_NON_SETTING_FIELDS = frozenset({"model", "client_secret", "expires_after", "id", "object", "expires_at"})


@frozen
class SecretRequest:
    """A request for a client secret.

    Attributes:
        model: the only model of the sessions; None permits any model.
        session: the session's fields; the whole body if ``is_flat``.
        is_flat: whether the request has the shape of the beta version.
    """

    model: str | None
    session: Body
    ttl_s: int
    is_flat: bool

    @property
    def settings(self) -> Body:
        settings_fields = {name: value for name, value in self.session.items() if name not in _NON_SETTING_FIELDS}
        return {} if settings_fields.keys() <= {"type"} else settings_fields


def parse_secret_request(body: Body, *, is_flat: bool) -> SecretRequest:
    """Parse a request for a client secret, in the beta version's shape if ``is_flat``. Raises ``InvalidRequest``."""
    prefix = "" if is_flat else "session."
    session = body if is_flat else parse_object(body, "session") or {}
    if "model" in body and not is_flat:
        raise InvalidRequest("'model' belongs in 'session'", param="model")
    kind = session.get("type", "realtime")
    if kind != "realtime":
        raise InvalidRequest(f"'{prefix}type' has to be 'realtime'", param=f"{prefix}type")
    model = session.get("model")
    if "model" in session and not check_model(model):
        raise InvalidRequest(f"'{prefix}model' is not the name of a model", param=f"{prefix}model")
    _check_settings(session, prefix)
    if len(orjson.dumps(session)) > MAX_SESSION_BYTES:
        raise InvalidRequest(f"The session has more than {MAX_SESSION_BYTES} bytes", param=prefix.rstrip(".") or None)
    expiry = body.get("expires_after")
    if expiry is not None and not isinstance(expiry, dict):
        raise InvalidRequest("'expires_after' is not an object", param="expires_after")
    ttl_s = parse_integer(as_object(expiry), "seconds", MIN_TTL_S, MAX_TTL_S)
    return SecretRequest(model, session, ttl_s or DEFAULT_TTL_S, is_flat)


def _check_settings(session: Body, prefix: str) -> None:
    check_names(session, prefix)
    settings = {f"{prefix}{name}": value for name, value in session.items()}
    for name in _STRING_FIELDS:
        read_text(settings, f"{prefix}{name}")
    for name in _LIST_FIELDS:
        parse_list(settings, f"{prefix}{name}")
    for name in _OBJECT_FIELDS:
        parse_object(settings, f"{prefix}{name}")
    check_limits(session, prefix)


def build_secret_answer(secret_request: SecretRequest, secret: str, expires_s: int, session_id: str) -> Body:
    """Build the answer with the secret and the session's settings. The secret expires at ``expires_s`` (Unix time)."""
    session = {
        **({} if secret_request.is_flat else {"type": "realtime"}),
        **{name: value for name, value in secret_request.session.items() if name not in _NON_SETTING_FIELDS},
        "id": session_id,
        "object": _SESSION_OBJECT,
        "model": secret_request.model,
        "expires_at": 0,
    }
    if secret_request.is_flat:
        return {**session, "client_secret": {"value": secret, "expires_at": expires_s}}
    return {"value": secret, "expires_at": expires_s, "session": session}
