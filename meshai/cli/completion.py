"""`meshai completion`: the script that teaches a shell our commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command(
    epilog="""\b
Example, for this session:
  eval "$(meshai completion bash)"
For every session:
  meshai completion bash > ~/.local/share/bash-completion/completions/meshai
  meshai completion fish > ~/.config/fish/completions/meshai.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choices are those that click knows
    click.echo(kind(ctx.find_root().command, {}, "meshai", "_MESHAI_COMPLETE").source())
