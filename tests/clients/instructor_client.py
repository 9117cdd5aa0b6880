"""Instructor: structured output by tools and by schemas, over its three clients."""

from typing import Any

import instructor
from steps import CONVENTION, KEY, OSLO, URL, City, Step, expect, run


def make_client(mode: instructor.Mode) -> Any:
    match CONVENTION:
        case "anthropic":
            from anthropic import Anthropic  # noqa: PLC0415 - one package is enough for a run

            return instructor.from_anthropic(Anthropic(base_url=URL, api_key=KEY, max_retries=0), mode=mode)
        case "google":
            from google import genai  # noqa: PLC0415 - same

            return instructor.from_genai(genai.Client(api_key=KEY, http_options={"base_url": URL}), mode=mode)
    from openai import OpenAI  # noqa: PLC0415 - same

    return instructor.from_openai(OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0), mode=mode)


def list_steps(model: str) -> dict[str, Step]:
    tools = {"anthropic": instructor.Mode.ANTHROPIC_TOOLS, "google": instructor.Mode.GENAI_TOOLS}.get(
        CONVENTION, instructor.Mode.TOOLS
    )
    schema = {"anthropic": instructor.Mode.ANTHROPIC_JSON, "google": instructor.Mode.GENAI_STRUCTURED_OUTPUTS}.get(
        CONVENTION, instructor.Mode.JSON_SCHEMA
    )
    return {"structured": lambda: structured(model, tools), "structured, by schema": lambda: structured(model, schema)}


def structured(model: str, mode: instructor.Mode) -> None:
    limit = {"max_tokens": 100} if CONVENTION == "anthropic" else {}
    ask = [{"role": "user", "content": "Which city is it? Answer as JSON."}]
    found = make_client(mode).chat.completions.create(
        model=model, messages=ask, response_model=City, max_retries=0, **limit
    )
    expect(City(**found.model_dump()), OSLO)


run(list_steps)
