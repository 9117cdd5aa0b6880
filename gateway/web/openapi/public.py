"""The public API: what its doors in ``web/routes.py`` and beside it take and give. A test calls every one of them."""

from gateway.domain.replay import MAX_KEY_CHARS
from gateway.domain.status import STATUS
from gateway.web.admin.doors import Query
from gateway.web.admin.shapes import ANYTHING, COUNT, FLAG, INTEGER, NUMBER, TEXT, maybe, one_of
from gateway.web.entrance import CONSOLE_HEADER
from gateway.web.openapi.entry import (
    JSON,
    Answer,
    Entry,
    answer,
    either,
    in_header,
    in_path,
    in_query,
    items,
    ref,
    told,
)
from gateway.web.openapi.media import MEDIA_ENTRIES, MEDIA_SCHEMAS
from gateway.web.openapi.nouns import Schema
from gateway.web.openapi.text import TEXT_ENTRIES, TEXT_SCHEMAS
from gateway.web.openapi.videos import VIDEO_ENTRIES, VIDEO_SCHEMAS

_DATE: Schema = {"type": "string", "format": "date"}
_ERROR = answer(
    "message type param code",
    message=told(TEXT, "For people; the request's id stands at its end."),
    type=told(TEXT, "`new_api_error` for what the gateway itself says; a provider's own word for what it says."),
    param=told(maybe(TEXT), "Which field is at fault, as a path: `messages[0].role`."),
    code=told(maybe(TEXT), "For programs."),
)
PUBLIC_SCHEMAS: dict[str, Schema] = {
    "Error": answer("error", error=_ERROR),
    "AnthropicError": answer(
        "type error",
        type=one_of("error"),
        error=answer("type message", type=TEXT, message=TEXT, param=maybe(TEXT), code=maybe(TEXT)),
        request_id=TEXT,
    ),
    "Model": answer(
        "id object created owned_by",
        id=TEXT,
        object=one_of("model"),
        created=told(INTEGER, "Unix seconds."),
        owned_by=TEXT,
    ),
    "ModelList": answer("object data", object=one_of("list"), data=items(ref("Model"))),
    "AnthropicModel": answer(
        "type id display_name created_at",
        type=one_of("model"),
        id=TEXT,
        display_name=TEXT,
        created_at={"type": "string", "format": "date-time"},
    ),
    "AnthropicModelList": answer("data has_more", data=items(ref("AnthropicModel")), has_more=FLAG),
    **TEXT_SCHEMAS,
    **MEDIA_SCHEMAS,
    **VIDEO_SCHEMAS,
}
"""What stands under ``components.schemas``, but for the nouns of the admin API."""

PARAMETERS: dict[str, Schema] = {
    "IdempotencyKey": in_header(
        "Idempotency-Key",
        "A name of yours for this call: the same call again is given the same answer for a day, and is not made twice. "
        "While it runs, or with another body, it is a 409. Streams are not replayed: `x-gateway-warning` says so.",
        {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS},
    ),
    "Console": {
        **in_header(CONSOLE_HEADER, "Anything: no page but one of the console can send it.", TEXT),
        "required": True,
    },
    "Range": in_header(
        "Range", "Which bytes, as in `bytes=0-1023`; what is no such range is ignored, and several are."
    ),
}
"""What stands under ``components.parameters``."""

HEADERS: dict[str, Schema] = {
    "X-Request-Id": told({"schema": TEXT}, "What the call is called here; on every answer."),
    "Retry-After": told({"schema": COUNT}, "Seconds to wait."),
    "x-should-retry": told({"schema": one_of("true", "false")}, "Whether it is worth another try."),
    "x-gateway-overhead-ms": told({"schema": NUMBER}, "What the gateway itself took."),
    "x-gateway-warning": told({"schema": TEXT}, "What was asked for and not done: a list, the field or header first."),
    "x-gateway-cost-usd": told({"schema": NUMBER}, "What the call cost, in dollars."),
    "openai-poll-after-ms": told({"schema": COUNT}, "When to ask again; until the job has ended."),
    "ETag": told({"schema": TEXT}, "For `If-None-Match`."),
    **{
        f"x-ratelimit-{what}-{unit}": told({"schema": TEXT if what == "reset" else INTEGER}, about.format(unit=unit))
        for unit in ("requests", "tokens")
        for what, about in (
            ("limit", "How many {unit} a minute the caller has, where that is limited."),
            ("remaining", "How many {unit} would pass now."),
            ("reset", "How long until nothing of them is owed, as in `6m0s`."),
        )
    },
}
"""What stands under ``components.headers``."""

_VERSION = in_header("anthropic-version", "Where it is there, the answer has Anthropic's form.")
_KNOWN = in_header("If-None-Match", "The `ETag` of an earlier answer.")
_PROBED = answer("status", status=TEXT, problems=items(TEXT))

_LISTED: tuple[Entry, ...] = (
    Entry(
        "GET",
        "/v1/models",
        "list_models",
        "Models",
        "What this key may use now",
        "The list follows the providers'. Do not build names of models into programs: look here.",
        parameters=(_VERSION, _KNOWN),
        answers=(
            Answer(
                "The models, by their ids.",
                {JSON: either(ref("ModelList"), ref("AnthropicModelList"))},
                headers=("ETag",),
                links={"get_model": ("model", "$response.body#/data/0/id")},
            ),
            Answer("Nothing has changed.", status=304),
        ),
        faults=(400, 401, 403, 429),
    ),
    Entry(
        "GET",
        "/v1/models/{model}",
        "get_model",
        "Models",
        "One model",
        parameters=(in_path("model", "Its id; slashes as they are, or as `%2F`."), _VERSION),
        answers=(Answer("The model.", {JSON: either(ref("Model"), ref("AnthropicModel"))}),),
        faults=(400, 401, 403, 404, 429),
    ),
)
_REST: tuple[Entry, ...] = (
    Entry(
        "GET",
        "/v1/dashboard/billing/subscription",
        "get_billing_subscription",
        "What was spent",
        "The cap, in dollars",
        "What chat apps show as a balance: the stricter of the key's cap and its account's.",
        answers=(
            Answer(
                "The cap; 100000000 where there is none.",
                {
                    JSON: answer(
                        "object hard_limit_usd",
                        object=one_of("billing_subscription"),
                        has_payment_method=FLAG,
                        soft_limit_usd=NUMBER,
                        hard_limit_usd=NUMBER,
                        system_hard_limit_usd=NUMBER,
                        access_until=told(INTEGER, "Unix seconds; 0: for ever."),
                    ),
                },
            ),
        ),
        faults=(400, 401, 403),
    ),
    Entry(
        "GET",
        "/v1/dashboard/billing/usage",
        "get_billing_usage",
        "What was spent",
        "What was spent of it, in cents",
        parameters=(
            in_query(Query("start_date", "The first day, in UTC; 30 days back by default.", _DATE)),
            in_query(Query("end_date", "The day after the last one.", _DATE)),
        ),
        answers=(
            Answer(
                "The total, and each day's cost.",
                {
                    JSON: answer(
                        "object total_usage daily_costs",
                        object=one_of("list"),
                        total_usage=NUMBER,
                        daily_costs=items(answer("timestamp line_items", timestamp=NUMBER, line_items=items(ANYTHING))),
                    ),
                },
            ),
        ),
        faults=(400, 401, 403),
    ),
    Entry(
        "GET",
        "/",
        "get_root",
        "About this gateway",
        "What this is",
        "A browser is shown the console instead.",
        rights="anyone",
        answers=(
            Answer("Its name, version and addresses.", {JSON: answer("name version base_url")}),
            Answer("To the console, for a browser.", status=303),
        ),
    ),
    Entry(
        "GET",
        "/healthz",
        "get_liveness",
        "About this gateway",
        "Alive?",
        rights="anyone",
        answers=(Answer("Yes.", {JSON: _PROBED}),),
    ),
    Entry(
        "GET",
        "/readyz",
        "get_readiness",
        "About this gateway",
        "Ready?",
        rights="anyone",
        answers=(
            Answer("It can take calls.", {JSON: _PROBED}),
            Answer("It cannot; `problems` says why.", {JSON: _PROBED}, STATUS["overloaded"]),
        ),
    ),
    Entry(
        "GET",
        "/openapi.json",
        "get_openapi",
        "About this gateway",
        "This document",
        rights="anyone",
        parameters=(_KNOWN,),
        answers=(
            Answer("OpenAPI 3.1.", {JSON: answer("openapi info paths")}, headers=("ETag",)),
            Answer("Nothing has changed.", status=304),
        ),
    ),
    Entry(
        "GET",
        "/docs",
        "get_docs",
        "About this gateway",
        "The same to read",
        rights="anyone",
        answers=(Answer("A page.", {"text/html": TEXT}),),
    ),
)

PUBLIC_ENTRIES: tuple[Entry, ...] = (*TEXT_ENTRIES, *_LISTED, *MEDIA_ENTRIES, *VIDEO_ENTRIES, *_REST)
