"""Reads the table of differences, and compares two runs of a suite with it."""

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

TABLE = Path(__file__).resolve().parent / "differences.toml"
_WAYS = re.compile(r"^test_(?:(?:method|raw_response|streaming_response)_)?")
"""A suite has three tests of each call, by how it returns the answer."""


@attrs.frozen
class Outcome:
    """What became of a test: "passed", "failed" or "skipped", and why."""

    state: str
    reason: str = ""


Outcomes = Mapping[str, Outcome]
"""The outcomes of a run, by the test's name at pytest."""


@attrs.frozen
class Difference:
    """Calls that the gateway answers otherwise than the provider, for one reason.

    Attributes:
        group: the key of the group in the table.
        calls: names as ``name_call`` makes them.
        corrected: the tests pass if what the gateway refuses is corrected (``corrections``).
    """

    suite: str
    group: str
    reason: str
    calls: tuple[str, ...]
    corrected: bool = False


@attrs.frozen
class Table:
    """The table: titles of groups and their differences, and how many tests pass in each suite.

    Attributes:
        groups: titles by key.
        passes: by suite: without the gateway, through it, and through it with corrected requests.
    """

    groups: Mapping[str, str]
    passes: Mapping[str, tuple[int, int, int]]
    differences: tuple[Difference, ...]


def load_table(path: Path = TABLE) -> Table:
    """Read the table."""
    content: dict[str, Any] = tomllib.loads(path.read_text())
    differences = tuple(
        Difference(one["suite"], one["group"], one["reason"], tuple(one["calls"]), one.get("corrected", False))
        for one in content["difference"]
    )
    passes = {suite: (one["straight"], one["through"], one["corrected"]) for suite, one in content["passes"].items()}
    return Table(content["groups"], passes, differences)


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Read what ``report_outcomes`` has written; a test's last line counts."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {line["test"]: Outcome(line["state"], line["reason"]) for line in lines}


def name_call(test: str) -> str:
    """Return the call that a test is about: ``chat/completions: create_overload_1``.

    The tests of the synchronous and of the asynchronous library, with each HTTP client and each way of returning the
    answer, are about one call.
    """
    path, _, rest = test.removeprefix("tests/api_resources/").partition("::")
    name = rest.rpartition("::")[2].partition("[")[0]
    file = re.sub(r"(^|/)test_", r"\1", path.removesuffix(".py"))
    return f"{file}: {_WAYS.sub('', name)}"


@attrs.frozen
class Runs:
    """The outcomes of one suite.

    Attributes:
        straight: against the mock.
        through: through the gateway.
        corrected: through the gateway with corrected requests, of the tests in ``list_corrected``.
    """

    straight: Outcomes
    through: Outcomes
    corrected: Outcomes

    @property
    def passes(self) -> tuple[int, int, int]:
        """How many tests pass; a test that passes as it is passes when it is corrected."""
        through = count_passed(self.through)
        return count_passed(self.straight), through, through + count_passed(self.corrected)

    def find_differences(self) -> dict[str, dict[str, str]]:
        """Return why tests fail through the gateway that pass straight: by call and test."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for test, outcome in self.straight.items():
            now = self.through.get(test, Outcome("failed", "it was not run"))
            if outcome.state == "passed" and now.state != "passed":
                found[name_call(test)][test] = now.reason
        return found


def list_corrected(suite: str, straight: Outcomes, through: Outcomes, table: Table) -> list[str]:
    """Return the tests that differ and of which the table says that they pass with corrected requests."""
    calls = {call for one in table.differences if one.suite == suite and one.corrected for call in one.calls}
    found = Runs(straight, through, {}).find_differences()
    return [test for call, tests in found.items() if call in calls for test in tests]


def compare(suite: str, runs: Runs, table: Table) -> list[str]:
    """Return what is wrong: differences that the table does not have, and entries without a difference."""
    found = runs.find_differences()
    listed = [call for one in table.differences if one.suite == suite for call in one.calls]
    problems = [f"{call}: listed twice" for call in sorted({one for one in listed if listed.count(one) > 1})]
    for call, tests in sorted(found.items()):
        if call not in listed:
            test, reason = next(iter(tests.items()))
            problems.append(f"{call}: {len(tests)} tests fail only through the gateway, as {test}: {_shorten(reason)}")
    problems += (f"{call}: no test of it differs; remove it" for call in sorted(set(listed) - found.keys()))
    problems += (
        f"{test} fails although its request is corrected: {_shorten(one.reason)}"
        for test, one in runs.corrected.items()
        if one.state != "passed"
    )
    if runs.passes != table.passes.get(suite):
        problems.append(f"{suite}: {runs.passes} tests pass, the table says {table.passes.get(suite)}")
    return problems


def count_passed(outcomes: Outcomes) -> int:
    """Return how many tests passed."""
    return sum(one.state == "passed" for one in outcomes.values())


def list_calls(calls: Iterable[str]) -> dict[str, list[str]]:
    """Return calls by the file of their tests."""
    listed: dict[str, list[str]] = defaultdict(list)
    for call in calls:
        path, _, name = call.partition(": ")
        listed[path].append(name)
    return dict(listed)


def _shorten(text: str) -> str:
    return " ".join(text.split())[:300]
