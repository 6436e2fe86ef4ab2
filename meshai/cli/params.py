"""Values of options that more than one sub-command takes."""

import os
import re
from pathlib import Path
from typing import Final

import click

UNITS_S: Final = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def seconds(ctx: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """A time such as 60s, 5m or 1h, in seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no time such as 60s or 5m")
    return float(match[1]) * UNITS_S[match[2]]


def picture(ctx: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """A file that can be written when the work is done."""
    if value is not None and not os.access(value.absolute().parent, os.W_OK):
        raise click.BadParameter(f"{value} cannot be written; is its folder there?")
    return value
