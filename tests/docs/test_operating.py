"""What the operating pages name exists: metrics, alerts, secret files, sections that need a restart."""

import re
from typing import get_args

import yaml

from gateway.config.reload import AT_START, TABLES_AT_START
from gateway.domain.alert import KINDS
from gateway.domain.node import NodeFigures
from gateway.observability.node_metrics import list_node_families
from gateway.routing.channel_health import Health
from gateway.storage.data_folder import SECRETS
from tests.support.documentation import DOCS, ROOT
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

SINK = {"name": "hook", "kind": "webhook", "url": "http://127.0.0.1:9/hook", "secret": "a secret of 24 characters"}
MONITORING = (DOCS / "operating" / "monitoring.md").read_text()


async def test_every_metric_of_the_page_is_exported(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1")], "sink": [SINK]})
    async with gateway.client.get(f"{gateway.url}/metrics") as response:
        exported = set(re.findall(r"^# TYPE (\w+)", await response.text(), re.MULTILINE))
    figures = NodeFigures(2, 1, 0.5, fenced=False, leads=True, config_digest="x")
    exported |= {family.name for family in list_node_families(figures, 0)}
    named = set(re.findall(r"`((?:gateway|gen_ai)_\w+)`", MONITORING))
    assert len(named) > 10
    assert named <= {f"{name}_total" for name in exported} | exported


def test_the_page_names_the_states_of_a_channel() -> None:
    (row,) = (line for line in MONITORING.splitlines() if line.startswith("| `gateway_channel_state`"))
    assert set(re.findall(r"`(\w+)`", row)) == {"gateway_channel_state", *get_args(Health)}


def test_every_alert_of_the_rules_has_its_first_step() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    rows = re.findall(r"^\| (Gateway[\w, ]+) \|", MONITORING, re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} == alerts


def test_the_pages_name_the_secret_files_and_what_needs_a_restart() -> None:
    backup = (DOCS / "operating" / "backup.md").read_text()
    assert set(re.findall(r"^\| `([\w.]+)` \|", backup, re.MULTILINE)) == set(SECRETS)
    upgrade = (DOCS / "operating" / "upgrade.md").read_text()
    assert re.findall(r"`\[(\w+)\]`", upgrade) == list(AT_START)
    assert re.findall(r"`\[\[(\w+)\]\]`", upgrade) == list(TABLES_AT_START)


def test_the_page_has_every_kind_of_alert() -> None:
    alerts = (DOCS / "operating" / "alerts.md").read_text()
    cells = re.findall(r"^\| (`\w+`[^|]*) \|", alerts, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(cells)) == [kind for kind in KINDS if kind != "test"]
