"""The page of the nodes in the console."""

import pytest

from gateway.domain.audit_log import AuditRow
from gateway.domain.lost_change import LostChange, ReplacedStore
from gateway.storage.lost_changes import LostChangeRepository
from tests.support.console_people import make_administrator
from tests.support.started_gateways import StartGateway


def make_row(subject: str, detail: str) -> AuditRow:
    return AuditRow(1, 1, "token", "", None, "", "key.edited", None, subject, detail)


async def test_changes_that_the_database_lost_are_listed(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(_: LostChangeRepository) -> ReplacedStore:
        rows = [
            make_row(f"acme/{name}", detail)
            for name, detail in (("laptop", '{"status": ["active", "disabled"]}'), ("<b>", '{"rpm": [1, 60]}'))
        ]
        applied = LostChange(rows[0], applied=rows[0].detail)
        return ReplacedStore(changes=(applied, LostChange(rows[1], reason="gives rights")))

    gateway = await gateway_with({})
    ada = await make_administrator(gateway)
    _, page = await ada.open("/nodes")
    assert "Lost changes" not in page
    monkeypatch.setattr(LostChangeRepository, "read", read)
    _, page = await ada.open("/nodes")
    for text in ("Lost changes", "acme/laptop", "acme/&lt;b&gt;", "1 → 60", "gives rights", "the command line"):
        assert text in page, text
    assert page.count("active → disabled") == 2, "once as the change, once as what was applied again"
    await ada.session.close()
