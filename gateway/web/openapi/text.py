"""The public API's part that answers with text and numbers: chat, in three languages, and what stands beside it.

Which fields there are and what is checked of them: ``dialects/openai_*.py``, ``anthropic_messages.py``, ``rerank.py``.
"""

from gateway.dialects.openai_embeddings import MAX_DIMENSIONS
from gateway.dialects.openai_fields import MAX_CHOICES, MAX_MODEL_LENGTH
from gateway.dialects.openai_moderations import DEFAULT_MODEL
from gateway.dialects.rerank import MAX_DOCUMENTS
from gateway.domain.usage import MAX_TOKENS
from gateway.web.admin.shapes import ANYTHING, COUNT, FLAG, INTEGER, NUMBER, TEXT, maybe, one_of, table
from gateway.web.openapi.entry import (
    EVENTS,
    JSON,
    Answer,
    Entry,
    answer,
    body,
    either,
    in_header,
    items,
    matching,
    number,
    ref,
    stream,
    told,
    whole,
)
from gateway.web.openapi.nouns import Schema

_PRINTABLE = matching(r"^[^\x00-\x1f\x7f-\xa0\ud800-\udfff]+$", minLength=1, maxLength=MAX_MODEL_LENGTH)
MODEL = told(_PRINTABLE, "Which model, by its id in `GET /v1/models`.")
NAMED = ref("IdempotencyKey", "parameters")
METERED = (400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503, 504)
"""What a call can come to that a provider answers."""
LIMITS = tuple(
    f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)
COSTS = ("x-gateway-overhead-ms", "x-gateway-cost-usd", "x-gateway-warning", *LIMITS)
STREAMED = told(FLAG, "Answer as a stream of events, as they come.", default=False)
_TEMPERATURE = told(number(0, 2), "How freely words are chosen.")
_TOP_P = told(number(0, 1), "Choose among the likeliest words that make up this part of the whole.")
_PENALTY = told(number(-2, 2), "Against words that were said before.")
_USER = told(TEXT, "Who the call is for, in your words. Calls of one user go to the same provider where that helps.")
_TOKENS = whole(1, MAX_TOKENS)
_ENDS_DONE = (
    "With `stream`: events of one line `data:` each, the last of which is `data: [DONE]`. A failure on the way is an "
    "event with the error object, and the stream ends without that mark."
)
_STREAM_OPTIONS = told(
    body("", include_usage=told(FLAG, "Say in one more event, before the end, how many tokens were used.")),
    "Only with `stream`.",
)
_CONTENT = either(TEXT, items(answer("type", type=TEXT, text=TEXT)))
_IDS = items(INTEGER, least=1)

_MESSAGE = body(
    "role",
    role=one_of("developer", "system", "user", "assistant", "tool", "function"),
    content=told(_CONTENT, "A text, or parts: `text`, `image_url`, `input_audio`, `file`."),
    name=told(TEXT, "Of whoever speaks."),
    tool_calls=told(items(answer("")), "What the assistant called."),
    tool_call_id=told(TEXT, "Which call a message of the role `tool` is the result of."),
)
_CHAT = body(
    "model messages",
    model=MODEL,
    messages=told(items(_MESSAGE, least=1), "What was said so far, the newest last."),
    stream=STREAMED,
    stream_options=_STREAM_OPTIONS,
    max_tokens=told(_TOKENS, "The most tokens to answer with."),
    max_completion_tokens=told(_TOKENS, "The same, thoughts counted in; for models that think."),
    temperature=_TEMPERATURE,
    top_p=_TOP_P,
    presence_penalty=_PENALTY,
    frequency_penalty=_PENALTY,
    n=told(whole(1, MAX_CHOICES), "How many answers.", default=1),
    stop=told(either(TEXT, items(TEXT)), "Where to stop."),
    tools=told(items(), "Functions that the model may call."),
    tool_choice=told(either(TEXT, answer("")), "`auto`, `none`, `required`, or one function."),
    parallel_tool_calls=told(FLAG, "Whether it may call several at once."),
    response_format=told(answer("type", type=TEXT), "`text`, `json_object` or `json_schema`."),
    reasoning_effort=told(TEXT, "How long to think: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`."),
    seed=told(INTEGER, "The same seed makes the same answer likelier."),
    user=_USER,
)
_COMPLETIONS = body(
    "model",
    model=MODEL,
    prompt=told(either(TEXT, items(either(TEXT, INTEGER, _IDS), least=1)), "A text, texts, or their token ids."),
    suffix=told(TEXT, "What is to come after the answer."),
    stream=STREAMED,
    stream_options=_STREAM_OPTIONS,
    max_tokens=told(whole(0, MAX_TOKENS), "The most tokens to answer with."),
    temperature=_TEMPERATURE,
    top_p=_TOP_P,
    n=told(whole(1, MAX_CHOICES), "How many answers to each prompt.", default=1),
    best_of=told(whole(0, MAX_CHOICES), "How many to make, of which `n` are given."),
    stop=told(either(TEXT, items(TEXT)), "Where to stop."),
    user=_USER,
)
_RESPONSES = body(
    "model",
    model=MODEL,
    input=told(either(TEXT, items(answer(""))), "A text, or items: messages, results of tools."),
    instructions=told(TEXT, "What stands above the conversation."),
    stream=told(FLAG, "Answer as a stream of named events, as they come.", default=False),
    max_output_tokens=told(_TOKENS, "The most tokens to answer with, thoughts counted in."),
    temperature=_TEMPERATURE,
    top_p=_TOP_P,
    tools=told(items(), "What the model may call."),
    reasoning=told(answer(""), "How long to think: `effort`."),
    text=told(answer(""), "The form of the answer: `format`."),
    store=told(FLAG, "Whether the provider keeps the answer."),
    previous_response_id=told(TEXT, "Go on from an earlier answer, which its provider has kept."),
    user=_USER,
)
_EMBEDDINGS = body(
    "model input",
    model=MODEL,
    input=told(either(TEXT, items(either(TEXT, INTEGER, _IDS), least=1)), "A text, texts, or their token ids."),
    dimensions=told(whole(1, MAX_DIMENSIONS), "How long the vectors are to be, where the model can."),
    encoding_format=told(one_of("float", "base64"), "Numbers, or base64 of little-endian float32.", default="float"),
    user=_USER,
)
_MODERATIONS = body(
    "input",
    model=told(MODEL, "Which model.", default=DEFAULT_MODEL),
    input=told(either(TEXT, items(either(TEXT, answer("type", type=TEXT)), least=1)), "What to look at."),
)
_RERANK = body(
    "model query documents",
    model=MODEL,
    query=told(either(TEXT, answer("")), "What is looked for."),
    documents=told(items(either(TEXT, answer("")), least=1, most=MAX_DOCUMENTS), "Among what."),
    top_n=told(_TOKENS, "How many to give."),
    return_documents=told(FLAG, "Whether to give the documents back, too."),
)
_SAYING = body(
    "role content",
    role=one_of("user", "assistant", "system"),
    content=told(_CONTENT, "A text, or blocks: `text`, `image`, `document`, `tool_use`, `tool_result`, `thinking`."),
)
_COUNTED: dict[str, Schema] = {
    "model": MODEL,
    "messages": told(items(_SAYING, least=1), "What was said so far, the newest last."),
    "system": told(_CONTENT, "What stands above the conversation."),
    "tools": told(items(answer("")), "What the model may call."),
    "tool_choice": told(answer(""), "`auto`, `any`, `none`, or one tool."),
    "thinking": told(answer(""), "Whether to think, and how long."),
}
_MESSAGES = body(
    "model messages max_tokens",
    **_COUNTED,
    max_tokens=told(whole(0, MAX_TOKENS), "The most tokens to answer with; 0 only fills the provider's cache."),
    stream=told(FLAG, "Answer as a stream of named events, as they come.", default=False),
    temperature=told(number(0, 1), "How freely words are chosen."),
    top_p=_TOP_P,
    top_k=told(whole(0, MAX_TOKENS), "Choose among so many words."),
    stop_sequences=told(items(TEXT), "Where to stop."),
    metadata=told(answer(""), "`user_id`: who the call is for."),
)
_DATE = matching("^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
_VERSION = in_header("anthropic-version", "It goes with the body where that passes as it is.", _DATE)
_NAMES = matching("^[A-Za-z0-9._, -]{0,1024}$")
_FEATURES = in_header("anthropic-beta", "Features of Anthropic's, with commas between them.", _NAMES)

_CHOICE = answer(
    "index message finish_reason",
    index=INTEGER,
    message=answer("role", role=TEXT, content=maybe(TEXT), tool_calls=maybe(items(answer("")))),
    finish_reason=told(maybe(TEXT), "`stop`, `length`, `tool_calls`, `content_filter`."),
)
TEXT_SCHEMAS: dict[str, Schema] = {
    "Usage": answer("prompt_tokens", prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT),
    "ChatCompletion": answer(
        "id object model choices",
        id=TEXT,
        object=one_of("chat.completion"),
        created=told(INTEGER, "Unix seconds."),
        model=told(TEXT, "Which model answered."),
        choices=items(_CHOICE),
        usage=ref("Usage"),
    ),
    "ChatCompletionChunk": answer(
        "id object choices",
        id=TEXT,
        object=one_of("chat.completion.chunk"),
        created=INTEGER,
        model=TEXT,
        choices=items(answer("index delta", index=INTEGER, delta=answer(""), finish_reason=maybe(TEXT))),
        usage=maybe(ref("Usage")),
    ),
    "Completion": answer(
        "id object choices",
        id=TEXT,
        object=one_of("text_completion"),
        created=INTEGER,
        model=TEXT,
        choices=items(answer("text", text=TEXT, index=INTEGER, finish_reason=maybe(TEXT))),
        usage=maybe(ref("Usage")),
    ),
    "Response": answer(
        "id object model output",
        id=TEXT,
        object=one_of("response"),
        created_at=told(NUMBER, "Unix seconds."),
        status=told(TEXT, "`completed`, `incomplete`, `in_progress`, `queued`, `failed`, `cancelled`."),
        model=TEXT,
        output=told(items(answer("type", type=TEXT)), "Items: messages, calls of tools, thoughts."),
        usage=maybe(answer("input_tokens output_tokens", input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT)),
    ),
    "Embeddings": answer(
        "object data model usage",
        object=one_of("list"),
        data=items(
            answer(
                "object index embedding",
                object=one_of("embedding"),
                index=INTEGER,
                embedding=either(items(NUMBER), TEXT),
            ),
        ),
        model=TEXT,
        usage=ref("Usage"),
    ),
    "Moderation": answer(
        "results",
        id=TEXT,
        model=TEXT,
        results=items(
            answer("flagged", flagged=FLAG, categories=table(ANYTHING), category_scores=table(ANYTHING)),
        ),
    ),
    "Ranking": answer(
        "results",
        results=told(
            items(answer("index relevance_score", index=INTEGER, relevance_score=NUMBER)), "The most relevant first."
        ),
    ),
    "Message": answer(
        "id type role content model stop_reason usage",
        id=TEXT,
        type=one_of("message"),
        role=one_of("assistant"),
        content=told(items(answer("type", type=TEXT)), "Blocks: `text`, `tool_use`, `thinking`."),
        model=TEXT,
        stop_reason=maybe(TEXT),
        stop_sequence=maybe(TEXT),
        usage=answer("input_tokens output_tokens", input_tokens=COUNT, output_tokens=COUNT),
    ),
    "TokenCount": answer("input_tokens", input_tokens=COUNT),
}
"""What stands under ``components.schemas``."""

_HELLO = [{"role": "user", "content": "Say hello in one word."}]

TEXT_ENTRIES: tuple[Entry, ...] = (
    Entry(
        "POST",
        "/v1/chat/completions",
        "create_chat_completion",
        "Chat",
        "Chat completion",
        "Fields that are not named here go to a provider of the same language as they are; where a channel speaks "
        "another one, they are translated. A call that no channel can express is refused before anything is spent.",
        parameters=(NAMED,),
        takes={JSON: _CHAT},
        example={"model": "demo-chat", "messages": _HELLO, "stream": True},
        answers=(
            Answer(
                "The answer, whole or as it comes.",
                {JSON: ref("ChatCompletion"), EVENTS: stream(ref("ChatCompletionChunk"), _ENDS_DONE)},
                headers=COSTS,
            ),
        ),
        faults=(*METERED, 409),
    ),
    Entry(
        "POST",
        "/v1/responses",
        "create_response",
        "Chat",
        "Response, in the convention's newer language",
        "For channels whose provider speaks it. Answers that a provider keeps cannot be fetched here.",
        takes={JSON: _RESPONSES},
        example={"model": "gpt-5", "input": "Say hello in one word."},
        answers=(
            Answer(
                "The response, whole or as it comes.",
                {
                    JSON: ref("Response"),
                    EVENTS: stream(
                        answer("type", type=TEXT), "With `stream`: named events; the last carries the whole response."
                    ),
                },
                headers=COSTS,
            ),
        ),
        faults=METERED,
    ),
    Entry(
        "POST",
        "/v1/completions",
        "create_completion",
        "Chat",
        "Completion of a text, the convention's first language",
        takes={JSON: _COMPLETIONS},
        example={"model": "some-base-model", "prompt": "Once upon a time"},
        answers=(
            Answer(
                "The text, whole or as it comes.",
                {JSON: ref("Completion"), EVENTS: stream(ref("Completion"), _ENDS_DONE)},
                headers=COSTS,
            ),
        ),
        faults=METERED,
    ),
    Entry(
        "POST",
        "/v1/messages",
        "create_message",
        "Anthropic's language",
        "Message",
        "Every chat model can be called in this language, whoever provides it. Errors have Anthropic's form.",
        parameters=(_VERSION, _FEATURES),
        takes={JSON: _MESSAGES},
        example={"model": "demo-chat", "max_tokens": 64, "messages": _HELLO},
        answers=(
            Answer(
                "The message, whole or as it comes.",
                {
                    JSON: ref("Message"),
                    EVENTS: stream(
                        answer("type", type=TEXT),
                        "With `stream`: `message_start`, blocks in pieces, `message_delta`, `message_stop`. A failure "
                        "on the way is the event `error`.",
                    ),
                },
                headers=COSTS,
            ),
        ),
        faults=METERED,
        language="anthropic",
    ),
    Entry(
        "POST",
        "/v1/messages/count_tokens",
        "count_tokens",
        "Anthropic's language",
        "How many tokens a message would have",
        "It costs nothing. For models whose provider counts: Anthropic's and Gemini's.",
        parameters=(_VERSION, _FEATURES),
        takes={JSON: body("model messages", **_COUNTED)},
        example={"model": "claude-sonnet-4-5", "messages": _HELLO},
        answers=(Answer("The count.", {JSON: ref("TokenCount")}, headers=COSTS),),
        faults=METERED,
        language="anthropic",
    ),
    Entry(
        "POST",
        "/v1/embeddings",
        "create_embeddings",
        "Embeddings and ranking",
        "Embeddings",
        takes={JSON: _EMBEDDINGS},
        example={"model": "demo-embedding", "input": ["one text", "another"]},
        answers=(Answer("A vector for each text.", {JSON: ref("Embeddings")}, headers=COSTS),),
        faults=METERED,
    ),
    Entry(
        "POST",
        "/v1/rerank",
        "rerank",
        "Embeddings and ranking",
        "Documents by how well they answer a query",
        takes={JSON: _RERANK},
        example={"model": "some-reranker", "query": "What is tea?", "documents": ["A drink.", "A city."], "top_n": 1},
        answers=(Answer("The documents' places.", {JSON: ref("Ranking")}, headers=COSTS),),
        faults=METERED,
    ),
    Entry(
        "POST",
        "/v1/moderations",
        "create_moderation",
        "Embeddings and ranking",
        "Whether a text or a picture should be looked at twice",
        takes={JSON: _MODERATIONS},
        example={"input": "I like tea."},
        answers=(Answer("A result for each.", {JSON: ref("Moderation")}, headers=COSTS),),
        faults=METERED,
    ),
)
