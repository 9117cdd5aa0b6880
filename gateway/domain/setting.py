"""Settings, groups, prices, routes and limits set while the gateway ran: one layer of its configuration.

The file and the environment override this layer, which overrides the defaults.
"""

from typing import Any, Literal

from gateway.domain.price import Price
from gateway.domain.route import Route
from gateway.frozen import frozen

Source = Literal["default", "console", "file", "environment"]
"""The origin of a value, weakest first; a command line option counts as the environment."""
PriceSource = Literal["console", "file", "shipped"]
"""The origin of a price."""
SettingType = Literal["text", "integer", "number", "boolean", "list", "choice"]

MAX_PATH_CHARS = 128
_GROUP_SECTION, _PRICE_SECTION, _ROUTE_SECTION, _LIMIT_SECTION = "group", "price", "route", "limit"


@frozen
class Setting:
    """One stored setting.

    ``path`` is like ``routing.retry_ratio``, ``group/vip``, ``price/gpt-*``, ``price@openai/gpt-*`` at one provider,
    ``route/fast`` or ``limit/each user``. ``value`` is JSON: a group's table without the name, or the whole table of a
    price, a route or a limit.
    ``changed_ms`` is the time of the last change, in Unix milliseconds.
    """

    path: str
    value: Any
    changed_ms: int = 0


def name_setting(section: str, key: str) -> str:
    """Return the path of a setting."""
    return f"{section}.{key}"


def name_group(name: str) -> str:
    """Return the path of a group."""
    return f"{_GROUP_SECTION}/{name}"


def name_price(model: str, provider: str | None) -> str:
    """Return the path of a price: there is one for each model, or glob, and provider."""
    return f"{_PRICE_SECTION}/{model}" if provider is None else f"{_PRICE_SECTION}@{provider}/{model}"


def name_route(name: str) -> str:
    """Return the path of a route."""
    return f"{_ROUTE_SECTION}/{name}"


def is_route(path: str) -> bool:
    """Return whether a path is that of a route."""
    return path.startswith(f"{_ROUTE_SECTION}/")


def name_limit(name: str) -> str:
    """Return the path of a limit."""
    return f"{_LIMIT_SECTION}/{name}"


def is_limit(path: str) -> bool:
    """Return whether a path is that of a limit."""
    return path.startswith(f"{_LIMIT_SECTION}/")


def find_group(path: str) -> str | None:
    """Return the group's name; None if the path is not that of a group."""
    kind, _, name = path.partition("/")
    return name if kind == _GROUP_SECTION else None


def is_price(path: str) -> bool:
    """Return whether a path is that of a price."""
    return path.startswith((f"{_PRICE_SECTION}/", f"{_PRICE_SECTION}@"))


@frozen
class SettingView:
    """A setting with its value in force.

    Attributes:
        value: the value in force. ``default`` is in force if no layer sets a value.
        editable: whether the setting can be changed while the gateway runs, and is set neither by the file nor by the
            environment.
    """

    section: str
    key: str
    value: Any
    default: Any
    source: Source
    editable: bool
    type: SettingType
    choices: tuple[str, ...]
    expected: str | None
    about: str


@frozen
class GroupView:
    """What the keys of a group pay."""

    name: str
    multiplier_ppm: int
    source: Source


@frozen
class RouteView:
    """A route, and whether it is in force. A route of the file hides a stored one of the same name."""

    route: Route
    source: Source
    in_force: bool = True


@frozen
class PriceView:
    """A price, and whether any request can use it: a price with precedence may cover all its models."""

    price: Price
    source: PriceSource
    in_force: bool
