"""The pages of models, prices, groups and settings."""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from gateway.domain.model_description import FEATURES, KINDS, MODALITIES
from gateway.server.admin.models import ModelView
from gateway.server.console.page import Data, ask_admin_api

_MAX_SHOWN = 300
_PRICES_SHOWN = 50
_MAX_DIGITS = 9


async def load_models(request: web.Request) -> Data:
    """Load the models that the filters leave. A property that is not known passes no filter."""
    models: Sequence[ModelView] = await ask_admin_api(request, "/models")
    query = request.query
    search_text, price, kind = query.get("find", "").strip().lower(), query.get("price"), query.get("kind")
    modality, feature, least = query.get("modality"), query.get("feature"), _parse_count(query.get("context", ""))
    matches = [
        model
        for model in models
        if search_text in model.id.lower()
        and (price not in {"none", "set"} or (model.price is None) == (price == "none"))
        and (not kind or model.kind == kind)
        and (not modality or modality in (*(model.input_modalities or ()), *(model.output_modalities or ())))
        and (not feature or feature in (model.features or ()))
        and (model.context_window or 0) >= least
    ]
    return {
        "models": matches[:_MAX_SHOWN],
        "found": len(matches),
        "total": len(models),
        "kinds": KINDS,
        "modalities": MODALITIES,
        "features": FEATURES,
        "filtered": any(query.get(name) for name in ("find", "price", "kind", "modality", "feature", "context")),
    }


def _parse_count(text: str) -> int:
    """Return a whole number; 0 if ``text`` is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0


async def load_prices(request: web.Request) -> Data:
    """Load the groups, the configured prices, and the built-in prices."""
    search_text = request.query.get("find", "").strip().lower()
    groups, prices, providers = await asyncio.gather(
        ask_admin_api(request, "/groups"), ask_admin_api(request, "/prices"), ask_admin_api(request, "/providers")
    )
    own_prices = [price for price in prices if price.source != "shipped"]
    shipped_prices = [price for price in prices if price.source == "shipped" and search_text in price.model.lower()]
    return {
        "groups": groups,
        "own": own_prices,
        "shipped": shipped_prices[:_PRICES_SHOWN],
        "found": len(shipped_prices),
        "providers": providers,
    }


async def load_settings(request: web.Request) -> Data:
    """Load all settings with their sources, and the targets of alerts."""
    settings, alerts = await asyncio.gather(ask_admin_api(request, "/settings"), ask_admin_api(request, "/alerts"))
    return {"sections": settings.sections, "targets": alerts.targets, "recent": alerts.recent}
