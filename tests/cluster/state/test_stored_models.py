"""The model lists that nodes share: of some channels, of all, and of none."""

from gateway.cluster.state.stored_models import ModelListRepository
from gateway.domain.model_description import ModelDescription
from gateway.domain.model_info import ModelInfo, ModelList
from gateway.storage.database import Database


async def test_lists_are_read_by_their_channels(database: Database) -> None:
    store = ModelListRepository(database)
    described = ModelDescription("chat", 4_096, features=(), deprecated_at="2027-01-31T00:00:00Z")
    models = (ModelInfo("m", 1, "them", description=described), ModelInfo("n", 1, "them"))
    lists = [ModelList(name, "custom", "http://up/v1", models, 1, None) for name in ("a", "b")]
    for listed in lists:
        await store.put_list(listed)
    assert sorted((await store.list_models()), key=lambda listed: listed.channel) == lists
    assert await store.list_models({"b", "c"}) == lists[1:]
    assert await store.list_models(set()) == [], "as after a change of a channel's weight"


async def test_a_list_without_descriptions_replaces_those_of_the_list_before(database: Database) -> None:
    store = ModelListRepository(database)
    first = ModelInfo("m", 1, "them", description=ModelDescription(context_window=5))
    await store.put_list(ModelList("a", "custom", "http://up/v1", (first,), 1, None))
    await store.put_list(ModelList("a", "custom", "http://up/v1", None, 2, "not now"))
    (failed,) = await store.list_models()
    assert (failed.models, failed.error) == ((first,), "not now")
    await store.put_list(ModelList("a", "custom", "http://up/v1", (ModelInfo("m", 1, "them"),), 3, None))
    (listed,) = await store.list_models({"a:descriptions"})
    assert listed.models == (ModelInfo("m", 1, "them"),)
