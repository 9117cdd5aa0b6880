"""What a noun takes (``domain/account_spec.py``), in JSON Schema, read from its class: types, defaults and limits."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from inspect import cleandoc
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from gateway.parsing import Constraint, find_check

Schema = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = MappingProxyType(
    {
        Any: {},
        str: {"type": "string"},
        bool: {"type": "boolean"},
        int: {"type": "integer"},
        float: {"type": "number"},
        Decimal: {"type": "number"},
        datetime: {"type": "string", "format": "date-time"},
    },
)
_KINDS: Mapping[type, str] = MappingProxyType({str: "string", bool: "boolean", int: "integer", float: "number"})
_NUMERIC = frozenset({"integer", "number"})
_ATTRIBUTES = re.compile(r"^Attributes:\n(?P<lines>(?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^[ ]{4}(?P<names>[a-z][a-z0-9_, ]*): (?P<about>.+(?:\n[ ]{8}.*)*)", re.MULTILINE)

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "above_tokens": "The prompt's tokens above which it is for.",
        "account": "The name of the account it belongs to.",
        "allow_fields": "Fields that change what is bought and may be sent all the same, or globs of them.",
        "allow_ips": "Where it may be used from; empty: anywhere.",
        "amount_usd": "Dollars to add, or to have left.",
        "api_key": "The provider's key; `api_keys` for several.",
        "api_keys": "The provider's keys, used in turn.",
        "base_url": "Where the provider is; null: its own address.",
        "cache_write_long_usd_per_million": "Of tokens that are written into a cache for longer; null: as those above.",
        "cache_write_usd_per_million": "Of tokens that are written into the provider's cache; null: as input.",
        "cached_input_usd_per_million": "Of tokens that come from the provider's cache; null: as input.",
        "code": "Of an authenticator, or a recovery code.",
        "connect_timeout_s": "Seconds to connect.",
        "current": "The passphrase that is to be replaced.",
        "expires_at": "When it ends; null: never. Without a zone it is UTC.",
        "fan_out": "Ask for several pictures by several calls, where the model makes fewer at once.",
        "first_byte_timeout_s": "Seconds until the provider begins to answer.",
        "group": "The group whose channels and price it uses.",
        "groups": "The groups it is open to; empty: all.",
        "headers": "Headers that are sent with every call to the provider.",
        "hours": "How long the link is good.",
        "idle_timeout_s": "Seconds between two pieces of an answer.",
        "input_usd_per_million": "Of tokens of the prompt.",
        "kind": "`top_up` adds the amount, `set` makes it what is left.",
        "max_concurrency": "Calls at the same time; null: as many as come.",
        "model": "The model's name, or a glob.",
        "model_map": "Our name of a model to the provider's.",
        "models": "Names of models, or globs; empty: all.",
        "name": "What it is called.",
        "names": "Every channel, the one that is asked first at the beginning.",
        "note": "A word for whoever reads the entry.",
        "output_usd_per_million": "Of tokens of the answer.",
        "overlap_h": "Hours for which the secret it had stays good.",
        "owned_by": "Whose its models are, as callers are told; null: `system`.",
        "pass_urls": "Give the provider's own addresses of pictures to callers.",
        "passphrase": "A few words.",
        "price_multiplier": "What its prices are multiplied by.",
        "priority": "The higher is asked first.",
        "provider": "Whose language and address it has.",
        "PriceSpec.provider": "At this provider alone; null: at any.",
        "proxy": "A proxy on the way to the provider.",
        "quota_period": "What the cap is for; with an amount and no period it is for good.",
        "quota_status": "The status of the refusal when the cap is used up: 403 for good, 429 for a while by default.",
        "quota_usd": "The cap in dollars; null: none.",
        "reference": "A name of yours: a second credit of the same name is not made.",
        "role": "What they may do: look, use, or everything.",
        "rpm": "Requests a minute; null: as many as come.",
        "second_factor": "False takes the second factor away.",
        "secret": "The key itself; left out, one is made.",
        "size": "Of a video, or a glob: `1920x1080`, `*x1080`.",
        "sizes": "What a second of a video costs, by its size.",
        "status": "Whether it may be used.",
        "sync": "Whether its list of models is the provider's.",
        "tiers": "What longer prompts cost.",
        "token": "What the link ends in.",
        "total_timeout_s": "Seconds for an answer as a whole.",
        "tpm": "Tokens a minute; null: as many as come.",
        "usd_per_image": "A picture.",
        "usd_per_million_characters": "Of characters that are spoken.",
        "usd_per_second": "A second of video or sound.",
        "value": "What the setting is to be.",
        "webhook_url": "Where the end of its videos is told.",
        "weight": "Its share among channels of the same priority.",
    },
)
"""What a field means wherever it stands; a class can say otherwise under ``Attributes`` in its docstring."""


def build_noun(kind: type, *, partly: bool = False) -> Schema:
    """The table that ``kind`` is read from. ``partly``: a change of one, where null takes a setting back."""
    told = {name: WORDS.get(f"{kind.__name__}.{name}", about) for name, about in WORDS.items()}
    told |= parse_attributes(kind.__doc__ or "")
    fields = attrs.fields(kind)
    schema: Schema = {
        "type": "object",
        "description": " ".join(cleandoc(kind.__doc__ or "").partition("Attributes:")[0].split()).replace("``", "`"),
        "properties": {field.name: _build_field(field, told, partly=partly) for field in fields},
        "additionalProperties": False,
    }
    required = [field.name for field in fields if field.default is attrs.NOTHING and not partly]
    return schema | ({"required": required} if required else {})


def _build_field(field: "attrs.Attribute[Any]", told: Mapping[str, str], *, partly: bool) -> Schema:
    needed = field.default is attrs.NOTHING
    check = find_check(field)
    schema = _bound(build_kind(field.type), check)
    if partly and not needed:
        schema = allow_null(schema)
    about = _join(told.get(field.name), check)
    if about:
        schema = schema | {"description": about}
    if not needed and not partly:
        schema = schema | {"default": _build_default(field.default)}
    return schema if field.repr else schema | {"writeOnly": True}


def _join(about: str | None, check: Constraint | None) -> str:
    """What a field means, and what its rule expects where its numbers do not say that."""
    limits = "" if check is None or _list_bounds(check) else f"{check.expected[:1].upper()}{check.expected[1:]}."
    return " ".join(filter(None, (about, limits)))


def build_kind(kind: Any) -> Schema:
    """What a type is in JSON, as ``parsing.py`` reads it. Raises ``TypeError`` for what it does not read."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _build_choice(inner)
    if origin in {Union, UnionType}:
        return _build_union(inner)
    if origin in {tuple, list, Sequence}:
        return {"type": "array", "items": build_kind(inner[0])}
    if origin in {dict, Mapping}:
        return {"type": "object", "additionalProperties": build_kind(inner[1])}
    if attrs.has(kind):
        return build_noun(kind)
    raise TypeError(f"{kind!r} is nothing that a table is read into")


def _build_choice(values: tuple[Any, ...]) -> Schema:
    kinds = {_KINDS[type(value)] for value in values}
    return ({"type": kinds.pop()} if len(kinds) == 1 else {}) | {"enum": list(values)}


def _build_union(kinds: tuple[Any, ...]) -> Schema:
    rest = [build_kind(kind) for kind in kinds if kind is not NoneType]
    schema = rest[0] if len(rest) == 1 else {"anyOf": rest}
    return allow_null(schema) if NoneType in kinds else schema


def allow_null(schema: Mapping[str, Any]) -> Schema:
    """The same, or null."""
    kind = schema.get("type")
    if kind is None:
        if "anyOf" not in schema:
            return dict(schema) if not schema else {"anyOf": [dict(schema), {"type": "null"}]}
        others = schema["anyOf"]
        return dict(schema) if {"type": "null"} in others else {**schema, "anyOf": [*others, {"type": "null"}]}
    kinds = kind if isinstance(kind, list) else [kind]
    if "null" in kinds:
        return dict(schema)
    wider = {**schema, "type": [*kinds, "null"]}
    return wider | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})


def _list_bounds(check: Constraint) -> Schema:
    told = {"minimum": check.low, "maximum": check.high, "exclusiveMinimum": check.above}
    return {name: value for name, value in told.items() if value is not None}


def _bound(schema: Schema, check: Constraint | None) -> Schema:
    kinds = schema.get("type")
    numeric = _NUMERIC & {*(kinds if isinstance(kinds, list) else [kinds])}
    return schema | _list_bounds(check) if check is not None and numeric else schema


def _build_default(default: Any) -> Any:
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = default.factory()
    if isinstance(default, Decimal):
        return int(default) if default == int(default) else float(default)
    if isinstance(default, datetime):
        return default.isoformat()
    if attrs.has(type(default)):
        return {name: _build_default(value) for name, value in attrs.asdict(default, recurse=False).items()}
    return [_build_default(value) for value in default] if isinstance(default, tuple | list) else default


def parse_attributes(docstring: str) -> Mapping[str, str]:
    """What a class's docstring says of its attributes, in the document's words, by their names."""
    found = _ATTRIBUTES.search(cleandoc(docstring))
    told: dict[str, str] = {}
    for each in _ATTRIBUTE.finditer(found["lines"]) if found else ():
        about = " ".join(each["about"].split()).replace("``", "`")
        about = about[:1].upper() + about[1:]
        told |= dict.fromkeys((name.strip() for name in each["names"].split(",")), about)
    return told
