"""``gateway models``: lists models and their channels."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import click

from gateway.cli.admin_client import CliContext
from gateway.cli.objects import get_with_models
from gateway.cli.options import ListByDefault, channel_command
from gateway.cli.output import print_answer, print_models


@click.group(cls=ListByDefault)
def models() -> None:
    """List models and the channels that serve them.

    \b
    Examples:
      gateway models
      gateway models list gpt
      gateway models --json
    """


@models.command("list")
@click.argument("search", metavar="[TEXT]", required=False)
@click.option("--unpriced", is_flag=True, help="Only models without a price.")
@channel_command
def list_models(context: CliContext, search: str | None, *, unpriced: bool) -> None:
    """List models, each with its channels, best first. TEXT: only models whose names contain it.

    PRICE: dollars per million tokens of input and output; 'other' if the model is billed by another unit.
    """
    listing = get_with_models(context, "models")
    if unpriced:
        listing["data"] = [model for model in listing["data"] if model["price"] is None]
    if search:
        listing["data"] = [model for model in listing["data"] if search.lower() in model["id"].lower()]
    print_answer(context, listing, print_models)
