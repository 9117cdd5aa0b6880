"""A received form: its fields and files in order, and their conversion into a JSON-like body."""

import re
from collections.abc import Collection
from typing import Any

import attrs

from gateway.domain.upload import Upload
from gateway.errors import InvalidRequest
from gateway.formats.wire.request_body import Body
from gateway.frozen import frozen

_MAX_EXCERPT_CHARS = 64
_CHARSET_FIELD = "_charset_"
_INTEGER_PATTERN = re.compile(r"-?[0-9]{1,15}\Z", re.ASCII)
_NUMBER_PATTERN = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?\Z", re.ASCII)
_FLAG_VALUES = {"true": True, "false": False, "1": True, "0": False, "True": True, "False": False}


@frozen(eq=False)
class ReceivedForm:
    """A ``multipart/form-data`` body. Field names are kept as received, except that files lose a trailing ``[]``."""

    fields: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    files: tuple[Upload, ...] = ()


@frozen
class FieldTypes:
    """Names of the form fields that are not plain text, by type. Fields in ``lists`` may occur several times."""

    integers: Collection[str] = ()
    numbers: Collection[str] = ()
    flags: Collection[str] = ()
    lists: Collection[str] = ()


def parse_fields(form: ReceivedForm, types: FieldTypes) -> Body:
    """Convert the fields into the equivalent JSON body, without empty numbers and flags. Raises ``InvalidRequest``.

    ``_charset_``, the form's encoding (RFC 7578, 4.6), is ignored: other encodings than UTF-8 are rejected earlier.
    """
    body: Body = {}
    for raw_name, text in form.fields:
        _check_name(raw_name)
        if raw_name == _CHARSET_FIELD:
            continue
        name = raw_name.removesuffix("[]")
        if name in types.lists:
            body.setdefault(name, []).append(text)
            continue
        if name in body:
            excerpt = name[:_MAX_EXCERPT_CHARS]
            raise InvalidRequest(f"'{excerpt}' is there more than once", param=excerpt)
        value = _parse_value(name, text, types)
        if value is not None:
            body[name] = value
    return body


def _check_name(name: str) -> None:
    """Raise ``InvalidRequest`` for field names that parsers interpret differently."""
    if not name.isprintable() or "\\" in name or name != name.strip():
        excerpt = name[:_MAX_EXCERPT_CHARS]
        raise InvalidRequest(
            f"The field name {excerpt!r} has control characters, a backslash or outer spaces in it", param=excerpt
        )


def _parse_value(name: str, text: str, types: FieldTypes) -> Any:
    if name in types.integers:
        return _convert_text(name, text, _INTEGER_PATTERN, int, "an integer")
    if name in types.numbers:
        return _convert_text(name, text, _NUMBER_PATTERN, float, "a number")
    if name in types.flags:
        if text and text not in _FLAG_VALUES:
            raise InvalidRequest(f"'{name}' must be true or false", param=name)
        return _FLAG_VALUES.get(text)
    return text


def _convert_text(name: str, text: str, pattern: "re.Pattern[str]", type_: type, type_name: str) -> Any:
    if not text:
        return None
    if not pattern.match(text):
        raise InvalidRequest(f"'{name}' must be {type_name}", param=name)
    return type_(text)


def parse_files(form: ReceivedForm, field: str, max_files: int) -> tuple[Upload, ...]:
    """Return the files of ``field``. Raises ``InvalidRequest`` for more than ``max_files`` or for an empty file."""
    files = tuple(file for file in form.files if file.field == field)
    if len(files) > max_files:
        raise InvalidRequest(f"'{field}' takes at most {max_files} file{'s' if max_files > 1 else ''}", param=field)
    empty_file = next((file for file in files if not file.size), None)
    if empty_file is not None:
        raise InvalidRequest(f"'{field}' is an empty file", param=field)
    return files


def check_files(form: ReceivedForm, fields: Collection[str]) -> None:
    """Raise ``InvalidRequest`` for a file in a field that takes none."""
    unknown_field = next((file.field for file in form.files if file.field not in fields), None)
    if unknown_field is not None:
        raise InvalidRequest(
            f"'{unknown_field[:_MAX_EXCERPT_CHARS]}' takes no file", param=unknown_field[:_MAX_EXCERPT_CHARS]
        )
