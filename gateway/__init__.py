"""A self-hosted gateway for AI models: the OpenAI and Anthropic APIs in front of many providers.

One request:  server.middlewares (request id, errors, key, body, quota: billing reserves) -> server.handlers.inference
              -> proxy.failover -> routing.load_balancer picks a channel -> formats translate
              -> upstream sends -> proxy.stream forwards events -> billing.settlement charges and records.

Packages, lowest first; a package imports only from lower ones (``tests/architecture/test_layers.py``):

    domain     data types and arithmetic            pure: no async, clock, randomness or I/O
    formats    OpenAI, Anthropic, Gemini, vendors   pure
    providers  one file per vendor                  pure
    storage    repositories in a database, files    upstream   HTTP client for providers
    routing    channels, models, load balancing     billing    quotas, balances, rate limits, ledger
    auth       API keys, members, sessions          proxy      attempts, failover, streaming
    media      images, audio, kept files            videos     durable video jobs, webhooks
    batches    requests of a file, sent once        observability  metrics, traces, process
    config     files, console settings, reload      alerts     notices of problems, and their delivery
    sinks      rows and bodies delivered elsewhere  demo       built-in provider for a first try
    server     aiohttp application                  cluster    several gateways on one PostgreSQL
    services   opens all of it at start             doctor     checks of an installation
    cli        commands

``errors``, ``wording`` and ``parsing`` are below all packages; ``app`` builds the application, ``serve`` runs it.

Where is the rate limit?  ``domain/rate_limit.py`` is the arithmetic, ``billing/rate_limiter.py`` holds the buckets of
all keys and accounts, ``billing/quota.py`` checks them before a request is sent. Several gateways share one limiter:
``cluster/limits/limiter.py``, for channels through ``cluster/limits/channels.py``.

What is a credit lease, and what happens when one of several gateways dies?  See ``cluster/__init__.py``. A single
gateway imports nothing from that package.

How do I add a provider?  Add a file to ``providers/`` that lists the provider's endpoints and the API formats that they
speak; ``providers/registry.py`` finds it. A new API format needs parsers and serializers in ``formats/``: a package in
``formats/chat/``, or a file in the package of its modality.

What happens when the client disconnects?  The request's handler is cancelled, ``proxy/failover.py`` closes the
provider's connection, and ``billing/settlement.py`` charges as the setting ``billing.abandoned`` says. With "drain",
``proxy/drain.py`` first reads the answer to its end.

The first byte sent to the client is the point of no return: before it an error is an exception and another channel may
be tried; after it the stream ends with one error event.
"""

__version__ = "0.10.0"
