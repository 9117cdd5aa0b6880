"""The ``completion`` command: scripts that complete commands and options in a shell."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_COMPLETION_VARIABLE = "_GATEWAY_COMPLETE"
"""The environment variable by which click's completion scripts request completions."""


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and options of 'gateway' in SHELL.

    \b
    Add one of these lines to your shell's startup file:
      eval "$(gateway completion bash)"     # ~/.bashrc
      eval "$(gateway completion zsh)"      # ~/.zshrc
      gateway completion fish | source      # ~/.config/fish/config.fish
    """
    completion_class = get_completion_class(shell)
    if completion_class is None:  # ``_SHELLS`` has only shells that click knows
        raise click.UsageError(f"No completion for {shell}")
    click.echo(completion_class(ctx.find_root().command, {}, "gateway", _COMPLETION_VARIABLE).source())
