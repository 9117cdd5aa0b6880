"""JSON lines in a bucket, by hour; a batch that comes again replaces its object."""

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from gateway.domain.request_log import RequestRecord
from gateway.sinks.bucket_sender import BucketSender
from gateway.storage.bucket.client import Bucket
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.media_location import parse_bucket
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.s3_server import S3Server, start_s3_server
from tests.support.sink_receivers import SinkReceiver
from tests.support.sink_workers import make_named_rows, open_scene

HOUR_MS = 3_600_000
pytestmark = SQLITE_ONLY


def open_sender(server: S3Server, name: str = "one") -> BucketSender:
    return BucketSender(name, parse_bucket(server.media_url), lambda address: Bucket(address, retry_for_s=0.1))


def read_lines(server: S3Server) -> Mapping[str, list[Any]]:
    """The ids in each object, by its folder."""
    found: dict[str, list[Any]] = {}
    for key, stored in sorted(server.objects.items()):
        folder, _, name = key.removeprefix("gw/one/").rpartition("/")
        assert name.endswith(".jsonl")
        found.setdefault(folder, []).append([orjson.loads(line)["id"] for line in stored.body.splitlines()])
    return found


def shift(rows: list[RequestRecord], hours: int) -> list[RequestRecord]:
    return [attrs.evolve(row, settled_ms=row.settled_ms + hours * HOUR_MS) for row in rows]


async def test_each_hour_has_a_folder_and_a_repeated_batch_replaces_its_object(database: Database) -> None:
    ledger = LedgerRepository(database)
    async with start_s3_server() as server:
        spec = SinkReceiver("http://unused.example").spec()
        async with open_scene(database, spec, send=open_sender(server)) as scene:
            await scene.step()
            await ledger.post([*make_named_rows("ab"), *shift(make_named_rows("c"), 1)])
            await scene.step()
            first_hour, second_hour = "2027/01/15/07", "2027/01/15/08"
            assert read_lines(server) == {first_hour: [["req_a", "req_b"]], second_hour: [["req_c"]]}
            begun = await scene.find_state()
            await ledger.post(make_named_rows("d"))
            await scene.step()
            assert sorted(read_lines(server)[first_hour]) == [["req_a", "req_b"], ["req_d"]]
        # As after a crash before the cursor was stored: the batch is written again, with what has come meanwhile.
        await scene.states.restart(spec.name, begun.cursor)
        await ledger.post(make_named_rows("e"))
        async with open_scene(database, spec, send=open_sender(server)) as scene:
            await scene.step()
        assert sorted(read_lines(server)[first_hour]) == [["req_a", "req_b"], ["req_d", "req_e"]]


async def test_a_bucket_that_fails_is_tried_again(database: Database) -> None:
    async with start_s3_server() as server:
        spec = SinkReceiver("http://unused.example").spec()
        async with open_scene(database, spec, send=open_sender(server)) as scene:
            await scene.step()
            await LedgerRepository(database).post(make_named_rows("ab"))
            server.fails = 503
            await scene.step()
            state = await scene.find_state()
            assert state.error.startswith("s3://gateway-media/gw/one at http://127.0.0.1")
            assert "made/up" not in state.error
            assert server.objects == {}
            server.fails = 0
            await scene.drain()
            assert list(read_lines(server).values()) == [[["req_a", "req_b"]]]


async def test_two_sinks_in_one_folder_do_not_replace_each_others_objects(database: Database) -> None:
    async with start_s3_server() as server:
        receiver = SinkReceiver("http://unused.example")
        specs = [receiver.spec(name=name, filter={"accounts": [name]}) for name in ("a", "b")]
        async with (
            open_scene(database, specs[0], send=open_sender(server, "a")) as first,
            open_scene(database, specs[1], send=open_sender(server, "b")) as second,
        ):
            await first.step()
            await second.step()
            rows = [*make_named_rows("a", account="a"), *make_named_rows("b", account="b")]
            await LedgerRepository(database).post(rows)
            await first.drain()
            await second.drain()
        (found,) = read_lines(server).values()
        assert sorted(found) == [["req_a"], ["req_b"]]
