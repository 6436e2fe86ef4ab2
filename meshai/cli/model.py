"""`meshai model`: the files of the models that run on this machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from meshai.errors import WeightsError
from meshai.model import download, weights
from meshai.model.machine import free_memory
from meshai.model.weights import CATALOGUE, GB, MB, LocalModel, Weights

FOLDER = click.option(
    "--models",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the model files, in place of the data folder's `models`.",
)


@click.group(
    epilog="""\b
Examples:
  meshai model list
  meshai model fetch
  meshai model fetch smollm2-135m
  meshai model add /media/usb/my-model.gguf"""
)
def model() -> None:
    """Fetch, list or add the local model's files.

    The bot uses one of them when model.base_url is empty. It needs the engine too, which `meshai
    check` looks for; installing from the source with '.[local]' brings it along.
    """


@model.command(
    epilog="""\b
Examples:
  meshai model fetch
  meshai model fetch smollm2-135m"""
)
@click.argument("name", required=False)
@FOLDER
def fetch(name: str | None, folder: Path | None) -> None:
    """Fetch the model NAME, or the best one that fits into this machine's free memory.

    Stopped half-way, it goes on there when it is run again. The file is checked by its SHA-256.
    """
    wanted = to_fetch(name, free_memory())
    fetch_shown(wanted, folder or weights.models_dir(), Console(highlight=False, soft_wrap=True))


@model.command(name="list", epilog="Example: meshai model list")
@FOLDER
def list_models(folder: Path | None) -> None:
    """Show the models there are, how good they are, and which one fits."""
    folder = folder or weights.models_dir()
    free_bytes = free_memory()
    best = weights.choose(free_bytes)
    console = Console(highlight=False)
    console.print(table_of(weights.local_models(folder), best))
    console.print(Text(f"Files are in {folder}"), soft_wrap=True)
    if best:
        console.print(f"model.embedded: auto takes {best.name} now ({free_bytes / GB:.1f} GB of memory are free).")
    else:
        console.print(f"model.embedded: auto takes none now: {free_bytes / GB:.1f} GB of memory are free.")


@model.command(name="add", epilog="Example: meshai model add /media/usb/my-model.gguf")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@FOLDER
def add_model(path: Path, folder: Path | None) -> None:
    """Put the GGUF file PATH into the models folder, as a link where possible.

    A file of one of the listed models is recognised by its content, whatever its name.
    """
    added = weights.add(path, folder or weights.models_dir())
    click.echo(f"{added.name} is in {added.path.parent}; use it with `embedded: {added.name}` under `model:`")


def to_fetch(name: str | None, free_bytes: int, catalogue: Sequence[Weights] = CATALOGUE) -> Weights:
    """The model that is meant. Raises WeightsError with the names there are."""
    named = {known.name: known for known in catalogue}
    if name is None:
        if best := weights.choose(free_bytes, catalogue):
            return best
        choices = "; ".join(f"{known.name} ({known.verdict})" for known in catalogue)
        raise WeightsError(
            f"no model worth having fits into the {free_bytes / GB:.1f} GB of memory that are free; set model.base_url "
            f"to a model server on your network, or name the model to fetch: {choices}"
        )
    if name not in named:
        raise WeightsError(f"there is no model {name!r} to fetch; there are: {', '.join(named)}")
    return named[name]


def fetch_shown(
    wanted: Weights, folder: Path, console: Console, *, sources: Sequence[download.Source] | None = None
) -> Path:
    """Fetch the file with its progress on `console`. Raises WeightsError."""
    size = f"{wanted.size_bytes / MB:.0f} MB"
    console.print(f"Fetching {wanted.name} ({size}) by {wanted.author}, licence {wanted.licence}")
    try:
        with _progress_on(console) as progress:
            path = download.fetch(wanted, folder, sources=sources, progress=progress)
    except KeyboardInterrupt:
        console.print("Stopped. What has come is kept; run the command again to go on from there.")
        raise
    console.print(Text(f"{wanted.name} is in {path.parent}, whole and checked ({wanted.verdict})"))
    return path


def table_of(models: Sequence[LocalModel], best: Weights | None) -> Table:
    """The models as people choose among them; the one `auto` takes is marked."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Name", no_wrap=True, overflow="fold")
    for heading in ("File", "Memory", "Here"):
        table.add_column(heading, no_wrap=True)
    table.add_column("Quality")
    table.add_column("Licence", no_wrap=True)
    for known in models:
        table.add_row(
            Text(f"{known.name} *" if best and known.name == best.name else known.name),
            f"{known.size_bytes / MB:.0f} MB",
            f"{known.memory_bytes / MB:.0f} MB",
            "yes" if known.is_present else "no",
            known.verdict,
            known.licence,
        )
    return table


@contextmanager
def _progress_on(console: Console) -> Iterator[download.Progress]:
    """A bar in a terminal, a line for each tenth elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, at_work: str) -> None:
            bar.update(task, completed=done, total=total, description=at_work)

        yield show


class _Lines:
    """Progress as a log file can bear it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = ("", -1)

    def __call__(self, done: int, total: int, at_work: str) -> None:
        tenths = 10 * done // total
        if (at_work, tenths) != self._told:
            self._told = (at_work, tenths)
            self._console.print(f"{at_work}: {10 * tenths} % of {total / MB:.0f} MB")
