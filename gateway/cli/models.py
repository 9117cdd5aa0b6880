"""``gateway models``: lists models and their channels."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from gateway.cli.context import CliContext, Json
from gateway.cli.objects import get_with_models
from gateway.cli.options import ListByDefault, channel_command
from gateway.cli.output import print_answer, print_models
from gateway.domain.model_description import FEATURES, KINDS, MODALITIES


@click.group(cls=ListByDefault)
def models() -> None:
    """List models and the channels that serve them.

    \b
    Examples:
      gateway models
      gateway models list gpt
      gateway models list --kind chat --feature tools --modality image
      gateway models list --min-context 128000
      gateway models --json
    """


@models.command("list")
@click.argument("search", metavar="[TEXT]", required=False)
@click.option("--unpriced", is_flag=True, help="Only models without a price.")
@click.option("--kind", type=click.Choice(KINDS), help="Only models of this kind.")
@click.option(
    "--modality",
    "modalities",
    multiple=True,
    type=click.Choice(MODALITIES),
    help="Only models that read or make this, too.",
)
@click.option(
    "--feature", "features", multiple=True, type=click.Choice(FEATURES), help="Only models with this feature."
)
@click.option(
    "--min-context", type=click.IntRange(min=1), help="Only models with at least this context window, in tokens."
)
@channel_command
def list_models(context: CliContext, search: str | None, *, unpriced: bool, **wanted_properties: Any) -> None:
    """List models, each with its channels, best first. TEXT: only models whose names contain it.

    CONTEXT: tokens of a prompt with its answer. PRICE: dollars per million tokens of input and output; 'other' if the
    model is billed by another unit. A filter leaves out models of which the property is not known.
    """
    listing = get_with_models(context, "models")
    total = len(listing["data"])
    if unpriced:
        listing["data"] = [model for model in listing["data"] if model["price"] is None]
    if search:
        listing["data"] = [model for model in listing["data"] if search.lower() in model["id"].lower()]
    listing["data"] = [model for model in listing["data"] if _fits(model, **wanted_properties)]
    is_filtered = len(listing["data"]) < total
    listing["total"] = len(listing["data"])
    print_answer(context, listing, partial(print_models, is_filtered=is_filtered))


def _fits(
    model: Json, *, kind: str | None, modalities: Sequence[str], features: Sequence[str], min_context: int | None
) -> bool:
    """Return whether a model is known to have the kind and the properties that the options ask for."""
    known_modalities = {*(model["input_modalities"] or ()), *(model["output_modalities"] or ())}
    return (
        kind in {None, model["kind"]}
        and known_modalities.issuperset(modalities)
        and set(model["features"] or ()).issuperset(features)
        and (min_context or 0) <= (model["context_window"] or 0)
    )
