"""``[metrics]`` and ``[tracing]``: what they become, and what they refuse."""

from typing import Any

import pytest

from gateway.config.schema import Config
from gateway.parsing import ValidationErrors, parse_table
from tests.support.table_rows import table_rows


@table_rows(
    ("section", "key", "value"),
    [
        ("metrics", "token", "short"), ("metrics", "token", "sixteen letters\n"), ("metrics", "token", " " * 20),
        ("metrics", "token", "ümlaut-ümlaut-ümlaut"), ("metrics", "allow", ["10.0.0.0/33"]), ("metrics", "alow", []),
        ("tracing", "endpoint", "127.0.0.1:4318"), ("tracing", "endpoint", "http://u:p@127.0.0.1:4318"),
        ("tracing", "sample_ratio", 1.1), ("tracing", "sample_ratio", -0.1), ("tracing", "headers", ["Authorization"]),
        ("tracing", "headers", ["a b=c"]), ("tracing", "headers", ["a=b\nc"]), ("tracing", "headers", {"a": "b"}),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_under_its_path(section: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table({section: {key: value}}, Config)
    assert [path for path, _ in caught.value.problems] == [f"{section}.{key}"]


@table_rows("secret", [{"metrics": {"token": "hunter2"}}, {"tracing": {"headers": ["hunter2"]}}])
def test_no_problem_shows_a_secret(secret: dict[str, Any]) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table(secret, Config)
    assert "hunter2" not in str(caught.value.problems)
    assert "hunter2" not in repr(parse_table({"metrics": {"token": "hunter2-hunter2-hunter2"}}, Config))


@table_rows("endpoint", ["http://127.0.0.1:4318", "http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"])
def test_the_path_of_traces_is_added_once(endpoint: str) -> None:
    tracing = parse_table({"tracing": {"endpoint": endpoint, "headers": ["a=b", "c=d=e", "f="]}}, Config).tracing
    assert tracing.traces_url == "http://127.0.0.1:4318/v1/traces"
    assert tracing.parse_headers() == {"a": "b", "c": "d=e", "f": ""}
