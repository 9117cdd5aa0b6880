"""The model list, both ways."""

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.model_description import UNDESCRIBED, ModelDescription
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderBadResponse
from gateway.formats.model_lists.openai import build_described_model, build_models, parse_models
from tests.support.table_rows import table_rows

NOW = 1_750_000_000
LISTED = st.builds(
    ModelInfo,
    id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    created_s=st.integers(1, 4_000_000_000),
    owned_by=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text("ab", max_size=3) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "id", "created", "owned_by"]), inner, max_size=4)
    ),
    max_leaves=15,
)


def write(models: list[ModelInfo]) -> bytes:
    return build_models(build_described_model(model, UNDESCRIBED, None) for model in models)


def read(raw: bytes) -> list[ModelInfo]:
    return parse_models(raw, owned_by="vendor", now_s=NOW)


@given(st.lists(LISTED, max_size=5))
def test_what_we_write_a_gateway_in_front_of_us_reads_back(models: list[ModelInfo]) -> None:
    assert read(write(models)) == [attrs.evolve(model, owned_by="vendor") for model in models]


def test_a_model_is_written_in_the_shape_of_the_convention() -> None:
    model = ModelInfo("m", 5, "vendor", absences=1)
    written = {"id": "m", "object": "model", "created": 5, "owned_by": "vendor"}
    assert orjson.loads(build_described_model(model, UNDESCRIBED, None)) == written
    assert orjson.loads(write([model, model])) == {"object": "list", "data": [written, written]}
    assert orjson.loads(write([])) == {"object": "list", "data": []}


def test_what_is_known_of_a_model_stands_beside_the_fields_of_the_convention() -> None:
    described = build_described_model(
        ModelInfo("m", 5, "vendor"), ModelDescription("chat", 9, features=("tools",)), {"prompt": "0"}
    )
    assert orjson.loads(described) == {
        "id": "m", "object": "model", "created": 5, "owned_by": "vendor", "kind": "chat", "context_window": 9,
        "features": ["tools"], "pricing": {"prompt": "0"},
    }  # fmt: skip


@table_rows("created", [None, 0, 0.5, -1, True, "1700000000", 1_700_000_000_000, 5e12, [], {}])
def test_a_creation_time_that_cannot_be_believed_is_filled(created: object) -> None:
    (model,) = read(orjson.dumps({"data": [{"id": "m", "created": created, "owned_by": ""}]}))
    assert model == ModelInfo("m", NOW, "vendor")


def test_a_creation_time_in_fractions_of_seconds_is_cut() -> None:
    assert read(b'{"data":[{"id":"m","created":1700000000.7}]}') == [ModelInfo("m", 1_700_000_000, "vendor")]


@table_rows("owner", ["user-8hd3jdk", "org-Q2x", "openai", "", None, 5])
def test_whom_a_provider_calls_the_owner_is_not_passed_on(owner: object) -> None:
    """It may be the account that the gateway's own key belongs to."""
    assert read(orjson.dumps({"data": [{"id": "m", "created": 5, "owned_by": owner}]})) == [ModelInfo("m", 5, "vendor")]


def test_a_bare_array_is_a_list_too() -> None:
    assert read(b'[{"id":"m"}]') == [ModelInfo("m", NOW, "vendor")]


def test_entries_without_an_id_are_skipped() -> None:
    assert [model.id for model in read(b'{"data":[{"id":"a"},{"id":""},{"id":7},{},null,"b",{"id":"c"}]}')] == [
        "a",
        "c",
    ]


@table_rows("raw", [b"", b"<html>", b"{}", b"null", b'{"data":null}', b'{"data":{}}', b'{"error":{}}', b'"x"'])
def test_an_answer_without_a_list_is_a_failed_listing_and_not_an_empty_one(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse):
        read(raw)


@given(JSON)
def test_any_json_is_a_list_of_models_or_a_fault(value: Any) -> None:
    try:
        models = read(orjson.dumps(value))
    except ProviderBadResponse:
        return
    assert all(model.id and model.owned_by and model.created_s > 0 for model in models)
