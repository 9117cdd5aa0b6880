"""``gateway check`` and ``gateway reload``: test and apply the configuration."""
# ruff: noqa: PLC0415 - the parser of the configuration is imported when a command runs.
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import functools

import click

from gateway.cli import admin_client
from gateway.cli.context import CliContext, CliError, Json, load_file_config
from gateway.cli.options import channel_command, exit_unless, running_command
from gateway.cli.output import list_unpriced_models, print_answer, print_reload
from gateway.cli.output_channels import print_report


@click.command(short_help="Reload the configuration file.")
@running_command
def reload(context: CliContext) -> None:
    """Reload the configuration file of the running gateway, and print what changed.

    If the file has a problem, nothing is applied and the command exits with 1. Running requests are not affected.
    SIGHUP does the same and logs the result. Changes of [server], [store], [ledger], [tracing],
    [[sign_in]], [[alert]] and [[sink]] need a restart.

    \b
    Examples:
      gateway reload
      gateway reload --data /var/lib/gateway
    """
    admin_client.require_running(context, "reload")
    report = admin_client.call(context, "POST", "reload", timeout_s=admin_client.PROVIDER_TIMEOUT_S)
    print_answer(context, report, print_reload)


@click.command(short_help="Check the configuration and test all channels.")
@channel_command
def check(context: CliContext) -> None:
    """Check the configuration and test all active channels. Exits with 1 if there is a problem.

    Warns of settings with a former name, of models without a price, of routes that hide a model or have a step without
    a channel, and of channels that map a model to another model.

    The running gateway tests the channels it uses. If none runs, this command tests the channels of the configuration
    file, without changing the data folder.

    \b
    Examples:
      gateway check
      gateway check --config new.toml
    """
    from gateway.config.extras import list_missing_extras

    try:
        file_config = load_file_config(context.config, context.environ)
        problems, renamed = list_missing_extras(file_config.config), file_config.warnings
    except CliError as error:
        problems, renamed = error.message.splitlines(), ()
    if problems:
        report: Json = {"ok": False, "problems": problems, "channels": [], "unpriced": [], "warnings": []}
    else:
        report = {"ok": True, "problems": [], **admin_client.run_without_trace(context, _test)}
        report["warnings"] = [*renamed, *report["warnings"]]
        report["ok"] = all(result["ok"] for result in report["channels"])
    print_answer(context, report, functools.partial(print_report, config=context.config))
    exit_unless(report["ok"])


async def _test(admin: admin_client.AdminClient) -> Json:
    """Test all active channels; return the results, the models without a price, and warnings about routes and maps."""
    from gateway.config.loader import read_shipped_prices
    from gateway.routing.route_warnings import list_map_warnings

    results, unpriced = await admin.test_channels(), list_unpriced_models(await admin.get("models"))
    routes, channels = (await admin.get("routes"))["data"], (await admin.get("channels"))["data"]
    warnings = [warning for route in routes for warning in route["warnings"]]
    maps = ((channel["name"], channel["model_map"]) for channel in channels)
    warnings += list_map_warnings(maps, lambda model: read_shipped_prices().find(model) is not None)
    return {"channels": results, "unpriced": unpriced, "warnings": warnings}
