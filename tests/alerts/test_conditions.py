"""The conditions that no whole gateway can show in a test."""

from gateway.alerts.conditions import find_store_replacement
from gateway.domain.audit_log import OPERATOR
from gateway.domain.lost_change import LostChange, ReplacedStore
from tests.support.table_rows import table_rows

NOW_S = 1_800_000_000
ROW = OPERATOR.build_audit_row("key.deleted", "acme/k", 1)


def make_change(applied: str, age_s: int) -> LostChange:
    return LostChange(ROW, applied, "", (NOW_S - age_s) * 1000)


@table_rows(
    "age_s, message",
    [(60, "it lacked 2 of the last changes. What took rights away was applied again, in 1 of them"), (90_000, "")],
)
def test_a_replaced_store_is_reported_for_a_day_with_what_it_lacked(age_s: int, message: str) -> None:
    changes = (make_change("{}", age_s + 500), make_change("{}", age_s), make_change('{"deleted":[false,true]}', age_s))
    found = list(find_store_replacement(ReplacedStore("g", (NOW_S - age_s) * 1000, changes), NOW_S))
    assert [each.kind for each in found] == ["store_replaced"] * bool(message)
    assert all(message in each.message for each in found)
    assert list(find_store_replacement(ReplacedStore(), NOW_S)) == []
