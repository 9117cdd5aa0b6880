"""What every driver promises of settings."""

import attrs
import orjson
import pytest

from gateway.domain.audit_log import OPERATOR, AuditFilter, AuditRow
from gateway.domain.setting import Setting
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.database import Database
from gateway.storage.settings import SettingRepository

VALUES = [
    0,
    False,
    "",
    [],
    0.2,
    2**53,
    "\u65e5\u672c",
    ["10.0.0.0/8"],
    {"price_multiplier": 0.8},
    {"tiers": [{"a": None}]},
]


@attrs.frozen
class Bench:
    """A store and the trail of what is changed in it."""

    settings: SettingRepository
    audit_log: AuditLogRepository

    async def list_subjects(self) -> list[str]:
        return [row.subject for row in await self.audit_log.list_audit(AuditFilter(), 100)]


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(SettingRepository(database), AuditLogRepository(database))


async def test_a_new_store_has_no_settings(bench: Bench) -> None:
    assert list(await bench.settings.list_settings()) == []


async def test_values_are_read_back_as_they_were_written_by_path(bench: Bench) -> None:
    put = [Setting(f"videos.{chr(ord('z') - number)}", value, number) for number, value in enumerate(VALUES)]
    for setting in put:
        await bench.settings.change_settings({setting.path: setting.value}, setting.changed_ms)
    read = list(await bench.settings.list_settings())
    assert read == put[::-1]
    assert orjson.dumps([setting.value for setting in read]) == orjson.dumps(VALUES[::-1]), "false is not 0"


async def test_putting_again_replaces_and_leaves_others_alone(bench: Bench) -> None:
    other = Setting("price/gpt-*", {"model": "gpt-*"}, 1)
    await bench.settings.change_settings({"group/vip": 1, other.path: other.value}, 1)
    await bench.settings.change_settings({"group/vip": 2}, 2)
    assert list(await bench.settings.list_settings()) == [Setting("group/vip", 2, 2), other]


async def test_what_is_removed_is_gone(bench: Bench) -> None:
    await bench.settings.change_settings({"group/vip": 1, "group/lab": 2}, 1)
    await bench.settings.change_settings({"group/vip": None, "group/vi": None, "group/new": 3}, 2)
    assert list(await bench.settings.list_settings()) == [Setting("group/lab", 2, 1), Setting("group/new", 3, 2)]


async def test_every_change_is_on_record_and_what_was_none_is_not(bench: Bench) -> None:
    def audit(path: str, subject: str) -> dict[str, AuditRow]:
        return {path: OPERATOR.build_audit_row("setting.changed", subject, 1)}

    await bench.settings.change_settings({"a.b": 1}, 1, audit("a.b", "put"))
    await bench.settings.change_settings({"a.c": None}, 2, audit("a.c", "nothing"))
    await bench.settings.change_settings({"a.c": 1}, 3)
    rows = audit("a.b", "deleted") | audit("a.d", "put beside") | audit("a.e", "nothing")
    await bench.settings.change_settings({"a.b": None, "a.d": 1, "a.e": None}, 4, rows)
    assert sorted(await bench.list_subjects()) == ["deleted", "put", "put beside"]
