"""The table of the console's pages. A page's module is imported at the first request for the page."""

from functools import partial

from aiohttp import web

from gateway.deferred import defer_handler
from gateway.domain.member import Role
from gateway.frozen import frozen

ROOT = "/console"


@frozen
class Page:
    """One page of the console.

    Attributes:
        template: the Jinja template. Its variables are the data from ``load``, ``page``, ``me`` (the member),
            ``account``, ``query``, ``clustered`` (whether the gateway is a node of a cluster), and ``parent`` (the page
            of the list above it, or None).
        load: location of the function that returns the page's data; empty if another handler renders the page.
        needs: the minimum role that may see the page; None if a visitor need not be signed in.
        part: the name of the page's menu entry; empty if that is the page's own name.
    """

    path: str
    template: str
    title: str
    load: str = ""
    needs: Role | None = "viewer"
    part: str = ""


def mark(message: str) -> str:
    """Mark ``message`` for the catalogues, and return it unchanged. Pages translate it when they show it."""
    return message


_PAGES = (
    Page("/sign-in", "sign_in.html", mark("Sign in"), "server.console.sign_in:load_sign_in", None),
    Page("/setup", "setup.html", mark("Create the administrator account"), "server.console.sign_in:load_setup", None),
    Page("/join", "join.html", mark("Accept your invitation"), "server.console.sign_in:load_join", None),
    Page("/my-key", "my_key.html", mark("My key"), "server.console.my_key:load_my_key", None),
    Page("/connect", "connect.html", mark("Connect"), "server.console.connect:load_connect"),
    Page("/playground", "playground.html", mark("Playground"), "server.console.playground:load_playground", "member"),
    Page("/account", "account.html", mark("Your account"), "server.console.account:load_account"),
    Page("", "overview.html", mark("Overview"), "server.console.overview:load_overview", part="overview"),
    Page("/", "overview.html", mark("Overview"), "server.console.overview:load_overview", part="overview"),
    Page("/usage", "subject.html", mark("Usage"), "server.console.subject:load_subject", part="end-users"),
    Page("/keys", "keys.html", mark("Keys"), "server.console.keys:load_keys"),
    Page("/keys/{id}", "key.html", mark("Key"), "server.console.keys:load_key"),
    Page("/requests", "requests.html", mark("Requests"), "server.console.requests:load_requests"),
    Page("/requests/{id}", "request.html", mark("Request"), "server.console.requests:load_request"),
    Page(
        "/requests/{id}/fallback",
        "fallback.html",
        mark("Fallback"),
        "server.console.fallback:load_fallback",
        "administrator",
    ),
    Page("/sessions", "sessions.html", mark("Sessions"), "server.console.sessions:load_sessions"),
    Page("/sessions/{id}", "session.html", mark("Session"), "server.console.sessions:load_session"),
    Page("/end-users", "subjects.html", mark("End users"), "server.console.subjects:load_end_users"),
    Page("/tags", "subjects.html", mark("Tags"), "server.console.subjects:load_tags"),
    Page("/videos", "videos.html", mark("Videos"), "server.console.videos:load_videos"),
    Page("/videos/{id}", "video.html", mark("Video"), "server.console.videos:load_video"),
    Page("/batches", "batches.html", mark("Batches"), "server.console.batches:load_batches"),
    Page("/batches/{id}", "batch.html", mark("Batch"), "server.console.batches:load_batch"),
    Page("/files", "files.html", mark("Files"), "server.console.files:load_files"),
    Page("/live", "live.html", mark("Live"), "server.console.activity:load_live"),
    Page("/health", "health.html", mark("Health"), "server.console.activity:load_health", "administrator"),
    Page("/nodes", "nodes.html", mark("Nodes"), "server.console.activity:load_nodes", "administrator"),
    Page("/accounts", "accounts.html", mark("Accounts"), "server.console.accounts:load_accounts", "administrator"),
    Page(
        "/accounts/{name}", "account_of.html", mark("Account"), "server.console.accounts:load_account", "administrator"
    ),
    Page("/members", "members.html", mark("Members"), "server.console.accounts:load_members", "administrator"),
    Page("/audit", "audit.html", mark("Audit log"), "server.console.accounts:load_trail", "administrator"),
    Page("/channels", "channels.html", mark("Channels"), "server.console.channels:load_channels", "administrator"),
    Page(
        "/new-channel",
        "new_channel.html",
        mark("New channel"),
        "server.console.channels:load_new_channel",
        "administrator",
        "channels",
    ),
    Page(
        "/channel-weights",
        "channel_weights.html",
        mark("Weights"),
        "server.console.channels:load_weights",
        "administrator",
        "channels",
    ),
    Page("/channels/{name}", "channel.html", mark("Channel"), "server.console.channels:load_channel", "administrator"),
    Page("/routes", "routes.html", mark("Routes"), "server.console.model_routes:load_routes", "administrator"),
    Page("/routes/{name}", "route.html", mark("Route"), "server.console.model_routes:load_route", "administrator"),
    Page("/limits", "limits.html", mark("Limits"), "server.console.limits:load_limits", "administrator"),
    Page("/limits/{name}", "limit.html", mark("Limit"), "server.console.limits:load_limit", "administrator"),
    Page("/models", "models.html", mark("Models"), "server.console.models:load_models"),
    Page("/models/{name}", "model.html", mark("Model"), "server.console.models:load_model"),
    Page("/prices", "prices.html", mark("Prices and groups"), "server.console.prices:load_prices", "administrator"),
    Page("/settings", "settings.html", mark("Settings"), "server.console.settings:load_settings", "administrator"),
)


def list_pages() -> tuple[Page, ...]:
    """Return every page."""
    return _PAGES


def find_parent(page: Page) -> Page | None:
    """Return the page of the list that ``page`` belongs to, by its menu entry or its path; None if there is none."""
    list_path, _, parameter = page.path.rpartition("/")
    if page.part:
        list_path, parameter = f"/{page.part}", "{}"
    return next((other for other in _PAGES if parameter.startswith("{") and other.path == list_path), None)


def add_console(app: web.Application) -> None:
    """Register all routes below ``/console``."""
    app.router.add_get("/static/{name:(?:[0-9a-f]+/)?[^/]+}", defer_handler("server.console.static_files:get_file"))
    sign_in = "/sign-in/{provider}"
    app.router.add_get(sign_in, defer_handler("server.console.provider_sign_in:begin"), allow_head=False)
    app.router.add_get(f"{sign_in}/callback", defer_handler("server.console.provider_sign_in:finish"), allow_head=False)
    for page in _PAGES:
        app.router.add_get(page.path, partial(defer_handler("server.console.page:show_page"), page))
