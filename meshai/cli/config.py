"""`meshai config`: the settings in effect, and what could be set."""

import json

import click

from meshai import app
from meshai.cli import ConfigSource
from meshai.config import Config, database_path, effective, example


@click.command(
    epilog="""\b
Examples:
  meshai config
  meshai config --example > config.yaml
  meshai --config /etc/meshai/config.yaml config"""
)
@click.option("--example", "wants_example", is_flag=True, help="Print a settings file of all keys with their defaults.")
@click.option("--schema", "wants_schema", is_flag=True, help="Print the JSON schema of the file, for editors.")
@click.pass_obj
def config(source: ConfigSource, *, wants_example: bool, wants_schema: bool) -> None:
    """Show the settings in effect and the file they come from, without secrets."""
    if wants_example:
        click.echo(example(), nl=False)
    elif wants_schema:
        click.echo(json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False))
    else:
        settings = source.checked(app.unusable)
        click.echo(f"# from {source.file or 'no file: all settings are the defaults'}")
        click.echo(f"# database: {database_path(settings)}")
        click.echo(effective(settings), nl=False)
