"""The context of a request stays one object with few fields, each with one writer."""

import os

import attrs

from gateway.request_context import RequestContext, RequestIds


def test_the_context_of_a_request_stays_small_and_names_the_writer_of_each_field() -> None:
    """One object that everything can be put into soon holds everything."""
    names = [field.name for field in attrs.fields(RequestContext)]
    assert len(names) <= 25
    table = (RequestContext.__doc__ or "").split("=\n")[1]
    assert [line.split("``")[1] for line in table.splitlines() if line.startswith("    ``")] == names


def test_an_id_is_never_made_twice_not_even_by_a_forked_process() -> None:
    ids = RequestIds()
    made = [ids.make() for _ in range(2_000)]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, "\n".join(ids.make() for _ in range(10)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        made += answer.read().split()
    made += [ids.make() for _ in range(10)]
    assert len({name[14:] for name in made}) == 2_020
    assert all(len(name) == 28 and name.startswith("req_") and int(name[4:], 16) for name in made)
