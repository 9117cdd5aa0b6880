"""What a client program does for its runner (``scripts/run_clients.py``): its steps, one JSON line for each.

The environment gives the address of the gateway, a key, and the models: one for each API format of a provider.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping

from pydantic import BaseModel

URL = os.environ["GATEWAY_URL"]
KEY = os.environ["GATEWAY_KEY"]
MODELS = os.environ["GATEWAY_MODELS"].split(",")
EMBEDDING_MODELS: Mapping[str, str] = json.loads(os.environ["GATEWAY_EMBEDDING_MODELS"])
CONVENTION = sys.argv[1] if len(sys.argv) > 1 else ""

HELLO = "Hello from the provider"
WEATHER = "rain in Oslo"
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}

Step = Callable[[], object]


class City(BaseModel):
    name: str
    people: int


OSLO = City(name="Oslo", people=700_000)


class Skip(Exception):
    """The step does not apply; the message says why."""


def find_embedding_model(model: str) -> str:
    """Return the embedding model beside ``model``. Raises ``Skip``."""
    if model not in EMBEDDING_MODELS:
        raise Skip("the provider's format has no embeddings")
    return EMBEDDING_MODELS[model]


def expect(found: object, wanted: object) -> None:
    """Fail unless both are equal."""
    if found != wanted:
        raise AssertionError(f"expected {wanted!r}, got {found!r}")


def expect_weather(found: object) -> None:
    """Fail unless the answer after the tool's result repeats it. Some clients put the result into an object."""
    if not isinstance(found, str) or not found.startswith("The tool returned: ") or WEATHER not in found:
        raise AssertionError(f"expected the tool's result, got {found!r}")


def run(list_steps: Callable[[str], Mapping[str, Step]]) -> None:
    """Run the steps for every model, and print what became of each."""
    for model in MODELS:
        for name, step in list_steps(model).items():
            line = {"model": model, "step": name, "state": "passed", "reason": ""}
            try:
                step()
            except Skip as reason:
                line |= {"state": "skipped", "reason": str(reason)}
            except Exception as error:
                traceback.print_exc()
                line |= {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
            print(json.dumps(line), flush=True)
