"""The usage of one end user or one tag."""

from aiohttp import web

from gateway.server.admin.usage import UsageReport
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.usage_charts import PageCharts, load_charts
from gateway.server.context import ACTOR


async def load_subject(request: web.Request) -> Data:
    """Load the charts of the end user or tag (``NAME=VALUE``) in the address; ``charts`` is None if it has neither.

    Administrators see all accounts, or the account in the address.
    """
    end_user, tag = request.query.get("end_user"), request.query.get("tag")
    account = request.query.get("account") if request[ACTOR].scope is None else None
    if not end_user and not tag:
        return {"charts": None}
    subject = {"end_user": end_user} if end_user else {"tag": tag}
    charts = await load_charts(request, account=account, **subject)
    return {
        "charts": charts,
        "subject_name": end_user or tag,
        "is_user": bool(end_user),
        "part": "end-users" if end_user else "tags",
        "hidden": {**subject, "account": account},
        "is_incomplete": charts.answer.step == "day" and await _has_other(request, charts),
    }


async def _has_other(request: web.Request, charts: PageCharts) -> bool:
    """Return whether a day had so many users or values that some have no sums of their own."""
    name, _, value = charts.filters.get("tag", "").partition("=")
    by, value = (f"tag:{name}", value) if name else ("user", charts.filters["end_user"])
    times = {"since": charts.answer.since, "until": charts.answer.until}
    account = charts.filters.get("account")
    report: UsageReport = await ask_admin_api(request, "/usage", by=by, value=value, account=account, **times)
    return report.other is not None and report.other.requests > 0
