"""``kill -9`` while a realtime session is open: the response that ran is on record, and nothing stays reserved."""

from pathlib import Path

import orjson
import pytest

from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess, open_caller
from tests.support.realtime_provider import RealtimeProvider


@pytest.mark.timeout(120)
async def test_a_response_that_was_cut_off_by_a_crash_is_on_record(tmp_path: Path) -> None:
    async with RealtimeProvider() as provider:
        site = {
            "channel": [provider.channel()],
            "price": [PRICE],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 1}],
        }
        async with GatewayProcess(tmp_path / "data", site) as gateway:
            async with open_caller() as caller, caller.ws_connect(f"{gateway.url}/v1/realtime?model=m") as client:
                session = await provider.accept()
                await client.send_str(orjson.dumps({"type": "response.create"}).decode())
                await session.expect("response.create")
                await session.create()
                assert (await client.receive_json())["type"] == "response.created"
                await gateway.kill()
            await gateway.start()
            rows, _ = await gateway.read_rows()
            (row,) = [row for row in rows if row.client_request_id is not None]
            assert (row.outcome, row.operation, row.reserved_nanos > 0) == ("interrupted", "realtime", True)
            assert (await gateway.check_books())["held_usd"] == 0
