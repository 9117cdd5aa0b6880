"""The command `llm`, with the gateway's models in its list of OpenAI-compatible ones."""

import os
import subprocess
import sys
from pathlib import Path

from steps import HELLO, KEY, OSLO, URL, City, Skip, Step, expect, find_embedding_model, run

COMMAND = str(Path(sys.executable).parent / "llm")
FOLDER = Path.home() / "llm"
FOLDER.mkdir()
ENVIRONMENT = {**os.environ, "LLM_USER_PATH": str(FOLDER)}
TOOLS = '''
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city}"
'''


def list_model(model: str) -> None:
    entry = f"- model_id: {model}\n  model_name: {model}\n  api_base: {URL}/v1\n  supports_schema: true\n"
    (FOLDER / "extra-openai-models.yaml").write_text(f"{entry}  supports_tools: true\n  api_key_name: gateway\n")


def ask(model: str, *words: str) -> str:
    command = [COMMAND, "prompt", "-m", model, "--key", KEY, *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    expect((done.returncode, done.stderr if done.returncode else ""), (0, ""))
    return done.stdout.strip()


def list_steps(model: str) -> dict[str, Step]:
    list_model(model)
    schema = '{"type":"object","properties":{"name":{"type":"string"},"people":{"type":"integer"}}}'
    return {
        "chat": lambda: expect(ask(model, "--no-stream", "Hello"), HELLO),
        "stream": lambda: expect(ask(model, "Hello"), HELLO),
        "tools": lambda: expect(
            ask(model, "--functions", TOOLS, "How is the weather in Oslo?"), "The tool returned: rain in Oslo"
        ),
        "structured": lambda: expect(City.model_validate_json(ask(model, "--schema", schema, "Which city?")), OSLO),
        "embeddings": lambda: embed(model),
    }


def embed(model: str) -> None:
    find_embedding_model(model)
    raise Skip("the command has no embedding models with an address of their own")


run(list_steps)
