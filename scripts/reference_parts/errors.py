"""docs/reference/errors.md: every error code with its status, its cause and what to do."""

from collections.abc import Iterator, Mapping

from gateway.server.openapi.error_responses import map_codes, name_phrase
from scripts.reference_parts.markdown import join_blocks, write_text

FIXES: Mapping[str, str] = {
    "invalid_request": "Correct the field that `param` names. The [API reference](api.md) lists the fields.",
    "unsupported_operation": "Use another model: `GET /v1/models` lists them. For image and video models, "
    "`[[model]]` in the [settings](settings.md#model) declares what a model can do.",
    "sensitive_words_detected": "Change the prompt. The operator's own word list is the file of `safety.words_file`.",
    "content_policy_violation": "Change the prompt or the source image. The operator's own word list is the "
    "file of "
    "`safety.words_file`.",
    "invalid_api_key": "Send the whole key as `Authorization: Bearer sk-…` or `x-api-key: sk-…`. Only its hash is "
    "stored: if the key is lost, create another one.",
    "key_disabled": "Enable the key or its account in the console, or with `gateway keys enable` or "
    "`gateway accounts enable`.",
    "key_expired": "Set a later end with `gateway keys edit`, or create another key.",
    "signed_out": "Sign in again, or send the admin token.",
    "wrong_passphrase": "Enter the passphrase again. An administrator can issue a new invitation: "
    "`gateway members reset`.",
    "second_factor_needed": "Enter the code of the authenticator app, or a recovery code.",
    "forbidden": "Ask an administrator for a role with this right.",
    "insufficient_quota": "Raise the quota of the key or the account, add credit, lower `max_tokens`, or "
    "wait until "
    "the quota resets.",
    "model_not_allowed": "Use a model that the key allows, or add the model to the key's `models`.",
    "model_not_priced": "Set a price: in the console, with `gateway prices set`, or as `[[price]]`. `gateway "
    "models "
    "list --unpriced` lists models without one. `billing.unpriced` decides what happens to them.",
    "group_not_allowed": "Change the group of the key, the groups of its account, or the groups of a channel.",
    "ip_not_allowed": "Add the client's address to the key's `allow_ips`. Behind a proxy, `server.trusted_proxies` "
    "must name the proxy.",
    "model_not_found": "`GET /v1/models` lists the models of the key. `gateway explain MODEL` says why no channel "
    "serves a model.",
    "not_found": "Check the path and the id. Objects of other accounts are not found either.",
    "method_not_allowed": "Use a method that the header `Allow` names.",
    "request_timeout": "Send the body faster, or in a smaller request.",
    "conflict": "Read the object again, then repeat the change if it still applies.",
    "loop_detected": "The client repeats itself: let it stop, or raise the `loops` of the key. Requests for different "
    "people or runs count apart if they name their user or session.",
    "not_cached": "Send the request without `only-if-cached` to get a new answer. The [cache](../caching.md) of "
    "answers gives only what an equal request has bought.",
    "budget_exceeded": "Raise the budget in `x-gateway-budget`, as far as `max_session_usd` of the key allows, lower "
    "the output limit of the request, or begin another session.",
    "session_ended": "Name another session, such as with `x-gateway-session`. An ended session is not opened again.",
    "quote_not_valid": "Ask for a new quote, and send the request within its `hold_s` to the same node.",
    "idempotency_conflict": "Wait for the first request, or use another `Idempotency-Key` for another request.",
    "request_cancelled": "A member or an administrator cancelled the request. Send it again if it is still needed.",
    "task_not_ready": "Poll `GET /v1/videos/{id}` until the job is `completed`, or follow its events.",
    "stream_interrupted": "The message names the last event that exists. Keep the text so far, and offer to send the "
    "request again.",
    "precondition_failed": "Read the object again and send its present `ETag`.",
    "request_too_large": "Send less, or raise `server.max_body_mb`, `max_upload_mb` or `max_file_mb`, and "
    "the limit "
    "of a proxy in front.",
    "unsupported_media_type": "Send `Content-Type: application/json`, or `multipart/form-data` for forms.",
    "range_not_satisfiable": "Ask for a range inside the file: `Content-Range` has its length.",
    "rate_limit_exceeded": "Wait as long as `Retry-After` says. The `x-ratelimit-*` headers show what is "
    "left. Limits "
    "are `rpm`, `burst`, `tpm` and `max_concurrency` of the key and of the account.",
    "internal_error": "Report it with the stack trace: the log has it under the request's id.",
    "api_not_implemented": "The [API reference](api.md) lists the paths that the gateway serves.",
    "upstream_error": "`gateway requests show ID` lists the attempts with the provider's answers. "
    "`gateway check` tests all channels.",
    "no_available_channel": "Wait as long as `Retry-After` says. `gateway explain MODEL` says why each channel is "
    "left out; a second channel for the model prevents it.",
    "overloaded": "Wait as long as `Retry-After` says. If it lasts, see the disk space and the log for "
    "`records_not_stored`, and `server.max_connections`.",
    "upstream_timeout": "Raise the timeouts of the channel if the model needs longer. `gateway requests show ID` "
    "lists the attempts.",
}
"""What to do about each error code."""
_INTRODUCTION = """\
# Errors

This page is generated from the program.

An error in the OpenAI API format is this object. `param` names the field at fault, or is null. `code` is for programs.

```json
{
  "error": {
    "message": "The model 'gpt-9' does not exist",
    "type": "new_api_error",
    "param": "model",
    "code": "model_not_found",
    "doc_url": "https://ai.example.com/help/reference/errors#model_not_found"
  }
}
```

`type` is `new_api_error` for every error of the gateway itself: it tells them from a provider's errors, which keep
their own types. `doc_url` is the address of the code on this page, as the gateway serves it; the header `Link` has it,
too. It is missing for a provider's own codes. It is a path without an address if the request was no valid HTTP and
`server.base_url` is not set.

Clients of Anthropic's and Google's APIs get the format of these APIs: Google's has the address as a detail of the type
`google.rpc.Help`. The header `X-Request-Id` names the request in
the gateway's records. An error after the first byte of a stream is the last event of the stream.

If a provider rejects the client's request, the gateway passes on the provider's status and message.
"""


def build_errors() -> str:
    """Build the page."""
    return join_blocks([_INTRODUCTION, *_list_blocks()])


def _list_blocks() -> Iterator[str]:
    seen: set[str] = set()
    for status, meanings in map_codes().items():
        yield f"## {status} {name_phrase(status)}"
        for code, meaning in meanings.items():
            yield f"### {code}" if code not in seen else f"### {code} with {status}"
            yield f"Cause: {write_text(meaning)}"
            yield f"Fix: {FIXES[code]}"
            seen.add(code)
