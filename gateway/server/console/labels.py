"""What the console calls the values that the admin API answers with: states, roles, periods and audited actions."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.server.console.language import gettext
from gateway.server.console.routes import mark

LABELS: Mapping[str, str] = MappingProxyType(
    {
        # Accounts, keys, members and channels
        "active": mark("active"),
        "disabled": mark("disabled"),
        "expired": mark("expired"),
        "healthy": mark("healthy"),
        "failing": mark("failing"),
        "cooling_down": mark("cooling down"),
        "recovering": mark("recovering"),
        "untested": mark("untested"),
        "on": mark("on"),
        "off": mark("off"),
        # Roles
        "administrator": mark("administrator"),
        "member": mark("member"),
        "viewer": mark("viewer"),
        # Periods and credits
        "none": mark("none"),
        "daily": mark("daily"),
        "monthly": mark("monthly"),
        "lifetime": mark("lifetime"),
        "top_up": mark("top-up"),
        "set": mark("balance set"),
        "orphan": mark("lost node"),
        # Circuits
        "open": mark("cooling down"),
        "half_open": mark("recovering"),
        "closed": mark("healthy"),
        # Jobs, deliveries and attempts
        "queued": mark("queued"),
        "processing": mark("processing"),
        "in_progress": mark("in progress"),
        "fetching": mark("fetching"),
        "created": mark("created"),
        "submitting": mark("submitting"),
        "completed": mark("completed"),
        "failed": mark("failed"),
        "refused": mark("refused"),
        "blocked": mark("blocked"),
        "cancelled": mark("cancelled"),
        "client_closed": mark("client disconnected"),
        "interrupted": mark("interrupted"),
        "delivered": mark("delivered"),
        "pending": mark("pending"),
        "validating": mark("validating"),
        "finalizing": mark("finalizing"),
        "cancelling": mark("cancelling"),
        "ok": mark("ok"),
        # Lines of a request's cost
        "input_tokens": mark("input tokens"),
        "cached_input_tokens": mark("cached input tokens"),
        "output_tokens": mark("output tokens"),
        "cache_write_tokens": mark("cache write tokens"),
        "cache_write_long_tokens": mark("cache write tokens (1 hour)"),
        "audio_input_tokens": mark("audio input tokens"),
        "cached_audio_input_tokens": mark("cached audio input tokens"),
        "audio_output_tokens": mark("audio output tokens"),
        "image_input_tokens": mark("image input tokens"),
        "cached_image_input_tokens": mark("cached image input tokens"),
        "image_output_tokens": mark("image output tokens"),
        "video_input_tokens": mark("video input tokens"),
        "video_output_tokens": mark("video output tokens"),
        "reasoning_tokens": mark("reasoning tokens"),
        "citation_tokens": mark("citation tokens"),
        "searches": mark("searches"),
        "file_searches": mark("file searches"),
        "calls": mark("calls"),
        "reported_cost": mark("reported by the provider"),
        "images": mark("images"),
        "seconds": mark("seconds"),
        "characters": mark("characters"),
        "request": mark("request"),
    }
)
"""Value -> English. A value that is not here is shown as it is."""
SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        "account": mark("Accounts"),
        "key": mark("Keys"),
        "channel": mark("Channels"),
        "member": mark("Members"),
        "session": mark("Sessions"),
        "link": mark("Links"),
        "setting": mark("Settings"),
        "group": mark("Groups"),
        "price": mark("Prices"),
        "configuration": mark("Configuration"),
        "request": mark("Requests"),
        "video": mark("Videos"),
        "batch": mark("Batches"),
    }
)
"""What the audit log can be filtered by: the noun before the dot of an action."""
ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "account.created": mark("account created"),
        "account.credited": mark("account credited"),
        "node.forgotten": mark("node forgotten"),
        "account.deleted": mark("account deleted"),
        "account.edited": mark("account edited"),
        "channel.created": mark("channel created"),
        "channel.deleted": mark("channel deleted"),
        "channel.edited": mark("channel edited"),
        "channel.ordered": mark("channels reordered"),
        "configuration.reloaded": mark("configuration reloaded"),
        "group.changed": mark("group changed"),
        "group.removed": mark("group reset"),
        "key.created": mark("key created"),
        "key.credited": mark("key credited"),
        "key.deleted": mark("key deleted"),
        "key.edited": mark("key edited"),
        "key.rotated": mark("key rotated"),
        "link.created": mark("link created"),
        "link.deleted": mark("link revoked"),
        "member.created": mark("member created"),
        "member.deleted": mark("member removed"),
        "member.edited": mark("member edited"),
        "member.linked": mark("sign-in provider linked"),
        "member.passphrase_changed": mark("passphrase changed"),
        "member.passkey_added": mark("passkey added"),
        "member.passkey_refused": mark("passkey refused"),
        "member.passkey_removed": mark("passkey removed"),
        "member.passkey_renamed": mark("passkey renamed"),
        "member.second_factor_added": mark("second factor added"),
        "member.second_factor_removed": mark("second factor removed"),
        "member.signed_in": mark("signed in"),
        "member.signed_out": mark("signed out"),
        "member.unlinked": mark("sign-in provider unlinked"),
        "price.changed": mark("price changed"),
        "price.removed": mark("price reset"),
        "request.cancelled": mark("request cancelled"),
        "session.ended": mark("session ended"),
        "session.refused": mark("sign-in refused"),
        "setting.changed": mark("setting changed"),
        "setting.removed": mark("setting reset"),
        "video.cancelled": mark("video cancelled"),
        "video.deleted": mark("video deleted"),
    }
)


def format_label(language: str, value: str) -> str:
    """Return what a page calls a value of the admin API."""
    return gettext(language, LABELS.get(value) or ACTIONS.get(value) or str(value).replace("_", " "))
