"""The context of a request stays one object with few fields, each with one writer."""

import attrs

from gateway.request_context import RequestContext


def test_the_context_of_a_request_stays_small_and_names_the_writer_of_each_field() -> None:
    """One object that everything can be put into soon holds everything."""
    names = [field.name for field in attrs.fields(RequestContext)]
    assert len(names) <= 20
    table = (RequestContext.__doc__ or "").split("=\n")[1]
    assert [line.split("``")[1] for line in table.splitlines() if line.startswith("    ``")] == names
