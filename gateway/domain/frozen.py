"""``attrs.frozen`` for nouns that every request makes anew.

A frozen class of attrs' sets each field of a new object through a call, which is most of what making one costs. Those
that are marked with this ``frozen`` are made like any others; that nobody changes them is checked by mypy, to which
they are ``attrs.frozen``, and by nothing while the gateway runs.
"""

from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen
else:
    frozen = partial(attrs.define, unsafe_hash=True)

__all__ = ["frozen"]
