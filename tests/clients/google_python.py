"""The ``google-genai`` package: content, streams, tools, structured output, embeddings, token counts."""

from google import genai
from google.genai import types
from steps import HELLO, KEY, OSLO, URL, WEATHER, City, Step, expect, expect_weather, find_embedding_model, run

client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
ASK = "How is the weather in Oslo?"


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    expect(city, "Oslo")
    return WEATHER


def list_steps(model: str) -> dict[str, Step]:
    return {
        "chat": lambda: expect(client.models.generate_content(model=model, contents="Hello").text, HELLO),
        "stream": lambda: stream(model),
        "tools": lambda: tools(model),
        "chats": lambda: chats(model),
        "structured": lambda: structured(model),
        "embeddings": lambda: embeddings(model),
        "count": lambda: count(model),
        "models": lambda: expect(client.models.get(model=model).name, f"models/{model}"),
    }


def stream(model: str) -> None:
    pieces = client.models.generate_content_stream(model=model, contents="Hello")
    expect("".join(piece.text or "" for piece in pieces), HELLO)


def tools(model: str) -> None:
    config = types.GenerateContentConfig(tools=[get_weather])
    expect_weather(client.models.generate_content(model=model, contents=ASK, config=config).text)


def chats(model: str) -> None:
    chat = client.chats.create(model=model)
    expect([chat.send_message("Hello").text, chat.send_message("Again").text], [HELLO, HELLO])


def structured(model: str) -> None:
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=City)
    expect(client.models.generate_content(model=model, contents=ASK, config=config).parsed, OSLO)


def embeddings(model: str) -> None:
    # Several texts are parts of one content, or several contents: the package decides it by the model's name.
    found = client.models.embed_content(model=find_embedding_model(model), contents="bc")
    assert found.embeddings
    expect([each.values for each in found.embeddings], [[0.25, -0.5, 2.0]])


def count(model: str) -> None:
    assert client.models.count_tokens(model=model, contents=ASK).total_tokens


run(list_steps)
