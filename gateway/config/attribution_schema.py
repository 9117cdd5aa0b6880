"""``[attribution]``: what is stored of the end users, sessions and tags of requests."""

import attrs

from gateway.domain.attribution import ANY_TAG, MAX_VALUES, AttributionRules, UserStorage, find_tag_problem
from gateway.frozen import frozen
from gateway.parsing import about, between, must

_TAG_NAMES = must(
    "names of tags, of 1 to 64 letters, digits or _.-, or '*'",
    lambda names: all(name == ANY_TAG or find_tag_problem(name, "value") is None for name in names),
)


@frozen
class AttributionSection:
    """``[attribution]``: for whom requests are made, as their clients name end users, sessions and tags."""

    users: UserStorage = attrs.field(
        default="text",
        metadata=about(
            'how end users (from x-gateway-user or the request body) are stored: "text": as plain text; "hash": as '
            'a keyed hash, which distinguishes users without revealing their names; "off": not at all'
        ),
    )
    names: bool = attrs.field(
        default=False, metadata=about("store the email address or name that Open WebUI sends instead of its user ID")
    )
    tags: tuple[str, ...] = attrs.field(
        default=(ANY_TAG,),
        metadata=about(
            'names of the tags to store; "*": all tags in the x-gateway-tags header. Tags listed here are also read '
            "from the metadata in the request body",
            _TAG_NAMES,
        ),
    )

    max_values: int = attrs.field(
        default=MAX_VALUES,
        metadata=about(
            "how many users, sessions and values of each tag are counted separately per day; the rest are counted "
            "together as “other”. Changes take effect the next day",
            between(1, 1_000_000),
        ),
    )

    def rules(self, hash_key: bytes) -> AttributionRules:
        return AttributionRules(self.users, self.names, frozenset(self.tags), hash_key)
