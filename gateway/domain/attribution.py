"""Attribution: for whom a request was made, as its client names the end user, the session and tags."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import orjson

from gateway.errors import InvalidRequest
from gateway.frozen import frozen

UserStorage = Literal["text", "hash", "off"]

MAX_NAME_CHARS = 128
"""Characters of a stored user or session. A longer name is stored as its digest, so that two of them stay apart."""
MAX_SESSION_CHARS = 256
"""Characters of a session's name as clients send it; a longer text names no session."""
MAX_TAG_CHARS = 64
"""Characters of a tag's name, and of its value."""
MAX_TAGS = 8
MAX_VALUES = 10_000
"""The default of ``attribution.max_values``."""
FORGOTTEN_PREFIX = "forgotten-"
"""What the random name of a forgotten user begins with."""
HASH_PREFIX = "hmac:"
"""What a stored end user begins with if users are stored as hashes."""
ANY_TAG = "*"
"""The entry of ``attribution.tags`` that allows all names in the header."""

USER_HEADER = "x-gateway-user"
TAGS_HEADER = "x-gateway-tags"
BUDGET_HEADER = "x-gateway-budget"
"""The header with a request's budget; see ``domain/request_budget.py``."""
SESSION_HEADERS = (
    "x-gateway-session",
    "session_id",  # Codex
    "conversation_id",
    "x-claude-code-session-id",
    "x-session-id",  # opencode
    "x-session-affinity",
    "x-openwebui-chat-id",
    "x-conversation-id",  # LibreChat, as its documentation configures it
)
"""Headers with which clients name a conversation; the first that a request has counts."""

_OPEN_WEBUI_USER = "x-openwebui-user-id"
_OPEN_WEBUI_NAMES = ("x-openwebui-user-email", "x-openwebui-user-name")
_USER_FIELDS = ("safety_identifier", "user")
HEADERS = frozenset({USER_HEADER, TAGS_HEADER, *SESSION_HEADERS, _OPEN_WEBUI_USER, *_OPEN_WEBUI_NAMES})
"""All headers that are read here, in lower case."""
NO_HEADERS: Mapping[str, str] = {}
"""The headers of a request that has none of ``HEADERS``."""
FIELDS = frozenset({*_USER_FIELDS, "metadata", "prompt_cache_key"})
"""All fields of a body that are read here."""

_TAG_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_CLAUDE_CODE_USER = re.compile(r"user_(?P<device>[^_]*)_account_(?P<account>[^_]*)_session_(?P<session>[^_]+)")
"""``metadata.user_id`` of Claude Code before 2.1.78; since then a JSON object in a string."""


class Attribution(NamedTuple):
    """For whom a request was made; empty texts if unknown.

    Attributes:
        end_user: the person or program behind the key.
        session: the conversation or the run of an agent.
        tags: ``feature=search,team=web``, in the order of their names.
    """

    end_user: str = ""
    session: str = ""
    tags: str = ""


UNATTRIBUTED = Attribution()


@frozen
class AttributionRules:
    """What is stored of a request's attribution.

    Attributes:
        users: whether end users are stored as text, as a keyed hash, or not at all.
        reads_names: whether Open WebUI's mail address or name is stored instead of its user's id.
        tags: the names of tags that are stored; ``*`` allows all names in the header.
        hash_key: the key of hashes.
    """

    users: UserStorage
    reads_names: bool
    tags: frozenset[str]
    hash_key: bytes


def find_attribution(
    headers: Mapping[str, str], body: Mapping[str, Any], rules: AttributionRules, key_user: str = "", key_tags: str = ""
) -> Attribution:
    """Return for whom a request was made. ``headers`` ignore case. Raises ``InvalidRequest`` for malformed tags.

    ``key_user`` and ``key_tags`` are those of the API key; a request does not override them.
    """
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    account, session = split_claude_code_user(metadata.get("user_id"))
    user = ""
    if rules.users != "off":
        user = key_user or _find_user(headers, body, account, reads_names=rules.reads_names)
    return Attribution(
        build_stored_user(user, rules),
        clean_name(find_session(headers, body) or session),
        _add_tags(key_tags, _list_tags(headers.get(TAGS_HEADER), metadata, rules.tags)),
    )


def build_stored_user(user: str, rules: AttributionRules) -> str:
    """Return an end user as it is stored, that is, as text or as a hash."""
    if user and rules.users == "hash":
        return f"{HASH_PREFIX}{hmac.digest(rules.hash_key, user.encode('utf-8', 'replace'), hashlib.sha256).hex()[:32]}"
    return clean_name(user)


def find_session(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """Return the session that a header or ``prompt_cache_key`` names; empty if none does."""
    for name in SESSION_HEADERS if headers else ():
        value = headers.get(name)
        if value and len(value) <= MAX_SESSION_CHARS:
            return value
    named = body.get("prompt_cache_key")
    return named if isinstance(named, str) and len(named) <= MAX_SESSION_CHARS else ""


def split_claude_code_user(user_id: object) -> tuple[str, str]:
    """Split ``metadata.user_id`` of Claude Code into its account (or device) and its session.

    An id of another client is returned as the account, without a session.
    """
    if not isinstance(user_id, str):
        return "", ""
    if user_id.startswith("{"):
        try:
            fields = orjson.loads(user_id)
        except orjson.JSONDecodeError:
            return user_id, ""
        account = fields.get("account_uuid") or fields.get("device_id")
        session = fields.get("session_id")
        return account if isinstance(account, str) else "", session if isinstance(session, str) else ""
    match = _CLAUDE_CODE_USER.fullmatch(user_id)
    return (user_id, "") if match is None else (match["account"] or match["device"], match["session"])


def parse_tags(text: str) -> dict[str, str]:
    """Parse ``team=web, feature=search``. Raises ``InvalidRequest`` that names the header and what is wrong."""
    tags: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not item.strip():
            continue
        problem = None if equals else "is not name=value"
        problem = problem or find_tag_problem(name, value)
        if problem is not None:
            raise InvalidRequest(f"{TAGS_HEADER}: {item.strip()[:MAX_TAG_CHARS]!r} {problem}", param=TAGS_HEADER)
        tags[name] = value
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"{TAGS_HEADER} has {len(tags)} tags; at most {MAX_TAGS} are allowed", param=TAGS_HEADER)
    return tags


def find_tag_problem(name: str, value: str) -> str | None:
    """Return why a tag is invalid; None if it is valid."""
    if _TAG_NAME.fullmatch(name) is None:
        return f"has no name of 1 to {MAX_TAG_CHARS} letters, digits or _.-"
    if not 0 < len(value) <= MAX_TAG_CHARS or not value.isprintable() or "," in value:
        return f"has no value of 1 to {MAX_TAG_CHARS} printable characters without a comma"
    return None


def split_tags(tags: str) -> list[tuple[str, str]]:
    """Return the names and values of stored tags."""
    return [(name, value) for name, _, value in (tag.partition("=") for tag in tags.split(","))] if tags else []


def build_tags(tags: Iterable[tuple[str, str]]) -> str:
    """Return tags as they are stored: ``feature=search,team=web``."""
    return ",".join(f"{name}={value}" for name, value in sorted(tags))


def _add_tags(key_tags: str, tags: list[tuple[str, str]]) -> str:
    """Return the tags of a key and of a request, as they are stored.

    The key's value of a tag precedes the request's. Beyond ``MAX_TAGS`` tags, those of the request are left out.
    """
    merged_tags = dict(split_tags(key_tags))
    for name, value in tags:
        if len(merged_tags) < MAX_TAGS:
            merged_tags.setdefault(name, value)
    return build_tags(merged_tags.items())


def _find_user(headers: Mapping[str, str], body: Mapping[str, Any], account: str, *, reads_names: bool) -> str:
    user = headers.get(USER_HEADER)
    if user:
        return user
    if reads_names:
        for name in _OPEN_WEBUI_NAMES:
            if value := headers.get(name):
                return unquote(value)  # Open WebUI quotes names beyond ASCII
    if user := headers.get(_OPEN_WEBUI_USER):
        return user
    for name in _USER_FIELDS:
        field = body.get(name)
        if field and isinstance(field, str):
            return field
    return account


def _list_tags(header: str | None, metadata: Mapping[str, Any], allowed_names: frozenset[str]) -> list[tuple[str, str]]:
    """Return the tags of a request. A client's other metadata is no tag: its values are often ids."""
    header_tags = parse_tags(header) if header else {}
    tags = {name: value for name, value in header_tags.items() if name in allowed_names or ANY_TAG in allowed_names}
    for name in sorted(allowed_names & metadata.keys()):
        value = metadata[name]
        if len(tags) < MAX_TAGS and isinstance(value, str) and find_tag_problem(name, value) is None:
            tags.setdefault(name, value)
    return list(tags.items())


def clean_name(name: str) -> str:
    """Return a name as at most ``MAX_NAME_CHARS`` printable characters; a longer name as its SHA-256 digest."""
    name = name.strip()
    if len(name) > MAX_NAME_CHARS:
        return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return name if name.isprintable() else "".join(char if char.isprintable() else "_" for char in name)
