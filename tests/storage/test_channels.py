"""What every driver promises of channels, and what the database adds: nobody reads a secret in its files."""

import asyncio
from pathlib import Path

import attrs
import pytest
from sqlalchemy import text

from gateway.domain.channel import Channel, Origin, QueueSettings, Timeouts
from gateway.errors import Conflict, NotFound
from gateway.storage.channels import ChannelRepository
from gateway.storage.database import Database
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.open import open_database
from tests.support.database_kinds import SQLITE_ONLY

SEAL = SecretBox(bytes(range(32)))
FULL = Channel(
    name="up",
    provider="custom",
    base_url="https://api.example.com/v1",
    api_keys=("sk-canary-one", 'sk-canary-\u65e5\u672c-"two"'),
    models=("gpt-*", "\u00e9"),
    sync=True,
    model_map=(("ours", "theirs"), ("ours", "late"), ("a", "b")),
    groups=("vip", "\u65e5\u672c"),
    priority=-(2**40),
    weight=7,
    max_concurrency=2**31,
    queue=QueueSettings(7, 1.5, True, 0.25),
    rpm=60,
    timeouts=Timeouts(0.25, 1.5, 2.0, 3600.125),
    proxy="http://user:canary-proxy@proxy.example.com:3128",
    headers=(("X-Title", "canary-header"), ("X-Title", "canary-again"), ("X-Empty", "")),
    multiplier_ppm=1_200_001,
    origin="stored",
    id=1,
    status="disabled",
    created_ms=1_750_000_000_123,
    fan_out=True,
    pass_urls=True,
    owned_by="\u65e5\u672c",
    allow_fields=("service_tier", "tools.*"),
    held=True,
    held_reason="It did not answer",
    key_names=(("sk-canary-one", "the shop"),),
    disabled_keys=("sk-canary-one",),
)
BARE = Channel("bare", "openai", "https://api.openai.com/v1")


@pytest.fixture
def channels(database: Database) -> ChannelRepository:
    return ChannelRepository(database, SEAL)


async def add(channels: ChannelRepository, *names: str) -> list[Channel]:
    return [await channels.add_channel(attrs.evolve(BARE, name=name)) for name in names]


def test_the_example_has_a_value_of_its_own_in_every_field() -> None:
    """So that a field which is added to channels is one that these tests look at."""
    usual = {field.name: field.default for field in attrs.fields(Channel) if field.init}
    assert [name for name, value in usual.items() if getattr(FULL, name) == value] == []


async def test_a_new_store_has_no_channels(channels: ChannelRepository) -> None:
    assert list(await channels.list_channels()) == []


async def test_a_channel_is_read_back_as_it_was_written(channels: ChannelRepository) -> None:
    added = await channels.add_channel(FULL)
    bare = await channels.add_channel(BARE)
    assert added == attrs.evolve(FULL, id=added.id)
    assert bare == attrs.evolve(BARE, id=bare.id, origin="stored")
    listed = await channels.list_channels()
    assert list(listed) == [added, bare]
    assert all(hash(channel) for channel in listed), "tuples all the way down"


@pytest.mark.parametrize("origin", ["file", "environment", "local", "demo"])
async def test_what_is_stored_says_so(channels: ChannelRepository, origin: Origin) -> None:
    added = await channels.add_channel(attrs.evolve(BARE, origin=origin))
    await channels.put_channel(attrs.evolve(added, origin=origin))
    assert [channel.origin for channel in await channels.list_channels()] == [added.origin] == ["stored"]


async def test_ids_grow_and_are_never_used_again(channels: ChannelRepository) -> None:
    first = await channels.add_channel(attrs.evolve(BARE, id=77))
    (second,) = await add(channels, "second")
    assert 0 < first.id < second.id < 77
    await channels.delete_channel(second.id)
    assert (await add(channels, "third"))[0].id > second.id


async def test_a_channels_name_is_its_own(channels: ChannelRepository) -> None:
    added = await add(channels, "a", "b")
    with pytest.raises(Conflict, match="'a'") as caught:
        await add(channels, "a")
    assert caught.value.param == "name"
    with pytest.raises(Conflict) as caught:
        await channels.put_channel(attrs.evolve(added[1], name="a"))
    assert caught.value.param == "name"
    assert list(await channels.list_channels()) == added
    assert [channel.name for channel in await add(channels, "A")] == ["A"]


async def test_putting_replaces_everything_but_the_id(channels: ChannelRepository) -> None:
    one, two = await add(channels, "one", "two")
    changed = attrs.evolve(FULL, id=one.id)
    await channels.put_channel(changed)
    assert list(await channels.list_channels()) == [changed, two]
    await channels.put_channel(changed)
    await channels.put_channel(attrs.evolve(two, name="one"))
    back = attrs.evolve(BARE, name="two", id=one.id, origin="stored")
    await channels.put_channel(back)
    assert list(await channels.list_channels()) == [back, attrs.evolve(two, name="one")]


async def test_changes_since_the_same_look_are_both_kept_unless_they_are_of_one_field(
    channels: ChannelRepository,
) -> None:
    one, two = await add(channels, "one", "two")
    await channels.put_channel(attrs.evolve(one, api_keys=("sk-new",)), original=one)
    await channels.put_channels([attrs.evolve(one, priority=3), attrs.evolve(two, priority=4)], originals=[one, two])
    kept = [attrs.evolve(one, api_keys=("sk-new",), priority=3), attrs.evolve(two, priority=4)]
    assert list(await channels.list_channels()) == kept
    with pytest.raises(Conflict, match="reload"):
        await channels.put_channels(
            [attrs.evolve(two, weight=9), attrs.evolve(one, api_keys=("sk-other",))], originals=[one, two]
        )
    assert list(await channels.list_channels()) == kept


async def test_two_changes_do_not_leave_a_channel_without_a_key_that_it_may_use(channels: ChannelRepository) -> None:
    original = await channels.add_channel(attrs.evolve(BARE, name="one", api_keys=("sk-one", "sk-two")))
    disabled = attrs.evolve(original, disabled_keys=("sk-one",))
    await channels.put_channel(attrs.evolve(original, api_keys=("sk-one",)), original=original)
    with pytest.raises(Conflict, match="reload"):
        await channels.put_channel(disabled, original=original)
    (stored,) = await channels.list_channels()
    assert stored.usable_keys == ("sk-one",)
    await channels.put_channel(attrs.evolve(stored, api_keys=()), original=stored)
    await channels.put_channel(attrs.evolve(stored, priority=3), original=stored)


async def test_what_is_not_there_is_not_found(channels: ChannelRepository) -> None:
    (added,) = await add(channels, "a")
    for name in ("other", "a"):
        with pytest.raises(NotFound):
            await channels.put_channel(attrs.evolve(added, id=added.id + 50, name=name))
    with pytest.raises(NotFound):
        await channels.delete_channel(added.id + 50)
    await channels.delete_channel(added.id)
    for again in (channels.delete_channel(added.id), channels.put_channel(added)):
        with pytest.raises(NotFound):
            await again
    assert list(await channels.list_channels()) == []


async def test_a_name_is_free_again_after_its_channel(channels: ChannelRepository) -> None:
    (added,) = await add(channels, "a")
    await channels.delete_channel(added.id)
    assert [channel.name for channel in await add(channels, "a")] == ["a"]


async def test_of_many_that_want_one_name_one_has_it(channels: ChannelRepository) -> None:
    ended = await asyncio.gather(*(add(channels, "same") for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(end, Conflict) for end in ended) == 9
    assert len(await channels.list_channels()) == 1


# The database


def read_files(path: Path) -> bytes:
    """Everything in the folder of the database: its pages, its write-ahead log, whatever else lies there."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()) if file.is_file())


@SQLITE_ONLY
async def test_no_secret_is_in_any_file_of_the_database(database: Database, database_path: Path) -> None:
    store = ChannelRepository(database, SEAL)
    added = await store.add_channel(FULL)
    await store.put_channel(attrs.evolve(added, api_keys=("sk-canary-new",), priority=3))
    doomed = await store.add_channel(attrs.evolve(FULL, name="doomed"))
    await store.delete_channel(doomed.id)
    with pytest.raises(Conflict):
        await store.add_channel(FULL)
    assert database_path.with_name("gateway.db-wal").exists()
    for _ in ("while it is open", "and after"):
        content = read_files(database_path)
        assert b"https://api.example.com/v1" in content, "these are the files"
        assert b"canary" not in content
        assert b"api_keys" not in content
        assert b":3128" not in content
        await database.close()
    assert not database_path.with_name("gateway.db-wal").exists()


@SQLITE_ONLY
async def test_another_process_reads_what_was_stored(database: Database, database_path: Path) -> None:
    added = await ChannelRepository(database, SEAL).add_channel(FULL)
    other = await open_database(f"sqlite:///{database_path}")
    assert list(await ChannelRepository(other, SecretBox(bytes(range(32)))).list_channels()) == [added]
    await other.close()


@pytest.fixture
async def two(database: Database) -> list[Channel]:
    """Two channels that are stored."""
    store = ChannelRepository(database, SEAL)
    return [await store.add_channel(FULL), await store.add_channel(BARE)]


async def test_without_its_master_key_the_database_keeps_its_secrets(database: Database, two: list[Channel]) -> None:
    store = ChannelRepository(database, SecretBox(bytes(32)))
    with pytest.raises(DecryptionFailed, match=f"'channel:{two[0].id}'"):
        await store.list_channels()
    for channel in two:  # told anew, they are sealed anew
        await store.put_channel(channel)
    assert list(await store.list_channels()) == two


async def test_what_is_sealed_cannot_be_moved_to_another_channel(database: Database, two: list[Channel]) -> None:
    """Else a writer of the database could have a key sent to a server of their choice."""
    moved = "UPDATE channels SET sealed = (SELECT sealed FROM channels WHERE id = :id)"
    await database.change(text(moved).bindparams(id=two[0].id))
    with pytest.raises(DecryptionFailed, match=f"'channel:{two[1].id}'"):
        await ChannelRepository(database, SEAL).list_channels()


@SQLITE_ONLY
@pytest.mark.parametrize(
    "change", ["json_set(settings, '$.invented', 5, '$.timeouts.invented', 5)", "json_remove(settings, '$.rpm')"]
)
async def test_what_another_version_knew_more_or_less_of_is_read(
    database: Database, two: list[Channel], change: str
) -> None:
    await database.change(text(f"UPDATE channels SET settings = {change}"))  # noqa: S608 - from above
    rpm = None if "remove" in change else FULL.rpm
    assert list(await ChannelRepository(database, SEAL).list_channels()) == [attrs.evolve(two[0], rpm=rpm), two[1]]


async def test_a_channel_that_is_not_added_leaves_no_row(database: Database) -> None:
    store = ChannelRepository(database, SEAL)
    with pytest.raises(TypeError):
        await store.add_channel(attrs.evolve(FULL, api_keys=(object(),)))  # type: ignore[arg-type]
    assert await database.read(text("SELECT * FROM channels")) == []
