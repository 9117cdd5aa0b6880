"""The usage of one end user or one tag, and the list of end users."""

from typing import Any

from aiohttp import web

from gateway.server.admin.usage import UsageReport
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.usage_charts import load_charts

_MAX_USERS = 100
"""The number of end users that are listed, the most expensive of the last 30 days."""


async def load_subject(request: web.Request) -> Data:
    """Load the charts of the end user or tag (``NAME=VALUE``) of the address; the end users if it has neither."""
    end_user, tag = request.query.get("end_user"), request.query.get("tag")
    if not end_user and not tag:
        users: UsageReport = await ask_admin_api(request, "/usage", by="user", limit=_MAX_USERS)
        return {"charts": None, "users": users.data}
    charts = await load_charts(request, **({"end_user": end_user} if end_user else {"tag": tag}))
    return {
        "charts": charts,
        "subject_name": end_user or tag,
        "is_user": bool(end_user),
        "is_incomplete": charts.answer.step == "day" and await _has_other(request, end_user, tag, charts.answer),
    }


async def _has_other(request: web.Request, end_user: str | None, tag: str | None, answer: Any) -> bool:
    """Return whether a day had so many users or values that some have no sums of their own."""
    name, _, value = (tag or "").partition("=")
    by, value = ("user", end_user) if end_user else (f"tag:{name}", value)
    report: UsageReport = await ask_admin_api(
        request, "/usage", by=by, value=value, since=answer.since, until=answer.until
    )
    return report.other is not None and report.other.requests > 0
