"""The reasons of a dry run in the language of a page.

The admin API gives a reason as an English sentence. ``_REASONS`` has every sentence with its changing parts in braces,
by which a page and the script of the dry run find the translation. The words of a provider stay as they are.
"""

import re
from collections.abc import Sequence
from functools import cache

from gateway.domain.route import CAUSES
from gateway.server.console.labels import format_label
from gateway.server.console.language import ENGLISH, gettext
from gateway.server.console.routes import mark

_REASONS = (
    # Those of channels, from route_explain
    mark("cooling down after failures"),
    mark("cooling down after failures ({error})"),
    mark("recovering: one request is testing it"),
    mark("recovering: one request is testing it ({error})"),
    mark("at its maximum number of concurrent requests"),
    mark("at its maximum number of requests per minute"),
    mark("the keys of the channel are rate-limited for this model"),
    mark("failing: the provider refused its keys"),
    mark("at capacity: the request waits in the queue"),
    mark("untested: its list of models is not known yet"),
    mark("failing: its provider has not answered since the channel was added"),
    mark("disabled"),
    mark("not one of the channels of the step"),
    mark("does not edit images"),
    mark("does not offer the model"),
    mark("failing: its list of models is not known ({error})"),
    mark("allowed groups: {groups}"),
    mark("does not allow the variant {variant} (allow_fields)"),
    mark("does not support {operation}"),
    mark('has no price for this request (billing.unpriced is "{unpriced}")'),
    mark("{reason}; a few requests are sent all the same, because no other channel serves the model"),
    # Those of steps, from step_explain and from the conditions of a route
    mark("no channel can serve the request now"),
    mark("its channels are paused by the rate limits of their providers"),
    mark("no channel of the step serves its model to this caller"),
    mark("the earlier steps were ruled out for causes that this step does not list: {causes}"),
    mark("the prompt has about {tokens} tokens, but the context window has {window}"),
    mark("the prompt has about {tokens} tokens, but the step accepts only prompts of at least {limit}"),
    mark("the prompt has about {tokens} tokens, but the step accepts only prompts of at most {limit}"),
    mark("the request has images"),
    mark("the request has no images"),
    mark("the request has tools"),
    mark("the request has no tools"),
    mark("the request asks for a stream"),
    mark("the request does not ask for a stream"),
    mark("the request may cost {cost}, but only {left} is left"),
    mark("the expected wait of {wait} s is above {limit} s"),
    # Refusals of the request, from the caller and from routing
    mark("This API key is disabled"),
    mark("The account of this API key is disabled"),
    mark("This API key has expired"),
    mark("The account of this API key may not use the group {group}"),
    mark("This API key may not use the model {model}"),
    mark("The model {model} is not available; did you mean {suggestion}?"),
    mark("The model {model} is not available; GET /v1/models lists the models that are"),
    mark(
        "The model {model} is not available: the built-in demo is off. To offer its models alongside those of your "
        "channels, run `gateway channels add demo`"
    ),
    mark("The model {model} is not available to API keys without a group"),
    mark("The model {model} is not available to the group {group} of this API key"),
    mark(
        "The model {model} has no price for this request, and {reason}. An administrator can set a price ([[price]] in "
        "the configuration, or Prices in the console; 0 if the model costs nothing)"
    ),
    mark("this gateway does not serve models without a price"),
    mark("this API key has a spending limit"),
    mark("the account of this API key has a spending limit"),
    mark("spending with this API key counts toward a limit"),
    mark("The endpoint {path} does not serve the model {model}; POST {other} does"),
    mark("The endpoint {path} does not serve the model {model}"),
    mark(
        "The variant {variant} of the model {model} changes what is billed, and no channel allows it "
        "(allow_fields = {fields})"
    ),
    mark("The model {model} cannot do this: {reason}"),
    mark("it does not edit images"),
    # Failures of a channel in the gateway's own words: upstream
    mark("Connecting to the provider took too long"),
    mark("The provider took too long to answer"),
    mark("The provider took too long to list its models"),
    mark("The provider broke the connection"),
    mark("The provider's TLS certificate or handshake was not accepted"),
    mark("The provider's answer is not valid HTTP"),
    mark("The provider could not be reached"),
    mark("The provider could not be reached: {words}"),
    mark("The provider refused the gateway's credentials ({subject})"),
    mark("The provider refused the gateway's credentials ({subject}): {words}"),
)
_SENTENCES = frozenset({"reason", "error"})
"""The changing parts that are sentences of their own; the other parts are data, except ``causes``."""
_PLACEHOLDER = re.compile(r"\\\{(\w+)\\\}")


def format_reason(language: str, text: str) -> str:
    """Return a reason of the admin API in a language; unchanged if it is not one of the gateway's."""
    for pattern, translation in _read_patterns(language):
        if found := pattern.fullmatch(text):
            return translation.format_map(
                {name: _format_part(language, name, part) for name, part in found.groupdict().items()}
            )
    return text


def list_patterns(language: str) -> Sequence[tuple[str, str]]:
    """Return every reason as a regular expression for JavaScript, with its translation; none for English."""
    escaped_space = re.escape(" ")
    return [
        (f"^{pattern.pattern.replace('(?P<', '(?<').replace(escaped_space, ' ')}$", text)
        for pattern, text in _read_patterns(language)
    ]


@cache
def _read_patterns(language: str) -> Sequence[tuple[re.Pattern[str], str]]:
    if language == ENGLISH:
        return ()
    return [
        *((re.compile(cause), format_label(language, cause)) for cause in CAUSES),
        *(
            (re.compile(_PLACEHOLDER.sub(r"(?P<\1>.+?)", re.escape(text)), re.DOTALL), gettext(language, text))
            for text in _REASONS
        ),
    ]


def _format_part(language: str, name: str, part: str) -> str:
    if name == "causes":
        return "、".join(format_reason(language, cause) for cause in part.split(" and "))
    return format_reason(language, part) if name in _SENTENCES else part
