"""What the page of settings shows: topics with their sections, and the title of each setting."""

from collections.abc import Mapping

from gateway.frozen import frozen
from gateway.server.console.routes import mark


@frozen
class Topic:
    """A part of the page. ``sections`` are titles by the names of sections in the configuration file."""

    name: str
    title: str
    sections: Mapping[str, str]


TOPICS = (
    Topic("routing", mark("Routing"), {"routing": mark("Retries, failover and balancing")}),
    Topic(
        "money",
        mark("Money and limits"),
        {"billing": mark("Charging and alerts"), "ledger": mark("After a crash"), "rate_limits": mark("Rate limits")},
    ),
    Topic(
        "privacy",
        mark("Records and privacy"),
        {
            "requests": mark("Requests"),
            "bodies": mark("Prompts and answers"),
            "attribution": mark("End users and tags"),
            "safety": mark("Word list"),
        },
    ),
    Topic(
        "answers",
        mark("Streams and cache"),
        {"streams": mark("Resumable streams"), "cache": mark("Answer cache"), "responses": mark("Stored responses")},
    ),
    Topic(
        "media",
        mark("Files and media"),
        {"media": mark("Images"), "videos": mark("Videos"), "files": mark("Files"), "batches": mark("Batches")},
    ),
    Topic("server", mark("Server"), {"server": mark("Address, limits and log"), "egress": mark("Outbound requests")}),
    Topic("cluster", mark("Cluster"), {"cluster": mark("Nodes")}),
    Topic("monitoring", mark("Monitoring"), {"metrics": mark("Metrics"), "tracing": mark("Tracing")}),
)

TITLES: Mapping[str, str] = {
    "server.host": mark("Listen address"),
    "server.port": mark("Port"),
    "server.base_url": mark("Public URL"),
    "server.tls_certificate": mark("TLS certificate"),
    "server.tls_key": mark("TLS private key"),
    "server.drain_timeout_s": mark("Time to finish requests at shutdown (seconds)"),
    "server.shutdown_delay_s": mark("Delay before shutdown (seconds)"),
    "server.keepalive_timeout_s": mark("Idle timeout of client connections (seconds)"),
    "server.max_connections": mark("Client connections"),
    "server.max_connections_per_address": mark("Client connections per IP address"),
    "server.max_body_mb": mark("Largest request body (MB)"),
    "server.max_loaded_mb": mark("Memory for loaded content (MB)"),
    "server.max_upload_mb": mark("Largest upload (MB)"),
    "server.max_file_mb": mark("Largest file in an upload (MB)"),
    "server.log_format": mark("Log format"),
    "server.trusted_proxies": mark("Trusted proxies"),
    "server.local_sign_in": mark("Sign-in with a passphrase"),
    "server.cors_origins": mark("Allowed browser origins (CORS)"),
    "cluster.enabled": mark("Run as a node"),
    "cluster.url": mark("Address of this node"),
    "cluster.insecure": mark("Plain HTTP between nodes"),
    "cluster.journal": mark("Where to record requests before sending"),
    "cluster.orphan_after_s": mark("Settle the credit held by a lost node after (seconds)"),
    "rate_limits.store": mark("Where to count rate limits"),
    "rate_limits.prefix": mark("Prefix on a shared server"),
    "rate_limits.when_down": mark("While the rate-limit server is down"),
    "ledger.on_crash": mark("Cost of requests interrupted by a crash"),
    "billing.unpriced": mark("Models without a price"),
    "billing.require_price": mark("Require a price (deprecated)"),
    "billing.abandoned": mark("Cost if the client disconnects"),
    "billing.burn_rate": mark("Burn-rate alert (factor)"),
    "billing.anomaly_factor": mark("Unusual-spending alert (factor)"),
    "billing.anomaly_usd": mark("Minimum for unusual-spending alerts (USD/hour)"),
    "routing.max_attempts": mark("Attempts per request"),
    "routing.retry_ratio": mark("Maximum share of retries"),
    "routing.failover_after_s": mark("Fail over if a stream is silent for (seconds)"),
    "routing.trip_failures": mark("Open a circuit after this many failures in a row"),
    "routing.trip_ratio": mark("Open a circuit at this share of failures"),
    "routing.cooldown_s": mark("First cooldown (seconds)"),
    "routing.max_cooldown_s": mark("Longest cooldown (seconds)"),
    "routing.warm_up_s": mark("Warm-up after recovery (seconds)"),
    "routing.sync_interval_s": mark("Refresh model lists every (seconds)"),
    "routing.affinity": mark("Keep conversations on one channel"),
    "routing.affinity_s": mark("Keep a conversation on its channel for (seconds)"),
    "routing.balance": mark("Balance channels by"),
    "routing.allow_prefer": mark("Let callers choose the load balancing"),
    "routing.shadow_account": mark("Account that pays for shadow requests"),
    "routing.demo": mark("Built-in demo"),
    "media.link_hours": mark("Image link lifetime (hours)"),
    "media.keep_hours": mark("Keep images for (hours)"),
    "media.max_gb": mark("Disk space for images (GB)"),
    "videos.store": mark("Finished videos"),
    "videos.keep_days": mark("Keep videos for (days)"),
    "videos.max_gb": mark("Disk space for videos (GB)"),
    "videos.deadline_h": mark("Give up on a job after (hours)"),
    "videos.max_open": mark("Unfinished jobs per account"),
    "videos.status_words": mark("Status reported for running jobs"),
    "videos.polls_per_channel": mark("Concurrent polls per channel"),
    "videos.webhook_hosts": mark("Hosts allowed for webhooks"),
    "files.max_mb": mark("Largest stored file (MB)"),
    "files.max_total_mb_per_account": mark("Files per account (MB)"),
    "files.keep_days": mark("Keep files for (days)"),
    "batches.max_active": mark("Concurrent batch requests"),
    "batches.price_multiplier": mark("Batch price multiplier"),
    "responses.keep_days": mark("Keep responses for (days)"),
    "responses.max_total_mb_per_account": mark("Stored responses per account (MB)"),
    "attribution.users": mark("How to store end users"),
    "attribution.names": mark("Store names sent by Open WebUI"),
    "attribution.tags": mark("Stored tags"),
    "attribution.max_values": mark("Values counted separately per day"),
    "safety.words_file": mark("File with forbidden words"),
    "egress.allow": mark("Allowed private networks"),
    "requests.keep_days": mark("Keep request details for (days)"),
    "requests.keep_bodies": mark("Keep prompts and answers"),
    "bodies.keep_days": mark("Keep prompts and answers for (days)"),
    "bodies.max_gb": mark("Disk space (GB)"),
    "bodies.max_kb": mark("Largest kept prompt or answer (KB)"),
    "bodies.redact": mark("What to redact"),
    "bodies.patterns": mark("Custom patterns to redact"),
    "bodies.leave_out": mark("JSON fields to leave out"),
    "bodies.media": mark("Keep images and audio"),
    "streams.keep_s": mark("Keep streams for (seconds)"),
    "streams.max_mb": mark("Largest stream (MB)"),
    "cache.ttl_s": mark("Reuse answers for (seconds)"),
    "cache.request_ttl_s": mark("Longest reuse time that a request may ask for (seconds)"),
    "cache.max_gb": mark("Disk space for answers (GB)"),
    "cache.scope": mark("Which keys share cached answers"),
    "cache.hit_price": mark("Price of a cached answer (share of the full price)"),
    "cache.tools": mark("Cache answers to requests with tools"),
    "metrics.allow": mark("Networks that may read metrics"),
    "tracing.endpoint": mark("OTLP receiver"),
    "tracing.sample_ratio": mark("Share of requests to trace"),
}
"""The title of each setting, by its path."""
