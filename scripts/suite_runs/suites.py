"""The test suites that `make test-suites` runs: packages, files of tests, and the models that the tests name."""

import attrs

REQUIREMENTS: tuple[str, ...] = (
    "openai[aiohttp]==3.54.0",
    "anthropic[aiohttp]==2.12.0",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "pytest-xdist==3.8.0",
    "respx==0.23.1",
    "rich==15.0.0",
    "inline-snapshot==0.36.1",
    "http-snapshot[httpx]==0.1.9",
    "httpx2==2.16.2",
    "opentelemetry-sdk==1.45.2",
)
"""The environment of all suites: what their configuration of pytest imports."""

OPENAPI = (
    "https://raw.githubusercontent.com/openai/openai-openapi/f85dbe223d40e1a31cba812ab2d755c7e98a92a3/openapi.yaml",
    "db5d7478feae10b4d331834c60d9765a8aa042e38419f9b1694288c11aa8ebc8",
)
"""OpenAI's OpenAPI document and its SHA-256."""


@attrs.frozen
class Suite:
    """The resource tests of one library.

    Attributes:
        package: at PyPI; its source archive has the tests.
        archive: the SHA-256 of the source archive.
        base: the path of the base URL that the library is given.
        paths: of the tests, below ``tests/api_resources``.
        models: every name of a model that the tests use.
    """

    package: str
    version: str
    archive: str
    base: str
    paths: tuple[str, ...]
    models: tuple[str, ...]


OPENAI = Suite(
    package="openai",
    version="3.54.0",
    archive="2e393e63f8a38be6452806f9ef0b6534fecd6d41ab3b2165180dfce3599249cd",
    base="/v1",
    paths=(
        "audio",
        "chat",
        "responses",
        "uploads",
        "test_batches.py",
        "test_completions.py",
        "test_embeddings.py",
        "test_files.py",
        "test_images.py",
        "test_models.py",
        "test_moderations.py",
        "test_responses.py",
        "test_uploads.py",
        "test_videos.py",
    ),
    models=(
        "auto",
        "ft:gpt-4o-mini:acemeco:suffix:abc123",
        "gpt-3.5-turbo-instruct",
        "gpt-4o-transcribe",
        "gpt-6-astra",
        "gpt-image-1.5",
        "gpt-image-2.5-flare",
        "model",
        "omni-moderation-2024-09-26",
        "omni-moderation-latest",
        "sora-2",
        "text-embedding-3-small",
        "tts-1",
        "whisper-1",
    ),
)
ANTHROPIC = Suite(
    package="anthropic",
    version="2.12.0",
    archive="571e6d250bcd6bbaf5fd5f3c764b8e11af9901ad2e44b025f8e773c6cc7a7173",
    base="",
    paths=(
        "test_messages.py",
        "test_models.py",
        "messages",
        "beta/test_messages.py",
        "beta/test_models.py",
        "beta/messages",
    ),
    models=("claude-*", "claude-opus-5-5", "model_id"),
)
SUITES = (OPENAI, ANTHROPIC)
