"""One self-hosted gateway for AI models: the map of the house.

Imports go down, or stay inside their own room. Never up, never sideways (``tests/architecture`` says so)::

    6  app.py  books.py  cinema.py  lobby.py  ward.py  layers.py  settings.py  reload.py  cli.py  …    the roof
    5  web/        jobs/      demo/    doors: HTTP in | clock in | the built-in upstream for trying things out
    4  flow/                           the rooms a request walks through (async; knows no aiohttp.web)
    3  store/      upstream/           the cellar (SQLAlchemy Core) | the only way out (sockets to providers)
    2  providers/                      one vendor, one file           }
    1  dialects/                       wire languages, sans-IO        }  pure: no clock, no dice, no I/O, no async
    0  domain/                         nouns, ports, arithmetic       }

A request walks through seven rooms: authenticate (``auth/api_keys.py``), read the call (``dialects``), route, admit,
relay, settle, and the log on the way out. Three parcels ride with it, each with one writer: ``Caller``, ``Call``,
``Grant``. The first byte to the caller is the line of no return: before it a fault is an exception, and another
channel may do better; after it the relay itself writes one error event and ends the stream.

Callers and providers need not speak one language. Where they do, bytes pass (``formats/stream.py``); where they do not,
each side's language is read into the hub and written from it (``formats/chat.py``, ``formats/registry.py``), so that a
new language is a reader and a writer, and a new vendor a file in ``providers/`` that names the languages it speaks.

A form's files wait in nameless files of the data folder and are sent on from there (``domain/upload.py``). Pictures are
had by asking a painter what to ask next (``formats/image_backend.py``), whoever paints, and given to the caller in the
form it wants: as base64, or as a signed link to the media store (``media/images.py``, ``media/signed_links.py``).
Addresses that providers name are fetched through the egress guard alone (``upstream/safe_fetch.py``).

A call for a video becomes a job (``domain/video.py``): on record with its money before a provider is asked
(``videos/submit.py``), looked at when it is due until its provider says how it ended (``videos/poll_worker.py``,
``videos/tracker.py``), and ended in one commit with its charge (``videos/jobs.py``). What providers are asked, and what
they mean, is a filmmaker's business (``formats/video_backend.py``). Whoever is to hear of the end is told by webhook
(``videos/webhook_worker.py``); a call that names itself is made once (``proxy/idempotency.py``).

The admin API is one table of doors (``server/admin/operation.py``): each says where it is, who is let in, what it takes
and what it answers, and from that routes, rights and the OpenAPI document are made. Who stands there is found by
``server/auth.py``: the bearer of a token, or a member by its session (``auth/sessions.py``). The console's pages ask
those doors in the same process and show what they answer; their scripts call them for every change. Whoever changes
something is on record in the commit of the change (``domain/audit_log.py``).

Which channel takes a call is decided when it is made, attempt by attempt: the catalogue knows who offers the model
(``routing/model_catalog.py``), the switchboard how every channel stands (``routing/load_balancer.py``,
``domain/circuit_breaker.py``), and ``routing/selection.py`` chooses.

What is done for every event of a stream is the hot path, and short: the relay's own connection takes a piece off the
wire (``upstream/connection.py``; which chunks it is, ``upstream/response_parser.py``), the gate looks at it, the outlet
writes it on as it lies (``proxy/stream.py``, ``server/stream_response.py``). No task, no future, no timer: deadlines
are looked through by one timer (``deadlines.py``). What the relay's connections cannot send goes by aiohttp's client
(``upstream/client.py``).
Calls of the public API go past aiohttp's routing (``server/protocol.py``) and are answered with heads of our own
(``server/responses.py``). What a call costs is measured beside nginx by ``make bench``;
``tests/bench/test_call_steps.py`` counts its steps. Pages of other origins may call it if the operator names them
(``server/cors.py``); what the convention has besides is refused in one place (``server/unserved_paths.py``).

A room is handed its own part of the configuration; nothing below the roof reads the environment or a global.
"""

__version__ = "0.8.0"
