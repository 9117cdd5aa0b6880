"""The model lists that nodes share: of some channels, of all, and of none."""

from gateway.cluster.state.stored_models import ModelListRepository
from gateway.domain.model_info import ModelInfo, ModelList
from gateway.storage.database import Database


async def test_lists_are_read_by_their_channels(database: Database) -> None:
    store = ModelListRepository(database)
    lists = [ModelList(name, "custom", "http://up/v1", (ModelInfo("m", 1, "them"),), 1, None) for name in ("a", "b")]
    for listed in lists:
        await store.put_list(listed)
    assert sorted((await store.list_models()), key=lambda listed: listed.channel) == lists
    assert await store.list_models({"b", "c"}) == lists[1:]
    assert await store.list_models(set()) == [], "as after a change of a channel's weight"
