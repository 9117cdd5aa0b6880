"""A gateway that others can reach does not start with a secret that is easy to guess."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.config.exposure import check_secrets, is_loopback
from gateway.config.loader import ConfigError, read_config
from gateway.config.schema import Config
from tests.support.forked_commands import Forked

WEAK = '[[account]]\nname = "a"\n[[key]]\nname = "k"\naccount = "a"\nsecret = "sk-changeme-changeme"\n'
ANYWHERE = "0.0.0.0"  # noqa: S104 - that is what is tested
TOKEN = "kd93jfLs02kfmQ7dhs8eJx"


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    return read_config(path, {})


@pytest.mark.parametrize("host", [ANYWHERE, "::", "192.168.1.5", "gateway.internal"])
@pytest.mark.parametrize(
    ("text", "token", "named"),
    [
        (WEAK, TOKEN, "key[0].secret"),
        (f'[store]\nmaster_key = "{"0" * 64}"\n', TOKEN, "store.master_key"),
        (f'[store]\nmaster_key = "{"0123456789abcdef" * 4}"\n', TOKEN, "store.master_key"),
        ('[metrics]\ntoken = "changeme-changeme"\n', TOKEN, "metrics.token"),
        ("", "changeme", "admin.token"),
        ("", "short", "admin.token"),
    ],
)
def test_beyond_loopback_each_weak_secret_is_named_and_refused(
    tmp_path: Path, host: str, text: str, token: str, named: str
) -> None:
    config = read(tmp_path, f'{text}[server]\nhost = "{host}"\n')
    with pytest.raises(ConfigError) as caught:
        check_secrets(config, token)
    (problem,) = caught.value.problems
    assert named in problem
    assert "easy to guess" in problem
    assert "changeme" not in problem


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_on_loopback_it_is_a_warning(tmp_path: Path, host: str) -> None:
    config = read(tmp_path, f'{WEAK}[server]\nhost = "{host}"\n')
    with capture_logs() as lines:
        check_secrets(config, TOKEN)
    assert [(line["event"], line["log_level"]) for line in lines] == [("weak_secret_found", "warning")]
    assert "key[0].secret" in lines[0]["reason"]
    assert is_loopback(host)


def test_the_command_refuses_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(WEAK)
    words = ["gateway", "serve", "--host", ANYWHERE, "--port", "0", "--config", "gateway.toml"]
    err = tmp_path / "err"
    assert Forked(words, cwd=tmp_path, env={"GATEWAY_DISCOVER": "0"}, err=err).wait(30) == 2
    assert "key[0].secret" in err.read_text()
    assert "Traceback" not in err.read_text()
