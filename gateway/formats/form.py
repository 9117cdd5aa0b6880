"""A form as it came: its fields and files in their order, and how they become a body like any other."""

import re
from collections.abc import Collection
from typing import Any

import attrs

from gateway.domain.upload import Upload
from gateway.errors import InvalidRequest
from gateway.formats.request_body import Body

_SHOWN_NAME = 64
_CHARSET = "_charset_"
_INTEGER = re.compile(r"-?[0-9]{1,15}\Z", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?\Z", re.ASCII)
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "True": True, "False": False}


@attrs.frozen(eq=False)
class ReceivedForm:
    """A ``multipart/form-data`` body. Names are as they came, but for a trailing ``[]`` of files."""

    fields: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    files: tuple[Upload, ...] = ()


@attrs.frozen
class Kinds:
    """Fields of a form that are not texts, by what they are. ``lists`` may be repeated, with ``[]`` or without."""

    integers: Collection[str] = ()
    numbers: Collection[str] = ()
    flags: Collection[str] = ()
    lists: Collection[str] = ()


def parse_fields(form: ReceivedForm, kinds: Kinds) -> Body:
    """The fields as a JSON body would have them. An empty number or flag says nothing, nor does ``_charset_``.

    That one is a browser's word on how the form is written (RFC 7578, 4.6): in UTF-8, or it would not be here.

    Raises ``InvalidRequest`` naming the field that is not of its kind, that is said twice, or whose name is none.
    """
    body: Body = {}
    for told, text in form.fields:
        _check_name(told)
        if told == _CHARSET:
            continue
        name = told.removesuffix("[]")
        if name in kinds.lists:
            body.setdefault(name, []).append(text)
            continue
        if name in body:
            shown = name[:_SHOWN_NAME]
            raise InvalidRequest(f"'{shown}' is there more than once", param=shown)
        value = _parse_value(name, text, kinds)
        if value is not None:
            body[name] = value
    return body


def _check_name(name: str) -> None:
    """Names pass to providers, whose parsers do not agree on what these are."""
    if not name.isprintable() or "\\" in name or name != name.strip():
        shown = name[:_SHOWN_NAME]
        raise InvalidRequest(
            f"The field name {shown!r} has control characters, a backslash or outer spaces in it", param=shown
        )


def _parse_value(name: str, text: str, kinds: Kinds) -> Any:
    if name in kinds.integers:
        return _read(name, text, _INTEGER, int, "an integer")
    if name in kinds.numbers:
        return _read(name, text, _NUMBER, float, "a number")
    if name in kinds.flags:
        if text and text not in _FLAGS:
            raise InvalidRequest(f"'{name}' must be true or false", param=name)
        return _FLAGS.get(text)
    return text


def _read(name: str, text: str, shape: "re.Pattern[str]", kind: type, title: str) -> Any:
    if not text:
        return None
    if not shape.match(text):
        raise InvalidRequest(f"'{name}' must be {title}", param=name)
    return kind(text)


def parse_files(form: ReceivedForm, field: str, most: int) -> tuple[Upload, ...]:
    """The files of ``field``, in their order. Raises ``InvalidRequest``: more than ``most``, or an empty one."""
    found = tuple(file for file in form.files if file.field == field)
    if len(found) > most:
        raise InvalidRequest(f"'{field}' takes at most {most} file{'s' if most > 1 else ''}", param=field)
    empty = next((file for file in found if not file.size), None)
    if empty is not None:
        raise InvalidRequest(f"'{field}' is an empty file", param=field)
    return found


def check_files(form: ReceivedForm, fields: Collection[str]) -> None:
    """Raise ``InvalidRequest`` for a file in a field that takes none."""
    stray = next((file.field for file in form.files if file.field not in fields), None)
    if stray is not None:
        raise InvalidRequest(f"'{stray[:_SHOWN_NAME]}' takes no file", param=stray[:_SHOWN_NAME])
