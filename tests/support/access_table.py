"""Who may do what: every route of the gateway, and what each kind of caller is answered there.

A row says what those are answered who may. Who that is follows from the door's ``access``, but for what is here by
hand: what is another account's (``foreign``), and what is only for somebody who is signed in (``signed``).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

import attrs

from gateway.domain.account import Caller
from gateway.domain.audit_log import OPERATOR, Actor, AuditFilter, AuditRow
from gateway.domain.batch import MESSAGES_ENDPOINT, MESSAGES_PREFIX, PREFIX, Batch
from gateway.domain.client_file import NewFile
from gateway.domain.member import ROLES, Role
from gateway.domain.member_spec import InviteSpec
from gateway.domain.request_budget import SessionState
from gateway.request_context import RequestContext
from gateway.server.context import SERVICES
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.file_folder import make_client_id
from tests.support.console import FROGS, add_member
from tests.support.contexts import make_context
from tests.support.gateway import RunningGateway

Json = dict[str, Any]
OURS, THEIRS, GONE = "orchid", "rival", "closed"
"""Accounts. What stands in the rows is of the first; the third is disabled."""
CHANNEL = "backdoor"
MODEL = "m"


@attrs.frozen
class Person:
    """A kind of caller: by a session of a ``role`` in an ``account``, or by what else they ``show``."""

    name: str
    account: str = ""
    role: Role | None = None
    shows: Literal["nothing", "session", "token", "key"] = "session"

    @property
    def is_in(self) -> bool:
        """Whether the gateway knows them at all."""
        return self.shows != "nothing" and self.account != GONE


PEOPLE = (
    Person("nobody", shows="nothing"),
    Person("a member of another account", THEIRS, "member"),
    Person("a member", OURS, "member"),
    Person("a viewer", OURS, "viewer"),
    Person("an administrator", OURS, "administrator"),
    Person("a member of a disabled account", GONE, "member"),
    Person("the bearer of the token", shows="token"),
    Person("a key", OURS, shows="key"),
    Person("another account's key", THEIRS, shows="key"),
    Person("a disabled account's key", GONE, shows="key"),
)


@attrs.define
class UnderWay:
    """A call that goes on until somebody ends it: ``flow.running.UnderWay``."""

    context: RequestContext
    address: str | None = None

    def handle_disconnect(self) -> bool:
        return False

    def cancel(self) -> bool:
        return True


@attrs.define
class Site:
    """A gateway with something of everything in it, all of the account ``OURS``.

    Attributes:
        video_id: a job that has ended; ``request_id`` is its row's.
        film: makes another, and returns its id.
    """

    gateway: RunningGateway
    video_id: str
    request_id: str
    film: Callable[[], Awaitable[str]]
    made: int = 0

    @property
    def services(self) -> Any:
        return self.gateway.app[SERVICES]

    def name(self) -> str:
        """One that nothing has yet, and that tells whose it is."""
        return self.number(OURS)

    def number(self, name: str) -> str:
        """The same for what is everybody's."""
        self.made += 1
        return f"{name}-{self.made}"

    async def make_account(self) -> str:
        return str((await self.services.auth.accounts.add_account({"name": self.name()}))["name"])

    async def make_key(self) -> str:
        """As a member made it: of one that an administrator has restricted a member is not rid."""
        accounts, fields = self.services.auth.accounts, {"name": self.name(), "account": OURS, "quota_usd": 5}
        member = Actor("member", scope=(await accounts.get_stored_account(OURS)).id)
        return str((await accounts.add_key(fields, member))["id"])

    async def make_channel(self) -> str:
        fields = {"name": f"{CHANNEL}-{self.name()}", "provider": "custom", "base_url": "http://127.0.0.1:9/v1"}
        made = await self.services.routing.channels.add({**fields, "status": "disabled", "models": ["none"]})
        return str(made.name)

    async def make_keyed_channel(self) -> str:
        name, channels = await self.make_channel(), self.services.routing.channels
        await channels.edit(name, {"api_keys": ["first-key", "second-key"]})
        return name

    async def make_member(self) -> str:
        return str((await add_member(self.gateway, self.name(), "viewer", OURS)).id)

    async def make_link(self) -> str:
        return str((await self.services.auth.members.invite(InviteSpec(OURS)))["id"])

    async def make_group(self) -> str:
        name = self.number("group")
        await self.services.admin.settings.put_group(name, {"price_multiplier": 2}, OPERATOR)
        return name

    async def make_route(self) -> str:
        """A route without a channel, so a test of it sends nothing."""
        name = self.number("route")
        await self.services.admin.routes.put_route(name, {"step": [{"models": ["of-no-channel"]}]}, OPERATOR)
        return name

    async def make_limit(self) -> str:
        name = self.number("limit")
        await self.services.admin.limits.put_limit(name, {"of": "session", "rpm": 100}, OPERATOR)
        return name

    async def make_session(self) -> str:
        """A session of ours with a budget."""
        subject = f"{self._find_caller().account.id}:{self.number('session')}"
        await self.services.billing.limits.open_budgets().states.put_budget(
            SessionState(subject, 1), 0, lambda _former: True
        )
        states = self.services.billing.limits.open_budgets().states
        await states.put_budget(SessionState(subject, 1), 0, lambda _former: True)
        await self.services.billing.limits.open_budgets().states.put_budget(SessionState(subject, 1), 0, lambda _: True)
        return subject

    async def find_model(self) -> str:
        """The model that everyone may use."""
        return MODEL

    async def make_price(self) -> str:
        name = self.number("model")
        await self.services.admin.settings.put_price(name, {"input_usd_per_million": 2}, OPERATOR)
        return name

    async def make_call(self) -> str:
        """A call of ours that is under way."""
        services, call_id = self.gateway.app[SERVICES], f"req_{self.name()}"
        services.active_requests.calls[call_id] = UnderWay(make_context(self._find_caller(), request_id=call_id))
        return call_id

    async def make_file(self) -> str:
        files = self.services.files.files
        received = files.receive()
        await received.write(b"ours")
        return str((await files.add(NewFile(self.name(), "batch"), self._find_caller(), received.draft, 4)).id)

    async def make_upload(self) -> str:
        new = NewFile(self.name(), "batch")
        return str((await self.services.files.uploads.create(new, "text/plain", 4, self._find_caller())).id)

    async def make_message_batch(self) -> str:
        return await self.make_batch(MESSAGES_PREFIX, MESSAGES_ENDPOINT)

    async def make_batch(self, prefix: str = PREFIX, endpoint: str = "/v1/embeddings") -> str:
        """A batch of ours that has ended."""
        caller, batch_id, file_id = self._find_caller(), make_client_id(prefix), await self.make_file()
        batch = Batch(batch_id, caller.account.id, caller.key.id, 0, 0, endpoint, file_id, "completed")
        batch = attrs.evolve(batch, output_file_id=file_id)
        await BatchRepository(self.services.storage.database, find_no_process).add_batch(batch)
        return batch_id

    def _find_caller(self) -> Caller:
        keys = self.services.auth.api_keys._by_key.values()
        return cast("Caller", next(one for one in keys if one.account.name == OURS))

    async def find_video(self) -> str:
        return self.video_id

    async def find_request(self) -> str:
        return self.request_id

    async def make_video(self) -> str:
        return await self.film()

    async def find_last(self) -> AuditRow | None:
        """What was put on record last."""
        return next(iter(await self.services.admin.audit_log.list_audit(AuditFilter(), 1)), None)

    async def snap(self) -> Json:
        """Everything that a change could change."""
        services, accounts = self.services, self.services.auth.accounts
        return {
            "accounts": await accounts.list_accounts(),
            "keys": await accounts.register.keys.list_keys(),
            "members": await services.auth.members._members.list_members(),
            "links": await services.auth.members._members.list_links(),
            "channels": [(one.name, one.status, one.priority) for one in services.routing.catalog.channels],
            "settings": await services.admin.settings._store.list_settings(),
            "videos": [(job.id, job.state) for job in [await services.videos.jobs.store.find(self.video_id)] if job],
            "running": sorted(self.gateway.app[SERVICES].active_requests.calls),
            "record": await self.find_last(),
        }


Make = Callable[[Site], Awaitable[str]]


@attrs.frozen
class Row:
    """What is asked at a route, and answered to who may.

    Attributes:
        status: None: what the door says; 200 where there is none.
        make: makes what the path's parameter names, anew for each who may.
        body: of JSON; what is called is called with the stage.
        foreign: what a member of another account is answered who might, were it its own.
        signed: there must be somebody who is signed in: the token's bearer is refused.
        apart: it ends a session, or spoils one: each request comes from a new caller of the same kind.
        keyless: of the public API, where a page needs no key to look.
    """

    status: int | None = None
    make: Make | None = None
    body: Any = None
    query: str = ""
    foreign: int | None = None
    signed: bool = False
    apart: bool = False
    keyless: bool = False

    async def write_body(self, site: Site) -> Any:
        """The body of one call."""
        return await self.body(site) if callable(self.body) else self.body


async def new_account(site: Site) -> Json:
    return {"name": site.name()}


async def new_owned_key(site: Site) -> Json:
    return {"name": site.name(), "account": OURS}


async def new_channel(site: Site) -> Json:
    return {"name": f"{CHANNEL}-{site.name()}", "provider": "custom", "base_url": "http://127.0.0.1:9", "models": ["n"]}


async def sign_in(site: Site) -> Json:
    return {"name": (await add_member(site.gateway, site.name(), "viewer", OURS)).name, "passphrase": FROGS}


ACCESS: Mapping[str, frozenset[str]] = {
    "anyone": frozenset(
        {
            *("POST /session", "GET /setup", "POST /setup", "POST /links/open", "POST /links/use"),
            *("POST /session/passkey", "POST /session/passkey/options"),
        }
    ),
    "viewer": frozenset(
        {
            *("GET /session", "DELETE /session", "GET /sessions", "DELETE /sessions", "DELETE /sessions/{id}"),
            *("POST /session/passphrase", "POST /session/second-factor", "POST /session/second-factor/confirm"),
            *("GET /session/identities", "POST /session/identities/{provider}"),
            "DELETE /session/identities/{provider}",
            *("DELETE /session/second-factor", "GET /account", "GET /keys", "GET /keys/{id}", "GET /keys/{id}/credits"),
            *("GET /requests", "GET /requests/{id}", "GET /requests/facets", "GET /requests/export", "GET /usage"),
            *("GET /usage/forecast", "GET /keys/{id}/limits"),
            "GET /usage/forecast",
            "GET /usage/charts",
            *("GET /usage/export", "GET /end-users", "GET /tags", "GET /tag-values"),
            *("GET /running", "GET /running/events", "GET /videos", "GET /videos/{id}", "GET /deliveries"),
            *("GET /files", "GET /batches", "GET /batches/{id}", "GET /request-sessions", "GET /request-sessions/{id}"),
            *(
                "GET /models",
                "GET /search",
                "GET /session/passkeys",
                "POST /session/passkeys",
                "POST /session/passkeys/options",
            ),
            *("PATCH /session/passkeys/{id}", "DELETE /session/passkeys/{id}"),
        }
    ),
    "body_reader": frozenset({"GET /requests/{id}/body", "POST /requests/{id}/replay", "GET /bodies/export"}),
    "member": frozenset(
        {
            *("POST /keys", "PATCH /keys/{id}", "DELETE /keys/{id}", "POST /keys/{id}/rotate"),
            *("GET /keys/{id}/webhook-secret", "POST /running/{id}/cancel", "POST /videos/{id}/cancel"),
            *("POST /batches/{id}/cancel", "DELETE /files/{id}", "POST /request-sessions/{id}/end"),
        }
    ),
}
"""Doors that are not for administrators alone: said a second time, for a slip in a door's word is seen nowhere else."""

UNWRITTEN = frozenset(
    {
        "POST /channels/check",
        "POST /channels/{name}/test",
        "POST /channels/{name}/sync",
        "POST /routes/{name}/test",
        "POST /routes/{name}/explain",
        "POST /session/second-factor",
        "DELETE /sessions",
        "PATCH /settings",
        "PUT /settings/{section}/{key}",
        "DELETE /settings/{section}/{key}",
    }
)
"""Doors of which nothing is on record where they do what is asked here: they change nothing, or only the first time."""

KEY = Site.make_key
LIMIT = {"value": 4}
TOKEN = {"token": "x" * 43}
WORDS = {"passphrase": FROGS}
ASSERTION = ("id", "client_data", "authenticator_data", "signature")
ATTESTATION = ("id", "client_data", "attestation_object")
ADMIN: Mapping[str, Row] = {
    "GET /status": Row(),
    "GET /account": Row(signed=True),
    "GET /accounts": Row(),
    "POST /accounts": Row(body=new_account),
    "GET /accounts/{name}": Row(make=Site.make_account),
    "PATCH /accounts/{name}": Row(make=Site.make_account, body={"rpm": 9}),
    "DELETE /accounts/{name}": Row(make=Site.make_account),
    "GET /accounts/{name}/credits": Row(make=Site.make_account),
    "POST /accounts/{name}/credits": Row(400, make=Site.make_account, body={"amount_usd": 1}),
    "GET /keys": Row(),
    "POST /keys": Row(body=new_owned_key, foreign=404),
    "GET /keys/{id}": Row(make=KEY, foreign=404),
    "GET /keys/{id}/limits": Row(make=KEY, foreign=404),
    "PATCH /keys/{id}": Row(make=KEY, body={"rpm": 9}, foreign=404),
    "DELETE /keys/{id}": Row(make=KEY, foreign=404),
    "POST /keys/{id}/rotate": Row(make=KEY, foreign=404),
    "GET /keys/{id}/credits": Row(make=KEY, foreign=404),
    "POST /keys/{id}/credits": Row(make=KEY, body={"amount_usd": 1}),
    "GET /keys/{id}/webhook-secret": Row(make=KEY, foreign=404),
    "GET /channels": Row(),
    "POST /channels": Row(body=new_channel, query="check=hold"),
    "POST /channels/check": Row(body=new_channel),
    "POST /channels/order": Row(400, body={"names": []}),
    "POST /channels/weights": Row(400, body={"weights": {}}),
    "GET /channels/{name}": Row(make=Site.make_channel),
    "PATCH /channels/{name}": Row(make=Site.make_channel, body={"weight": 2}),
    "DELETE /channels/{name}": Row(make=Site.make_channel),
    "POST /channels/{name}/test": Row(make=Site.make_channel),
    "POST /channels/{name}/sync": Row(400, make=Site.make_channel),
    "POST /channels/{name}/keys": Row(make=Site.make_channel, body={"key": "another-key"}),
    "PATCH /channels/{name}/keys/{number}": Row(make=Site.make_keyed_channel, body={"status": "disabled"}),
    "DELETE /channels/{name}/keys/{number}": Row(make=Site.make_keyed_channel),
    "GET /providers": Row(),
    "GET /explain": Row(query=f"model={MODEL}"),
    "POST /reload": Row(409),
    "GET /health": Row(),
    "GET /session": Row(signed=True),
    "DELETE /session": Row(signed=True, apart=True),
    "GET /sessions": Row(signed=True),
    "DELETE /sessions": Row(signed=True, apart=True),
    "DELETE /sessions/{id}": Row(404, signed=True),
    "POST /session/passphrase": Row(
        signed=True, apart=True, body={"current": FROGS, "passphrase": "nine brown toads hum"}
    ),
    "POST /session/second-factor": Row(signed=True, apart=True, body=WORDS),
    "POST /session/second-factor/confirm": Row(409, signed=True, body={"code": "000000"}),
    "DELETE /session/second-factor": Row(409, signed=True, body={**WORDS, "code": "000000"}),
    "GET /session/identities": Row(signed=True),
    "POST /session/identities/{provider}": Row(404, signed=True, body=WORDS),
    "DELETE /session/identities/{provider}": Row(404, signed=True, body=WORDS),
    "POST /session/passkey/options": Row(409, body={}),
    "POST /session/passkey": Row(409, body=dict.fromkeys(ASSERTION, "AAAA")),
    "GET /session/passkeys": Row(signed=True),
    "POST /session/passkeys/options": Row(409, signed=True, body=WORDS),
    "POST /session/passkeys": Row(409, signed=True, body={**dict.fromkeys(ATTESTATION, "AAAA"), "name": "mine"}),
    "PATCH /session/passkeys/{id}": Row(404, signed=True, body={"name": "mine"}),
    "DELETE /session/passkeys/{id}": Row(404, signed=True, body=WORDS),
    "GET /setup": Row(),
    "POST /setup": Row(404, body={**TOKEN, **WORDS, "name": "eve"}),
    "POST /links/open": Row(404, body=TOKEN),
    "POST /links/use": Row(404, body={**TOKEN, **WORDS, "name": "eve"}),
    "POST /session": Row(apart=True, body=sign_in),
    "GET /nodes": Row(),
    "GET /nodes/lost-changes": Row(),
    "POST /nodes/{id}/forget": Row(404, body={"leases": "release"}),
    "GET /alerts": Row(),
    "POST /alerts/test": Row(404),
    "POST /alerts/{name}/test": Row(404),
    "GET /sinks": Row(),
    "POST /sinks/{name}/test": Row(404),
    "GET /members": Row(),
    "GET /members/{id}": Row(make=Site.make_member),
    "PATCH /members/{id}": Row(make=Site.make_member, body={"role": "member"}),
    "DELETE /members/{id}": Row(make=Site.make_member),
    "POST /members/{id}/reset": Row(make=Site.make_member),
    "GET /links": Row(),
    "POST /links": Row(body={"account": OURS}),
    "DELETE /links/{id}": Row(make=Site.make_link),
    "GET /models": Row(),
    "GET /search": Row(400),
    "POST /users/forget": Row(body={"user": "nobody"}),
    "GET /usage": Row(query="by=key"),
    "GET /usage/forecast": Row(),
    "GET /usage/charts": Row(),
    "GET /usage/export": Row(query="by=user"),
    "GET /end-users": Row(),
    "GET /tags": Row(),
    "GET /tag-values": Row(query="tag=team"),
    "GET /requests": Row(),
    "GET /requests/facets": Row(),
    "GET /requests/export": Row(),
    "GET /requests/{id}": Row(make=Site.find_request, foreign=404),
    "GET /request-sessions": Row(),
    "GET /request-sessions/{id}": Row(make=Site.make_session, foreign=404),
    "POST /request-sessions/{id}/end": Row(make=Site.make_session, foreign=404),
    "GET /requests/{id}/body": Row(404, make=Site.find_request),
    "POST /requests/{id}/replay": Row(404, make=Site.find_request, body={"key": 1, "model": "m"}),
    "GET /bodies/export": Row(),
    "GET /bodies/attestation": Row(),
    "GET /bodies": Row(),
    "POST /bodies/delete": Row(body={"user": "nobody"}),
    "GET /cache": Row(),
    "POST /cache/clear": Row(body={"user": "nobody"}),
    "GET /audit": Row(),
    "GET /audit-trail": Row(),
    "GET /settings": Row(),
    "PATCH /settings": Row(body={"settings": {"routing.max_attempts": 4}}),
    "PUT /settings/{section}/{key}": Row(body=LIMIT),
    "DELETE /settings/{section}/{key}": Row(),
    "GET /groups": Row(),
    "PUT /groups/{name}": Row(make=Site.make_group, body={"price_multiplier": 3}),
    "DELETE /groups/{name}": Row(make=Site.make_group),
    "GET /limits": Row(),
    "GET /limits/{name}": Row(make=Site.make_limit),
    "PUT /limits/{name}": Row(make=Site.make_limit, body={"of": "session", "rpm": 200}),
    "DELETE /limits/{name}": Row(make=Site.make_limit),
    "GET /limits/{name}/subjects": Row(make=Site.make_limit),
    "GET /routes": Row(),
    "GET /routes/{name}": Row(make=Site.make_route),
    "PUT /routes/{name}": Row(make=Site.make_route, body={"step": [{"models": ["m"]}]}),
    "DELETE /routes/{name}": Row(make=Site.make_route),
    "POST /routes/{name}/explain": Row(make=Site.make_route, body={"step": [{"models": ["m"]}]}),
    "GET /routes/{name}/shadow": Row(make=Site.make_route),
    "POST /routes/{name}/test": Row(make=Site.make_route),
    "GET /prices": Row(),
    "PUT /prices/{model}": Row(make=Site.make_price, body={"input_usd_per_million": 3}),
    "DELETE /prices/{model}": Row(make=Site.make_price),
    "GET /running": Row(),
    "GET /running/events": Row(),
    "POST /running/{id}/cancel": Row(make=Site.make_call, foreign=404),
    "GET /videos": Row(),
    "GET /videos/{id}": Row(make=Site.find_video, foreign=404),
    "POST /videos/{id}/cancel": Row(409, make=Site.find_video, foreign=404),
    "GET /deliveries": Row(),
    "GET /batches": Row(),
    "GET /batches/{id}": Row(make=Site.make_batch, foreign=404),
    "POST /batches/{id}/cancel": Row(409, make=Site.make_batch, foreign=404),
    "GET /files": Row(),
    "DELETE /files/{id}": Row(make=Site.make_file, foreign=404),
}
"""By the method and path of a door."""

PAGES: Mapping[str, Row] = {
    "/keys/{id}": Row(make=KEY, foreign=404),
    "/requests/{id}": Row(make=Site.find_request, foreign=404),
    "/requests/{id}/fallback": Row(make=Site.find_request),
    "/sessions/{id}": Row(make=Site.make_session, foreign=404),
    "/videos/{id}": Row(make=Site.find_video, foreign=404),
    "/batches/{id}": Row(make=Site.make_batch, foreign=404),
    "/accounts/{name}": Row(make=Site.make_account),
    "/channels/{name}": Row(make=Site.make_channel),
    "/routes/{name}": Row(make=Site.make_route),
    "/limits/{name}": Row(make=Site.make_limit),
    "/models/{name}": Row(make=Site.find_model),
}
"""Pages of one thing; every other is shown to whom it says that it needs."""

_TAKES_JSON = (
    *("chat/completions", "embeddings", "messages", "messages/count_tokens", "completions"),
    *("moderations", "rerank", "responses", "responses/compact", "images/generations", "audio/speech"),
    *("videos", "video/generations"),
)
_METHODS = ("generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents")
_VIDEO = "/v1/videos/{id}"
PUBLIC: Mapping[str, Row] = {
    **{f"POST /v1/{name}": Row(400, body={}) for name in _TAKES_JSON},
    **{
        f"POST /v1/{name}": Row(415, body={}) for name in ("images/edits", "audio/transcriptions", "audio/translations")
    },
    "GET /v1/videos": Row(keyless=True),
    f"GET {_VIDEO}": Row(make=Site.find_video, foreign=404, keyless=True),
    f"GET {_VIDEO}/content": Row(make=Site.find_video, foreign=404, keyless=True),
    f"GET {_VIDEO}/events": Row(make=Site.find_video, foreign=404, keyless=True),
    "GET /v1/video/generations/{id}": Row(make=Site.find_video, foreign=404),
    f"DELETE {_VIDEO}": Row(make=Site.make_video, foreign=404),
    f"POST {_VIDEO}/remix": Row(400, make=Site.find_video, body={}),
    "POST /v1/files": Row(415, body={}),
    "GET /v1/files": Row(),
    "GET /v1/files/{id}": Row(make=Site.make_file, foreign=404),
    "GET /v1/files/{id}/content": Row(make=Site.make_file, foreign=404),
    "DELETE /v1/files/{id}": Row(make=Site.make_file, foreign=404),
    "POST /v1/uploads": Row(400, body={}),
    "POST /v1/uploads/{id}/parts": Row(415, make=Site.make_upload, body={}, foreign=404),
    "POST /v1/uploads/{id}/complete": Row(400, make=Site.make_upload, body={}),
    "POST /v1/uploads/{id}/cancel": Row(make=Site.make_upload, foreign=404),
    "POST /v1/batches": Row(400, body={}),
    "GET /v1/batches": Row(),
    "GET /v1/batches/{id}": Row(make=Site.make_batch, foreign=404),
    "POST /v1/batches/{id}/cancel": Row(409, make=Site.make_batch, foreign=404),
    "POST /v1/messages/batches": Row(400, body={}),
    "GET /v1/messages/batches": Row(),
    "GET /v1/messages/batches/{id}": Row(make=Site.make_message_batch, foreign=404),
    "DELETE /v1/messages/batches/{id}": Row(make=Site.make_message_batch, foreign=404),
    "GET /v1/messages/batches/{id}/results": Row(make=Site.make_message_batch, foreign=404),
    "POST /v1/messages/batches/{id}/cancel": Row(409, make=Site.make_message_batch, foreign=404),
    **{f"{name} /v1/responses/{{id}}": Row(404) for name in ("GET", "DELETE")},
    "GET /v1/responses/{id}/input_items": Row(404),
    "POST /v1/responses/{id}/cancel": Row(404),
    "GET /v1/realtime": Row(400),
    **{f"POST /v1/realtime/{name}": Row(body={}) for name in ("client_secrets", "sessions")},
    "GET /v1/models": Row(),
    "GET /v1/models/{model}": Row(),
    **{f"POST {path}/models/{{model}}:{name}": Row(400, body={}) for path in ("/v1", "/v1beta") for name in _METHODS},
    "GET /v1beta/models": Row(),
    "GET /v1beta/models/{model}": Row(),
    **{f"{method} /v1/streams/{{id}}": Row(404) for method in ("GET", "DELETE")},
    "POST /v1/streams/{id}/token": Row(404, body={}),
    "GET /v1/key": Row(),
    "GET /v1/key/usage": Row(),
    "POST /v1/quote": Row(400, body={}),
    "GET /v1/dashboard/billing/subscription": Row(),
    "GET /v1/dashboard/billing/usage": Row(),
}
"""By method and path; every path of the convention that is not served is a 501 to whom a key lets in."""
UNSERVED = Row(501)
UNSERVED_METHODS = {
    "POST /v1/models/{model}:{method}",
    "POST /v1beta/models/{model}:{method}",
    "DELETE /v1/models/{model}",
}

OPEN: Mapping[str, int] = {
    "/": 200,
    "/console/static/console.css": 200,
    "/console/sign-in": 200,
    "/console/sign-in/corp": 404,
    "/console/sign-in/corp/callback": 404,
    "/console/setup": 200,
    "/console/join": 200,
    "/console/my-key": 200,
    "/openapi.json": 200,
    "/docs": 200,
    "/help": 200,
    "/help/reference/settings": 200,
    "/media/nothing.png": 404,
    "/healthz": 200,
    "/readyz": 200,
}
"""What every caller is answered: nothing of an account is in it. A signed link is its own key."""
BY_ADDRESS = frozenset({"GET /metrics"})
"""Routes for a machine rather than a person: ``tests/server/handlers/test_metrics.py`` asks there."""
NAMED = {
    "{section}/{key}": "routing/max_attempts",
    "{model}": MODEL,
    "{rest}": "x",
    "{provider}": "corp",
    "{number}": "1",
    "{name}": "nothing",
    "{id}": "0" * 16,
}
"""What stands for a path's parameter where no row makes it."""


def expect_admin(access: str, row: Row, usual: int, person: Person) -> int:
    """What that person is answered at a door."""
    status = usual if row.status is None else row.status
    if person.shows == "key":
        return 401
    if access == "anyone":
        return status
    if not person.is_in:
        return 401
    if person.shows == "token":
        return 403 if row.signed else status
    return _expect_member(access, row, status, person)


def _expect_member(needs: Any, row: Row, status: int, person: Person) -> int:
    """The same of somebody who is signed in. No member has the right to read bodies: ``test_body_readers`` has."""
    needs = "administrator" if needs == "body_reader" else needs
    if person.role is None or ROLES.index(person.role) < ROLES.index(needs):
        return 403
    return row.foreign or status if person.account == THEIRS else status


def expect_page(needs: Role, row: Row, person: Person) -> int:
    """What that person is answered at a page: who is not signed in is sent to where that can be done."""
    return _expect_member(needs, row, 200, person) if person.shows == "session" and person.is_in else 303


def expect_public(row: Row, person: Person) -> int:
    """What that person is answered by the public API: a session comes there with the id of a key of ``OURS``."""
    status = row.status or 200
    if person.shows in {"nothing", "token"} or not person.is_in:
        return 401
    if person.shows == "session" and not row.keyless:
        return {THEIRS: 404, OURS: 403 if person.role == "viewer" else status}[person.account]
    return row.foreign or status if person.account == THEIRS else status
