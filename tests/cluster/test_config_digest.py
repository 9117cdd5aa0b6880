"""The digest by which nodes see that their configurations differ."""

from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.config_digest import compute_digest
from gateway.config.loader import read_config

MASTER_KEY = "5a" * 32
FILE = """
[server]
port = 8081
[store]
url = "postgresql://gateway:secret@db.example.com/gateway"
[safety]
words_file = "{words}"
[metrics]
token = "token-of-the-metrics-aaaaaaaaaa"
[[account]]
name = "acme"
[[key]]
name = "k"
account = "acme"
secret = "sk-test-key-of-the-only-caller"
[[channel]]
name = "up"
provider = "openai"
api_key = "sk-of-the-provider"
models = ["m"]
"""


@pytest.fixture
def digest(tmp_path: Path) -> Any:
    """The digest of a file in which ``old`` is ``new``, beside a list of ``words``."""
    config, listed = tmp_path / "gateway.toml", tmp_path / "words.txt"

    def find(old: str = "", new: str = "", words: str = "bad\n", master_key: str = MASTER_KEY) -> str:
        assert old in FILE
        listed.write_text(words)
        config.write_text(FILE.format(words=listed).replace(old, new) if old else FILE.format(words=listed))
        return compute_digest(read_config(config, {"GATEWAY_STORE__MASTER_KEY": master_key}))

    return find


@pytest.mark.parametrize(
    ("old", "new"), [("8081", "8082"), ("secret@db", "other@db2"), ("[store]", "[cluster]\nenabled = true\n[store]")]
)
def test_what_is_a_nodes_own_makes_no_difference(digest: Any, old: str, new: str) -> None:
    assert digest(old, new) == digest()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"acme"', '"acne"'),
        ("sk-test-key-of-the-only-caller", "sk-test-key-of-another-caller"),
        ("sk-of-the-provider", "sk-of-another-provider"),
        ("token-of-the-metrics-aaaaaaaaaa", "token-of-the-metrics-bbbbbbbbbb"),
    ],
)
def test_settings_and_secrets_that_differ_are_seen(digest: Any, old: str, new: str) -> None:
    assert digest(old, new) != digest()


def test_words_that_differ_are_seen(digest: Any) -> None:
    assert digest(words="worse\n") != digest()


def test_only_the_master_key_tells_what_a_digest_is_of(digest: Any) -> None:
    assert digest(master_key="1b" * 32) != digest() == digest()
