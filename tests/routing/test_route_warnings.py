"""A channel that maps a model to another model is reported; one that only changes the spelling is not."""

from gateway.config.loader import read_shipped_prices
from gateway.config.schema import Config
from gateway.doctor.route_checks import check_maps
from gateway.parsing import parse_table
from gateway.routing.route_warnings import list_map_warnings
from tests.support.table_rows import table_rows


@table_rows(
    ("ours", "theirs", "warned"),
    [
        ("gpt-4o", "gpt-4o-mini", True),
        ("claude-3-5-haiku-20241022", "gpt-4o-mini", True),
        ("gpt-4o", "gpt-4o-2024-08-06", False),
        ("gpt-4o", "openai/gpt-4o", False),
        ("fast", "gpt-4o-mini", False),
        ("gpt-4o", "my-own-deployment", False),
    ],
)
def test_a_map_to_another_known_model_is_told(ours: str, theirs: str, warned: bool) -> None:
    found = [*list_map_warnings([("up", {ours: theirs})], lambda model: read_shipped_prices().find(model) is not None)]
    assert len(found) == warned
    assert all(repr(ours) in text and repr(theirs) in text for text in found)


def test_doctor_tells_of_it_in_the_file() -> None:
    channel = {"name": "up", "provider": "openai", "api_key": "k", "sync": True, "model_map": {"gpt-4o": "gpt-4o-mini"}}
    (finding,) = check_maps(parse_table({"channel": [channel]}, Config))
    assert (finding.check, finding.state) == ("routes", "warning")
