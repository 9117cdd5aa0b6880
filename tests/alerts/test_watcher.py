"""What is sent of a changing world: each thing once, over restarts, and not again within the hour."""

import sys
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.alerts.apprise_sender import find_type
from gateway.alerts.delivery import AlertTarget, DeliveryFailed, hide_secrets
from gateway.alerts.watcher import AlertWatcher
from gateway.alerts.webhook import parse_secret
from gateway.config.alert_schema import AlertSpec
from gateway.domain.alert import KINDS, Alert, Condition, Findings, OpenAlert, Subject
from gateway.errors import StoreUnavailable
from gateway.parsing import ValidationErrors, parse_table
from gateway.server.context import SERVICES
from gateway.storage.alerts import AlertRepository
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

DOWN, DENIED = Condition("channel_failing", "up", "It fails."), Condition("provider_key_refused", "up 1234", "Refused.")
UP = Findings(well=frozenset({("channel_failing", "up")}))
UNKNOWN = Findings((DENIED,), unknown=frozenset({("channel_failing", "up")}))
HOUR = 3_600


@attrs.define
class World:
    """A watcher, its clock and what it sees."""

    repository: AlertRepository
    now_s: float = 1_000_000
    found: Findings = attrs.Factory(Findings)
    watcher: AlertWatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        async def look() -> Findings:
            return self.found

        self.watcher = AlertWatcher(look, self.repository, [], lambda: self.now_s)

    async def see(self, found: Findings, after_s: float = 15) -> list[str]:
        """The kinds that are sent."""
        self.now_s += after_s
        self.found = found
        known = len(self.watcher.recent)
        await self.watcher.check()
        return [one.kind for one in self.watcher.recent[: len(self.watcher.recent) - known]]


async def test_a_condition_is_told_once_and_its_end_once(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    world = World(AlertRepository(gateway.app[SERVICES].storage.database))
    fails = Findings((DOWN, DENIED))
    assert sorted(await world.see(fails)) == ["channel_failing", "provider_key_refused"]
    assert await world.see(fails, 10 * HOUR) == []
    assert await world.see(UNKNOWN) == []
    world.restart()
    assert await world.see(fails) == []
    world.restart()
    assert await world.see(UP) == ["channel_recovered"]
    assert await world.see(UP) == []
    world.restart()
    assert sorted(await world.see(fails)) == ["channel_failing", "provider_key_refused"]


class FailingRepository(AlertRepository):
    """Alerts in a database that answers only while ``is_there``."""

    is_there = True

    @override
    async def list_alerts(self) -> Sequence[OpenAlert]:
        self._check()
        return await super().list_alerts()

    @override
    async def replace(self, gone_subjects: Sequence[Subject], changed_alerts: Sequence[OpenAlert]) -> None:
        self._check()
        await super().replace(gone_subjects, changed_alerts)

    def _check(self) -> None:
        if not self.is_there:
            raise StoreUnavailable("away")


async def test_what_was_sent_before_is_read_as_soon_as_the_database_answers(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    world = World(repository := FailingRepository(gateway.app[SERVICES].storage.database))
    assert await world.see(Findings((DOWN,))) == ["channel_failing"]
    repository.is_there = False
    world.restart()
    assert await world.see(UNKNOWN) == ["provider_key_refused"]
    repository.is_there = True
    assert await world.see(Findings((DENIED, DOWN))) == []  # one from the database, one from this process
    world.restart()
    assert await world.see(UP) == ["channel_recovered"]


async def test_what_ends_and_returns_within_the_hour_is_not_told_again(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    world = World(AlertRepository(gateway.app[SERVICES].storage.database))
    assert await world.see(Findings((DENIED,))) == ["provider_key_refused"]
    assert await world.see(Findings(), 600) == []
    world.restart()
    assert await world.see(Findings((DENIED,)), 600) == []
    assert await world.see(Findings((DENIED,)), 2_400) == ["provider_key_refused"]


async def test_a_channel_that_is_deleted_while_it_fails_has_not_recovered(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    world = World(AlertRepository(gateway.app[SERVICES].storage.database))
    assert await world.see(Findings((DOWN,))) == ["channel_failing"]
    assert await world.see(Findings()) == []


async def test_a_target_drops_the_oldest_where_too_many_wait() -> None:
    async def send(alert: Alert) -> None:
        raise DeliveryFailed("away")

    target = AlertTarget(AlertSpec("ops", "https://example.com"), send, lambda: 0.0)
    for number in range(103):
        target.put(Alert("model_unpriced", str(number), "", 0))
    assert target.status.failed == 3
    assert [alert.subject for alert in target._queued_alerts][:2] == ["3", "4"]


@given(st.sampled_from(KINDS), st.text(), st.text(), st.integers(0, 2**40))
def test_the_same_alert_has_the_same_id_and_another_has_another(kind: Any, subject: str, words: str, at_s: int) -> None:
    alert = Alert(kind, subject, words, at_s)
    assert alert.id == attrs.evolve(alert).id
    assert alert.id != attrs.evolve(alert, at_s=at_s + 1).id
    assert alert.id != attrs.evolve(alert, subject=subject + "x").id
    assert find_type(alert).value in {"success", "warning", "failure"}


@table_rows(
    ("url", "shown"),
    [
        ("https://hooks.example.com/T0/secret?x=1", "https://hooks.example.com"),
        ("slack://T1/B1/secret", "slack://"),
        ("mailtos://user:pass@example.com", "mailtos://"),
    ],
)
def test_no_part_of_an_address_that_may_be_a_secret_is_shown(url: str, shown: str) -> None:
    assert hide_secrets(url) == shown
    assert "secret" not in repr(AlertSpec("ops", url))


@table_rows(
    ("secret", "expected"), [("", b""), ("plain", b"plain"), ("whsec_AQID", b"\x01\x02\x03"), ("whsec_?", b"whsec_?")]
)
def test_a_secret_is_base64_after_its_prefix_or_plain(secret: str, expected: bytes) -> None:
    assert parse_secret(secret) == expected


@table_rows(
    ("change", "field"),
    [
        ({"url": "nonsense"}, "url"),
        ({"url": "https://a b"}, "url"),
        ({"name": ""}, "name"),
        ({"kinds": ["budget_90"]}, "kinds"),
        ({"kinds": ["test"]}, "kinds"),
        ({"secret": "short"}, "secret"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_target_that_cannot_be_is_refused_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationErrors) as refused:
        parse_table({"name": "ops", "url": "https://example.com", **change}, AlertSpec)
    assert [where for where, _ in refused.value.problems] == [field]


async def test_an_address_that_apprise_does_not_know_is_refused_at_start(gateway_with: StartGateway) -> None:
    with pytest.raises(Exception, match=r"alert\[0\].url: Apprise does not know this address"):
        await gateway_with({"alert": [{"name": "ops", "url": "nonsense://x"}]})


async def test_a_missing_extra_is_named_at_start(gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gateway.alerts.apprise_sender", raising=False)
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(Exception, match=r"pip install '/.*\[alerts\]'"):
        await gateway_with({"alert": [{"name": "ops", "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"}]})


async def test_a_node_that_does_not_lead_reports_only_itself(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    repository = AlertRepository(gateway.app[SERVICES].storage.database)
    leader, other = World(repository), World(repository)
    full = Condition("store_not_writable", "", "It is full.")
    assert await other.see(Findings(own=True)) == []
    assert await leader.see(Findings((DOWN,))) == ["channel_failing"]
    assert await other.see(Findings((full,), own=True)) == ["store_not_writable"]
    assert await other.see(Findings(own=True)) == []
    assert await other.see(Findings((DOWN,))) == [], "it leads from now on, and that was sent"
    assert await other.see(UP) == ["channel_recovered"]
