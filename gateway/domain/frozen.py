"""``attrs.frozen`` for types of which every request makes new objects.

A frozen attrs class sets each field through a call, which is most of the cost of a new object. Classes with this
decorator are ordinary at run time. mypy sees ``attrs.frozen`` and checks that no code changes them.
"""

from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen
else:
    frozen = partial(attrs.define, unsafe_hash=True)

__all__ = ["frozen"]
