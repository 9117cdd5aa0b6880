"""Generate JSON Schema from attrs classes of request bodies: types, defaults and limits."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from gateway.parsing import Constraint, find_check, find_key

Schema = dict[str, Any]

_SCALAR_SCHEMAS: Mapping[Any, Schema] = {
    Any: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Decimal: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
}
_JSON_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_NUMERIC_TYPES = frozenset({"integer", "number"})
_ATTRIBUTES_PATTERN = re.compile(r"^Attributes:\n(?P<lines>(?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_ATTRIBUTE_PATTERN = re.compile(r"^[ ]{4}(?P<names>[a-z][a-z0-9_, ]*): (?P<about>.+(?:\n[ ]{8}.*)*)", re.MULTILINE)

DESCRIPTIONS: Mapping[str, str] = {
    "RouteSpec.about": "A description for people.",
    "RouteSpec.deadline_s": "Seconds for the first byte over all steps; null: each attempt has its channel's timeouts.",
    "RouteSpec.cache_ttl_s": "For how long answers are given again, in seconds; 0: never; null: as the key says.",
    "RouteSpec.max_attempts": "The most attempts over all steps; null: the setting `routing.max_attempts`.",
    "RouteSpec.step": "The steps, in the order in which they are tried.",
    "StepSpec.models": "Models, or tables of a model and its weight.",
    "StepSpec.channels": "Names or globs of the channels to use; empty: every channel that serves the model.",
    "StepSpec.on": "Only after one of these causes; the first step is always tried.",
    "StepSpec.wait_s": "The longest wait for a place in seconds, if a later step takes the cause `queue`; null: any.",
    "StepSpec.if": "What the request must be; a step that does not fit is passed over.",
    "ConditionSpec.min_prompt_tokens": "The fewest tokens of the prompt, by an estimate.",
    "ConditionSpec.max_prompt_tokens": "The most tokens of the prompt, by an estimate.",
    "ConditionSpec.images": "Whether the request has images.",
    "ConditionSpec.tools": "Whether the request has tools.",
    "ConditionSpec.stream": "Whether the request is a stream.",
    "LimitSpec.keys": "The names of the keys whose requests count; empty: all keys.",
    "LimitSpec.until": "When the limit ends; null: never.",
    "LimitSpec.raises": "The limit whose subjects may spend `usd` in addition until this one ends.",
    "LimitSpec.max_subjects": "The most subjects in memory; the spending of others is read again when they return.",
    "ModelShareSpec.model": "The model's name.",
    "ModelShareSpec.weight": "Its share among the models of the step.",
    "above_tokens": "The prompt tokens above which these prices apply.",
    "account": "The name of the account.",
    "allow_fields": "Request fields, or globs of them, that are allowed although they change the price; and kinds "
    "of ids (`prompt`, `file_id`, `item_reference`, `container`) that are allowed although the gateway does not "
    "know who made them.",
    "allow_ips": "The addresses or networks that may use it; empty: all.",
    "amount_usd": "Dollars to add, or dollars left, by `kind`.",
    "api_key": "The provider's key; `api_keys` for several.",
    "api_keys": "The provider's keys, used in turn.",
    "audio_input_usd_per_million": "The price of prompt tokens that are audio; null: as of input.",
    "audio_output_usd_per_million": "The price of completion tokens that are audio; null: as of output.",
    "base_url": "The provider's address; null: its default.",
    "cache_write_long_usd_per_million": "The price of long-lived cache writes; null: as of other cache writes.",
    "cache_write_usd_per_million": "The price of tokens written to the provider's cache; null: as of input.",
    "cached_image_input_usd_per_million": "The price of images read from the provider's cache; null: as of images.",
    "citation_usd_per_million": "The price of tokens of quoted pages that are not in the prompt.",
    "free": "Whether the model costs nothing on purpose: a price without a rate is refused otherwise.",
    "image_input_usd_per_million": "The price of prompt tokens that are images; null: as of input.",
    "image_output_usd_per_million": "The price of completion tokens that are images; null: as of output.",
    "reasoning_usd_per_million": "The price of reasoning that is counted beside the completion.",
    "tiers_served": "The factor of the price of tokens, by the service tier that the answer names.",
    "ChannelKeySpec.key": "The provider's key. In a change it takes the place of the former one.",
    "ChannelKeySpec.name": "A name for people; null: none.",
    "KeySpec.user": "The end user of all its requests, whomever its callers name; null: as they name.",
    "KeySpec.tags": "Tags of all its requests, such as `team: web`; its callers add others, and override none.",
    "usd_per_call": "The price of a request to the provider, whatever its length.",
    "usd_per_file_search": "The price of a search of files by the provider.",
    "usd_per_search": "The price of a search of the web by the provider, or of a rerank.",
    "video_input_usd_per_million": "The price of prompt tokens that are video; null: as of input.",
    "video_output_usd_per_million": "The price of completion tokens that are video; null: as of output.",
    "cached_audio_input_usd_per_million": "The price of audio read from the provider's cache; null: as of audio.",
    "cached_input_usd_per_million": "The price of tokens read from the provider's cache; null: as of input.",
    "code": "A code of an authenticator, or a recovery code.",
    "connect_timeout_s": "The timeout of connecting, in seconds.",
    "current": "The current passphrase.",
    "expires_at": "When it expires; null: never. A time without a zone is UTC.",
    "fan_out": "Request several images by several requests if the model makes fewer at once.",
    "first_byte_timeout_s": "The timeout until the provider begins to answer, in seconds.",
    "group": "The group whose channels and price it uses.",
    "groups": "The groups that may use it; empty: all.",
    "headers": "Headers that every request to the provider carries.",
    "hours": "How long the link is valid, in hours.",
    "idle_timeout_s": "The timeout between two pieces of an answer, in seconds.",
    "input_usd_per_million": "The price of prompt tokens.",
    "kind": "`top_up` adds the amount; `set` makes it the amount left.",
    "leases": "`release` what the node had set aside, or `charge` all of it.",
    "max_concurrency": "The most concurrent requests; null: unlimited.",
    "queue": "How requests wait while `max_concurrency` is reached; null: the channel is skipped then.",
    "loops": "How often the same conversation may be sent, unchanged; null: as often as the client likes.",
    "show_account": "Whether the key may see the limits of its account, and what is left of them.",
    "max_session_usd": "The highest budget that a session may have, in dollars; null: any, but no raise.",
    "keep_bodies": "Of which requests prompts and answers are kept; null: as `requests.keep_bodies` says.",
    "resumable": "Whether the streams of the key can be taken up again, unless a request says otherwise.",
    "cache_ttl_s": "For how long answers are given again, in seconds; 0: never; null: as `cache.ttl_s` says.",
    "same_prompt": "How often the same conversation may be answered within the window.",
    "window_s": "The window, in seconds.",
    "length": "The most requests that may wait; beyond it they are refused.",
    "wait_s": "The longest wait, in seconds.",
    "one_model": "Whether the server holds one model at a time: requests of the loaded model go first.",
    "switch_after_s": "How long a request waits before its model is loaded beside waiting requests of the loaded one.",
    "burst": "The most requests that start at once, if fewer than `rpm`; null: `rpm`.",
    "model": "The model's name, or a glob.",
    "model_map": "Model names of the gateway, and the provider's names for them.",
    "models": "Names of models, or globs; empty: all.",
    "name": "The name.",
    "weights": "The weight of each of the named channels.",
    "names": "All channels, in the order in which they are tried.",
    "note": "A note for readers of the entry.",
    "output_usd_per_million": "The price of completion tokens.",
    "overlap_h": "Hours for which the old secret stays valid.",
    "owned_by": "The owner that model lists show; null: `system`.",
    "pass_urls": "Give the provider's own addresses of images to clients.",
    "passphrase": "A few words.",
    "price_multiplier": "The factor of its prices.",
    "priority": "A channel with a higher priority is tried first.",
    "provider": "The provider, which determines API format and address.",
    "PriceSpec.provider": "Only at this provider; null: at any.",
    "proxy": "The proxy for requests to the provider.",
    "quota_period": "The period of the quota; an amount without a period is a lifetime quota.",
    "quota_status": "The status when the quota is used up; by default 403 for a lifetime quota, else 429.",
    "quota_usd": "The quota in dollars; null: none.",
    "reference": "Your own reference: a second credit with the same one is not made.",
    "role": "The role: viewers read, members use, administrators change everything.",
    "rpm": "Requests per minute; null: unlimited.",
    "secret": "The key itself; generated if missing.",
    "size": "The size of a video, or a glob: `1920x1080`, `*x1080`.",
    "sizes": "The price of a second of video, by its size.",
    "status": "Whether it may be used.",
    "sync": "Whether its models follow the provider's list.",
    "timezone": "The IANA name of the time zone in which days and months of its quotas begin; null: UTC.",
    "LimitSpec.timezone": "The IANA name of the time zone in which windows begin; null: that of the account.",
    "tiers": "The prices of longer prompts.",
    "token": "The token at the end of the link.",
    "total_timeout_s": "The timeout of a whole answer, in seconds.",
    "tpm": "Tokens per minute; null: unlimited.",
    "usd_per_image": "The price of an image.",
    "usd_per_million_characters": "The price of characters that are spoken.",
    "usd_per_second": "The price of a second of video or audio.",
    "value": "The new value.",
    "webhook_url": "The webhook that is called when a video job ends.",
    "weight": "Its share among channels of the same priority.",
}
"""The meaning of fields, in any class or in the class before the dot; ``Attributes`` in docstrings override it."""


def build_spec_schema(kind: type, *, partly: bool = False) -> Schema:
    """Return the schema of the table that ``kind`` is parsed from.

    With ``partly``, of a change: no field is required, and null resets an optional field.
    """
    class_names = {base.__name__ for base in kind.__mro__}
    descriptions = {
        **DESCRIPTIONS,
        **{
            name.partition(".")[2]: text for name, text in DESCRIPTIONS.items() if name.partition(".")[0] in class_names
        },
    }
    descriptions |= parse_attributes(kind.__doc__ or "")
    fields = attrs.fields(kind)
    schema: Schema = {
        "type": "object",
        "description": " ".join(cleandoc(kind.__doc__ or "").partition("Attributes:")[0].split()).replace("``", "`"),
        "properties": {find_key(field): _build_field(field, descriptions, partly=partly) for field in fields},
        "additionalProperties": False,
    }
    required_names = [find_key(field) for field in fields if field.default is attrs.NOTHING and not partly]
    return schema | ({"required": required_names} if required_names else {})


def _build_field(field: "attrs.Attribute[Any]", descriptions: Mapping[str, str], *, partly: bool) -> Schema:
    is_required = field.default is attrs.NOTHING
    check = find_check(field)
    schema = _add_bounds(build_kind(field.type), check)
    if partly and not is_required:
        schema = allow_null(schema)
    description = _join_texts(descriptions.get(find_key(field)), check)
    if description:
        schema = schema | {"description": description}
    if not is_required and not partly:
        schema = schema | {"default": _build_default(field.default)}
    return schema if field.repr else schema | {"writeOnly": True}


def _join_texts(description: str | None, check: Constraint | None) -> str:
    """Return a field's meaning, and what its constraint expects unless the bounds in the schema show that."""
    limits = "" if check is None or _list_bounds(check) else f"{check.expected[:1].upper()}{check.expected[1:]}."
    return " ".join(filter(None, (description, limits)))


def build_kind(kind: Any) -> Schema:
    """Return the JSON Schema of a type that ``parsing.py`` parses. Raises ``TypeError`` for other types."""
    if kind in _SCALAR_SCHEMAS:
        return dict(_SCALAR_SCHEMAS[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _build_choice(arguments)
    if origin in {Union, UnionType}:
        return _build_union(arguments)
    if origin in {tuple, list, Sequence}:
        return {"type": "array", "items": build_kind(arguments[0])}
    if origin in {dict, Mapping}:
        return {"type": "object", "additionalProperties": build_kind(arguments[1])}
    if attrs.has(kind):
        schema = build_spec_schema(kind)
        return {"anyOf": [{"type": "string"}, schema]} if hasattr(kind, "from_text") else schema
    raise TypeError(f"{kind!r} cannot be parsed from a table")


def _build_choice(values: tuple[Any, ...]) -> Schema:
    kinds = {_JSON_TYPES[type(value)] for value in values}
    return ({"type": kinds.pop()} if len(kinds) == 1 else {}) | {"enum": list(values)}


def _build_union(kinds: tuple[Any, ...]) -> Schema:
    schemas = [build_kind(kind) for kind in kinds if kind is not NoneType]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return allow_null(schema) if NoneType in kinds else schema


def allow_null(schema: Mapping[str, Any]) -> Schema:
    """Return the schema with null allowed."""
    kind = schema.get("type")
    if kind is None:
        if "anyOf" not in schema:
            return dict(schema) if not schema else {"anyOf": [dict(schema), {"type": "null"}]}
        alternatives = schema["anyOf"]
        return (
            dict(schema) if {"type": "null"} in alternatives else {**schema, "anyOf": [*alternatives, {"type": "null"}]}
        )
    kinds = kind if isinstance(kind, list) else [kind]
    if "null" in kinds:
        return dict(schema)
    nullable_schema = {**schema, "type": [*kinds, "null"]}
    return nullable_schema | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})


def _list_bounds(check: Constraint) -> Schema:
    bounds = {"minimum": check.low, "maximum": check.high, "exclusiveMinimum": check.above}
    return {name: value for name, value in bounds.items() if value is not None}


def _add_bounds(schema: Schema, check: Constraint | None) -> Schema:
    kinds = schema.get("type")
    numeric = _NUMERIC_TYPES & {*(kinds if isinstance(kinds, list) else [kinds])}
    return schema | _list_bounds(check) if check is not None and numeric else schema


def _build_default(default: Any) -> Any:
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = default.factory()
    if isinstance(default, Decimal):
        return int(default) if default == int(default) else float(default)
    if isinstance(default, datetime):
        return default.isoformat()
    if attrs.has(type(default)):
        values = {find_key(field): getattr(default, field.name) for field in attrs.fields(type(default))}
        return {name: _build_default(value) for name, value in values.items()}
    return [_build_default(value) for value in default] if isinstance(default, tuple | list) else default


def parse_attributes(docstring: str) -> Mapping[str, str]:
    """Return the descriptions under ``Attributes`` of a class's docstring, by field name."""
    section = _ATTRIBUTES_PATTERN.search(cleandoc(docstring))
    descriptions: dict[str, str] = {}
    for match in _ATTRIBUTE_PATTERN.finditer(section["lines"]) if section else ():
        description = " ".join(match["about"].split()).replace("``", "`")
        description = description[:1].upper() + description[1:]
        descriptions |= dict.fromkeys((name.strip() for name in match["names"].split(",")), description)
    return descriptions
