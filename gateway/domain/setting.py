"""Settings, groups and prices that were set while the gateway ran: one layer of its configuration.

What the file or the environment says goes before them, and they go before what holds where nobody says anything.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import attrs

from gateway.domain.audit_log import Actor
from gateway.domain.price import Price

Source = Literal["default", "console", "file", "environment"]
"""Where a value comes from; an option of the command line counts as the environment. The last of them that says
anything is believed."""
PriceSource = Literal["console", "file", "shipped"]
"""Where a price comes from."""

MAX_PATH = 128
_GROUP, _PRICE = "group", "price"


@attrs.frozen
class Setting:
    """One thing that was set.

    Attributes:
        path: ``routing.retry_ratio``, ``group/vip``, ``price/gpt-*``, or ``price@openai/gpt-*`` at one provider.
        value: as JSON has it: of a group its table without the name, of a price its whole table.
        changed_ms: when it was set last.
    """

    path: str
    value: Any
    changed_ms: int = 0


def name_setting(section: str, key: str) -> str:
    """The path of a setting."""
    return f"{section}.{key}"


def name_group(name: str) -> str:
    """The path of a group."""
    return f"{_GROUP}/{name}"


def name_price(model: str, provider: str | None) -> str:
    """The path of a price: there is one for each model, or glob, and provider."""
    return f"{_PRICE}/{model}" if provider is None else f"{_PRICE}@{provider}/{model}"


def find_group(path: str) -> str | None:
    """The name of the group that a path is of."""
    kind, _, name = path.partition("/")
    return name if kind == _GROUP else None


def is_price(path: str) -> bool:
    """Whether a path is of a price."""
    return path.startswith((f"{_PRICE}/", f"{_PRICE}@"))


@attrs.frozen
class SettingView:
    """A setting as it stands.

    Attributes:
        value: the one in force; ``default`` is what holds where nobody says anything.
        editable: whether it can be set while the gateway runs, and neither the file nor the environment says it.
        type: what ``value`` is in JSON; a "choice" is one of ``choices``, a "list" is of strings.
        expected: what it must be beyond that, in words.
        about: what it is for.
    """

    section: str
    key: str
    value: Any
    default: Any
    source: Source
    editable: bool
    type: Literal["text", "integer", "number", "boolean", "list", "choice"]
    choices: tuple[str, ...]
    expected: str | None
    about: str


@attrs.frozen
class GroupView:
    """What the keys of a group pay."""

    name: str
    multiplier_ppm: int
    source: Source


@attrs.frozen
class PriceView:
    """A price, and whether it is ever asked for: another that goes first may stand for all it stands for."""

    price: Price
    source: PriceSource
    in_force: bool


class Configuration(Protocol):
    """The configuration in force, looked at and changed while the gateway runs.

    A change is checked with everything else that is said, stored with who made it, and in force when it returns; or
    nothing is changed. Changes raise ``NotFound``, ``InvalidRequest``, ``Conflict`` where the file or the environment
    says it or it cannot be changed, and ``StoreUnavailable``.
    """

    def list_settings(self) -> Sequence[SettingView]:
        """Every setting of every section that is no secret."""
        ...

    async def put_setting(self, section: str, key: str, value: Any, by: Actor) -> SettingView:
        """Set a setting."""
        ...

    async def delete_setting(self, section: str, key: str, by: Actor) -> SettingView:
        """Back to what holds where nobody says anything."""
        ...

    def list_groups(self) -> Sequence[GroupView]:
        """Every group that is said anything of, by name."""
        ...

    async def put_group(self, name: str, fields: dict[str, Any], by: Actor) -> GroupView:
        """Say what a group pays."""
        ...

    async def delete_group(self, name: str, by: Actor) -> None:
        """Say no more of a group."""
        ...

    def list_prices(self) -> Sequence[PriceView]:
        """Every price: of the file, then of the console, then those that ship and are in force."""
        ...

    async def put_price(self, model: str, fields: dict[str, Any], by: Actor) -> PriceView:
        """Say what a model, or whatever a glob matches, costs."""
        ...

    async def delete_price(self, model: str, provider: str | None, by: Actor) -> None:
        """Take a price back."""
        ...
