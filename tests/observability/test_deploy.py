"""The files in ``deploy/`` for Prometheus and Grafana name metrics and labels that a serving gateway has."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import orjson
import yaml

from gateway.domain.node import NodeFigures
from gateway.domain.request_log import Outcome
from gateway.error_status import STATUS
from gateway.observability.node_metrics import list_node_families
from gateway.routing.channel_health import Health
from tests.support.fault_scene import PRICE
from tests.support.gateway import HELLO, channel
from tests.support.scrapes import scrape
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES, SCRAPE = DEPLOY / "prometheus" / "rules.yml", DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
SINK = {"name": "hook", "kind": "webhook", "url": "http://127.0.0.1:9/hook", "secret": "a secret of 24 characters"}
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus itself adds."""
NAME = re.compile(r"\b(?:gateway|gen_ai|process)_[a-z0-9_]+\b")
SELECTOR = re.compile(r"\b((?:gateway|gen_ai|process)_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
LABELS_IN_TEXT = re.compile(r"\$labels\.([a-z_]+)")


def read_rules() -> list[Any]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def read_dashboard() -> Any:
    return orjson.loads(DASHBOARD.read_bytes())


def list_variables() -> list[dict[str, Any]]:
    """The variables of the dashboard that an expression fills; the first one chooses the data source."""
    return [one for one in read_dashboard()["templating"]["list"] if one["type"] == "query"]


def list_panels() -> list[Any]:
    return [panel for panel in read_dashboard()["panels"] if panel["type"] != "row"]


def list_expressions() -> Iterator[str]:
    """Every expression of the rules and of the dashboard, its variables too."""
    yield from (rule["expr"] for rule in read_rules())
    yield from (target["expr"] for panel in list_panels() for target in panel["targets"])
    for variable in list_variables():
        query = variable["definition"]
        assert query == variable["query"]["query"]
        yield query


def find_wrong(expression: str, known: Mapping[str, set[str]]) -> Iterator[str]:
    """Names of metrics that there are not, and labels that their metrics have not."""
    groups = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
    names = set(NAME.findall(GROUPING.sub("", re.sub(r"\{[^}]*\}", "", expression))))
    yield from (f"metric {name}" for name in names - known.keys())
    for name, matchers in SELECTOR.findall(expression):
        used = {label for label, _ in MATCHER.findall(matchers)}
        yield from (f"label {label} of {name}" for label in used - known.get(name, set()) - TARGET_LABELS)
    for name in names & known.keys():
        yield from (f"label {label} of {name}" for label in groups - known[name] - TARGET_LABELS)


async def test_every_metric_and_label_is_one_of_a_gateway_that_has_served(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("good", "words")) as up:
        gateway = await gateway_with(
            {
                "channel": [channel(up.base_url, max_concurrency=9, queue={"length": 5})],
                "price": [PRICE],
                "sink": [SINK],
            }
        )
        for body in (HELLO, HELLO | {"stream": True}):
            async with gateway.post(body) as response:
                await response.read()
        families = await scrape(gateway)
        async with asyncio.timeout(30):
            while not families["gateway_sink_lag_seconds"].samples:  # the sink has not looked yet
                await asyncio.sleep(0.02)
                families = await scrape(gateway)
    known: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    for family in list_node_families(NodeFigures(2, 1, 0.5, fenced=False, leads=True, config_digest="x"), 0):
        families[family.name] = family
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    expressions = list(list_expressions())
    assert len(expressions) > 40
    wrong = [f"{found} in {expression}" for expression in expressions for found in find_wrong(expression, known)]
    assert not wrong, "\n".join(wrong)
    assert [*find_wrong("rate(gateway_nothing_total[5m])", known)] == ["metric gateway_nothing_total"]
    assert [*find_wrong('gateway_store_failing{x="y"}', known)] == ["label x of gateway_store_failing"]
    assert [*find_wrong("sum by (y, le) (gateway_store_failing)", known)] != []
    shown = " ".join(expressions)
    missing = {f.name for f in families.values() if f.name.startswith(("gateway_", "gen_ai_")) and f.name not in shown}
    assert not missing, f"no expression shows {missing}"


def test_the_values_of_labels_are_ones_that_there_are() -> None:
    values: dict[str, set[str]] = {}
    for expression in list_expressions():
        for label, text in MATCHER.findall(expression):
            values.setdefault(label, set()).update(part for part in text.split("|") if not part.startswith("$"))
    assert values["outcome"] <= {*get_args(Outcome)}
    assert values["state"] <= set(get_args(Health))
    assert values["code"] <= STATUS.keys()


@table_rows("rule", read_rules(), ids=lambda rule: rule["alert"])
def test_a_rule_is_whole(rule: Any) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description"}
    kept = {label.strip() for group in GROUPING.findall(rule["expr"]) for label in group.split(",")} or TARGET_LABELS
    assert {*LABELS_IN_TEXT.findall(" ".join(rule["annotations"].values()))} <= kept
    assert rule["expr"].count("(") == rule["expr"].count(")")


def test_rules_and_panels_have_names_of_their_own() -> None:
    alerts = [rule["alert"] for rule in read_rules()]
    assert len(alerts) == len(set(alerts)) >= 10


def test_prometheus_reads_the_rules_and_the_gateway() -> None:
    config = yaml.safe_load(SCRAPE.read_text())
    assert config["rule_files"] == [RULES.name]
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("model-gateway", "/metrics")
    promtool = shutil.which("promtool")
    if promtool is not None:
        subprocess.run([promtool, "check", "config", str(SCRAPE)], check=True)


def test_grafana_can_import_the_dashboard() -> None:
    dashboard = read_dashboard()
    assert dashboard["title"]
    source = dashboard["templating"]["list"][0]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert "__inputs" not in dashboard, "a provisioned dashboard has nobody to answer them"
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    kinds = {each["id"] for each in dashboard["__requires"]}
    for panel in list_panels():
        assert panel["type"] in kinds
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    used = set(re.findall(r"\$(job|instance|model)\b", " ".join(list_expressions())))
    assert used == {variable["name"] for variable in list_variables()}
