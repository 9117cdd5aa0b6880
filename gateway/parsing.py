"""Strict parsing of tables (TOML, JSON) into attrs classes. Reports all keys' problems together, each with its path.

A field's type and its ``Constraint`` define the rules for one key. ``find_problems`` and ``find_table_problems`` of a
class define rules across keys; the former is asked only if every key is valid. Conversions: integers and floats to
amounts, integers to floats, text to dates and times (UTC if they name no zone), and text from the environment.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
import cattrs

from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.wording import did_you_mean, write_value

T = TypeVar("T")

_CHECK, _DESCRIPTION, _KEY = "check", "about", "key"
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_MAX_COUNT = 2**31 - 1
_USERINFO = re.compile(r"(?<=//).*(?=@)", re.DOTALL)
_QUERY = re.compile(r"(://[^?#]*[?#]).+", re.DOTALL)

Problem = tuple[str, str]
"""The path of a key, and a description of the error there."""


class ValidationErrors(Exception):
    """A table is invalid: all of its problems together."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


class EnvText(str):
    """A value from the environment: text that may represent a number, a boolean or a list."""

    __slots__ = ()


@frozen
class Constraint:
    """A rule of one key. ``test`` returns whether a value (never None) is valid; ``expected`` describes it.

    Attributes:
        low, high: the bounds of a number, which are valid themselves; None without such a bound.
        above: the bound of a number that has to be greater; None without such a bound.
        names: the valid names; the message for a misspelt name suggests the nearest instead of listing all.
        trims: whether white space around the value, or around each item, is stripped first: copied keys often have
            some.
    """

    test: Callable[[Any], bool]
    expected: str
    low: int | None = None
    high: int | None = None
    above: int | None = None
    names: Collection[str] = ()
    trims: bool = False

    def describe(self, value: Any, shown_value: str) -> str:
        """Return what is expected instead of ``value``, for an error message.

        ``shown_value`` is how the value may appear in the message.
        """
        hint = did_you_mean(value, self.names) if isinstance(value, str) and self.names else ""
        return f"unknown name{hint}" if hint else f"expected {self.expected}{shown_value}"


def must(
    expected: str, test: Callable[[Any], bool], names: Collection[str] = (), *, trims: bool = False
) -> Mapping[str, Constraint]:
    """Return field metadata: the value must pass ``test``. ``Constraint`` describes ``names`` and ``trims``."""
    return {_CHECK: Constraint(test, expected, names=names, trims=trims)}


def between(low: int, high: int = _MAX_COUNT) -> Mapping[str, Constraint]:
    """Return field metadata: a number from ``low`` to ``high``."""
    expected = f"a number from {low} to {high}" if high < _MAX_COUNT else f"a number of at least {low}"
    return {_CHECK: Constraint(lambda value: low <= value <= high, expected, low, high)}


def about(words: str, check: Mapping[str, Any] = {}) -> Mapping[str, Any]:
    """Return field metadata: the field's description for people, with its ``check``."""
    return {**check, _DESCRIPTION: words}


def keyed(key: str) -> Mapping[str, Any]:
    """Return field metadata: the key in a table is ``key``, because a field cannot have that name."""
    return {_KEY: key}


def find_key(field: "attrs.Attribute[Any]") -> str:
    """Return the key of a field in a table: the field's name, unless ``keyed`` names another."""
    key: str = field.metadata.get(_KEY, field.name)
    return key


def find_about(field: "attrs.Attribute[Any]") -> str:
    """Return the description of a field; empty without one."""
    words: str = field.metadata.get(_DESCRIPTION, "")
    return words


def find_check(field: "attrs.Attribute[Any]") -> Constraint | None:
    """Return the rule of a field; None if the type is its only rule."""
    check: Constraint | None = field.metadata.get(_CHECK)
    return check


POSITIVE: Mapping[str, Constraint] = {_CHECK: Constraint(lambda value: value > 0, "a number greater than 0", above=0)}
NOT_NEGATIVE: Mapping[str, Constraint] = {_CHECK: Constraint(lambda value: value >= 0, "a number of at least 0", low=0)}


def parse_table(table: Any, kind: type[T]) -> T:
    """Parse ``table`` as ``kind``. Raises ``ValidationErrors``, or ``ValueError`` if it is no table."""
    settings: T = _CONVERTER.structure(table, kind)
    return settings


def parse_spec(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Parse the fields of an admin API request as ``kind``. Raises ``InvalidRequest`` that names every problem."""
    try:
        return parse_table(fields, kind)
    except ValidationErrors as error:
        problem_path, _ = error.problems[0]
        message = "; ".join(f"{path}: {problem}" for path, problem in error.problems)
        raise InvalidRequest(message, param=problem_path) from None
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def join_path(parent_path: str, key: str) -> str:
    """Return ``a.b`` for ``a`` and ``b``, and ``a[0].b`` for ``a`` and ``[0].b``."""
    return parent_path + key if key.startswith("[") or not parent_path else f"{parent_path}.{key}"


def _structure_class(value: Any, cls: type[Any]) -> Any:
    """Parse a table as an attrs class. Every key is checked before an error is raised.

    A class with ``from_text`` may also be written as a text, which ``from_text`` turns into a table. Raises
    ``ValidationErrors`` with all problems, or ``ValueError`` if the value is no table.
    """
    if isinstance(value, str) and hasattr(cls, "from_text"):
        value = cls.from_text(value)
    if not isinstance(value, Mapping):
        raise ValueError("expected a table")  # noqa: TRY004 - every wrong value raises the same exception type
    fields = {find_key(field): field for field in attrs.fields(cls)}
    problems: list[Problem] = [(key, f"unknown key{did_you_mean(key, fields)}") for key in value if key not in fields]
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in value:
            problems += _parse_field(value[key], field, values)
        elif field.default is attrs.NOTHING:
            problems.append((key, "expected a value; this key is required"))
    if hasattr(cls, "find_table_problems"):  # rules across its tables, checked despite other problems
        problems += cls.find_table_problems(value)
    if problems:
        raise ValidationErrors(problems)
    instance = cls(**values)
    if hasattr(instance, "find_problems"):  # rules across keys of the table
        problems += instance.find_problems()
    if problems:
        raise ValidationErrors(problems)
    return instance


def _parse_field(value: Any, field: "attrs.Attribute[Any]", values: dict[str, Any]) -> Iterator[Problem]:
    kind: Any = field.type
    try:
        values[field.name] = _CONVERTER.structure(value, kind)
    except ValidationErrors as error:
        yield from ((join_path(find_key(field), path), problem) for path, problem in error.problems)
        return
    except ValueError as error:
        yield find_key(field), f"{error}{_show(value, field)}"
        return
    check = find_check(field)
    if check is not None and check.trims and values[field.name]:
        text = values[field.name]
        values[field.name] = text.strip() if isinstance(text, str) else tuple(item.strip() for item in text)
    if check is not None and values[field.name] is not None and not check.test(values[field.name]):
        yield find_key(field), check.describe(value, _show(value, field))


def _show(value: Any, field: "attrs.Attribute[Any]") -> str:
    """Return ``, not '<value>'`` for an error message; empty if the field is secret.

    User info and the query of a URL are masked, because a pasted URL often has a password or a key.
    """
    if not field.repr:
        return ""
    text = _QUERY.sub(r"\1[masked]", _USERINFO.sub("[masked]", write_value(value)))
    return f", not '{text[:80]}'"


def _structure_items(value: Any, kind: Any) -> tuple[Any, ...]:
    """Parse an array.

    In an environment variable, commas separate the items. Raises ``ValidationErrors`` with all problems, or
    ``ValueError`` if the value is no array.
    """
    if isinstance(value, EnvText):
        value = [EnvText(item.strip()) for item in value.split(",") if item.strip()]
    if not isinstance(value, list):
        raise ValueError("expected an array")  # noqa: TRY004
    item_type = get_args(kind)[0]
    problems: list[Problem] = []
    items = []
    for index, item in enumerate(value):
        try:
            items.append(_CONVERTER.structure(item, item_type))
        except ValidationErrors as error:
            problems += [(join_path(f"[{index}]", path), problem) for path, problem in error.problems]
        except ValueError as error:
            problems.append((f"[{index}]", str(error)))
    if problems:
        raise ValidationErrors(problems)
    return tuple(items)


def _structure_map(value: Any, kind: Any) -> dict[str, Any]:
    item_type = get_args(kind)[1]
    noun = "values" if item_type is Any else "strings" if item_type is str else "numbers"
    if not isinstance(value, dict):
        raise ValueError(f"expected a table of {noun}")  # noqa: TRY004
    try:
        return {name: _CONVERTER.structure(item, item_type) for name, item in value.items()}
    except ValueError:
        raise ValueError(f"expected a table of {noun}") from None


def _structure_text(value: Any, _kind: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a string")  # noqa: TRY004
    return str(value)


def _structure_flag(value: Any, _kind: Any) -> bool:
    if isinstance(value, EnvText) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if not isinstance(value, bool):
        raise ValueError("expected true or false")  # noqa: TRY004
    return value


def _structure_integer(value: Any, _kind: Any) -> int:
    if isinstance(value, EnvText) and re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        return int(value)
    if type(value) is not int:
        raise ValueError("expected a whole number")
    return value


def _structure_decimal(value: Any, _kind: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | EnvText):
        raise ValueError("expected a number")  # noqa: TRY004
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError("expected a number") from None
    if not number.is_finite():
        raise ValueError("expected a finite number")
    return number


def _structure_number(value: Any, kind: Any) -> float:
    number = float(_structure_decimal(value, kind))
    if math.isinf(number):
        raise ValueError("expected a finite number")
    return number


def _structure_time(value: Any, _kind: Any) -> datetime:
    """Parse a TOML date or time, or the same as text.

    Without a time zone it is UTC. Raises ``ValueError`` for any other value.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise ValueError("expected a date or time such as 2027-01-31T12:00:00Z")  # noqa: TRY004
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _structure_choice(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if isinstance(value, EnvText):
        value = next((choice for choice in choices if str(choice) == value), str(value))
    if isinstance(value, bool) or value not in choices:
        words = ", ".join(f"'{choice}'" if isinstance(choice, str) else write_value(choice) for choice in choices)
        raise ValueError(f"expected one of {words}")
    return value


def _has_origin(origin: object) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) == origin


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    hooks: dict[Any, Any] = {
        str: _structure_text,
        bool: _structure_flag,
        int: _structure_integer,
        float: _structure_number,
        Decimal: _structure_decimal,
        datetime: _structure_time,
    }
    for kind, hook in hooks.items():
        converter.register_structure_hook(kind, hook)
    for origin, hook in ((Literal, _structure_choice), (tuple, _structure_items), (dict, _structure_map)):
        converter.register_structure_hook_func(_has_origin(origin), hook)
    converter.register_structure_hook_func(attrs.has, _structure_class)
    return converter


_CONVERTER = _make_converter()
