import hashlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from meshai.cli import main
from meshai.cli.model import fetch_shown, table_of, to_fetch
from meshai.errors import WeightsError
from meshai.model.download import Source
from meshai.model.weights import QWEN_CODER, SMOLLM2, Weights, choose, local_models

CONTENT = b"GGUF" + bytes(range(256)) * 4000
TINY: Weights = replace(
    SMOLLM2, name="tiny", file="tiny.gguf", size_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()
)


def meshai(*arguments: object, columns: int = 200) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["model", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


class Slow:
    """Gives the file in small pieces, and stops when told to."""

    name = "test source"
    extra_bytes = 0

    def __init__(self, stop_at: int | None = None) -> None:
        self._stop_at = stop_at

    def read(self, offset: int, on_its_way: Callable[[int], None]) -> Iterator[bytes]:
        for start in range(offset, len(CONTENT), 10_000):
            if self._stop_at is not None and start >= self._stop_at:
                raise KeyboardInterrupt
            yield CONTENT[start : start + 10_000]

    def clean(self) -> None:
        pass


def plain_console() -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, width=200, force_terminal=False), written


def test_the_list_tells_what_one_needs_to_choose(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    code, text = meshai("list", "--models", tmp_path)
    assert code == 0
    for known in (QWEN_CODER, SMOLLM2):
        row = next(line for line in text.splitlines() if line.startswith(known.name))
        assert f"{known.size_bytes // 10**6} MB" in row
        assert re.search(r"\bno\b", row)
        assert known.licence in row
        assert known.verdict in row
    assert re.search(r"^mine .* yes ", text, re.MULTILINE)
    assert f"Files are in {tmp_path}" in text
    assert "model.embedded: auto takes" in text


def test_the_list_stays_readable_in_a_narrow_terminal(tmp_path: Path) -> None:
    _, text = meshai("list", "--models", tmp_path, columns=80)
    assert "smollm2-135m" in text
    assert "…" not in text


@pytest.mark.parametrize(("free", "marked"), [(2_000_000_000, ["qwen2.5-coder-1.5b *"]), (500_000_000, [])])
def test_the_list_marks_what_auto_takes(tmp_path: Path, free: int, marked: list[str]) -> None:
    console, written = plain_console()
    console.print(table_of(local_models(tmp_path), choose(free)))
    assert re.findall(r"^\S+ \*", written.getvalue(), re.MULTILINE) == marked


def test_a_file_is_added_and_can_be_listed(tmp_path: Path) -> None:
    source, folder = tmp_path / "My Model.gguf", tmp_path / "models"
    source.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(16))
    code, text = meshai("add", source, "--models", folder)
    assert (code, text) == (0, f"my-model is in {folder}; use it with `embedded: my-model` under `model:`\n")
    assert re.search(r"^my-model .* yes ", meshai("list", "--models", folder)[1], re.MULTILINE)


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "photo.gguf"
    source.write_bytes(b"\xff\xd8\xff")
    code, text = meshai("add", source, "--models", tmp_path)
    assert code == 1
    assert text.startswith(f"{source} is no GGUF file that we know: it does not begin as one; models come in")
    assert text.count("\n") == 1
    assert meshai("add", tmp_path / "missing.gguf")[0] == 2


def test_an_unknown_name_is_answered_with_the_known(tmp_path: Path) -> None:
    code, text = meshai("fetch", "gpt-9", "--models", tmp_path)
    assert code == 1
    assert text == "there is no model 'gpt-9' to fetch; there are: qwen2.5-coder-1.5b, smollm2-135m\n"


def test_without_a_name_the_best_that_fits_is_meant() -> None:
    assert to_fetch(None, 2_000_000_000) == QWEN_CODER
    assert to_fetch("smollm2-135m", 0) == SMOLLM2
    with pytest.raises(
        WeightsError, match=r"fits into the 0\.4 GB .* set model\.base_url .*smollm2-135m \(for tests only"
    ):
        to_fetch(None, 400_000_000)


def test_a_fetch_tells_licence_progress_and_verdict(tmp_path: Path) -> None:
    console, written = plain_console()
    path = fetch_shown(TINY, tmp_path, console, sources=[Slow()])
    assert path.read_bytes() == CONTENT
    lines = written.getvalue().splitlines()
    assert lines[0] == f"Fetching tiny (1 MB) by {TINY.author}, licence Apache-2.0"
    assert lines[1:12] == [f"test source: {percent} % of 1 MB" for percent in range(0, 101, 10)]
    assert lines[-2] == "check of SHA-256: 100 % of 1 MB"
    assert lines[-1] == f"tiny is in {tmp_path}, whole and checked ({TINY.verdict})"


def test_a_stopped_fetch_says_that_nothing_is_lost(tmp_path: Path) -> None:
    console, written = plain_console()
    with pytest.raises(KeyboardInterrupt):
        fetch_shown(TINY, tmp_path, console, sources=[Slow(stop_at=500_000)])
    assert "What has come is kept; run the command again" in written.getvalue()
    sources: list[Source] = [Slow()]
    assert fetch_shown(TINY, tmp_path, console, sources=sources).read_bytes() == CONTENT


def test_in_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    written = io.StringIO()
    fetch_shown(TINY, tmp_path, Console(file=written, width=100, force_terminal=True), sources=[Slow()])
    assert "━" in written.getvalue()
    assert "check of SHA-256" in written.getvalue()
    assert f"{TINY.name} is in" in written.getvalue()


@pytest.mark.slow
def test_the_real_command_fetches_and_checks(real_models: Path) -> None:
    code, text = meshai("fetch", "smollm2-135m", "--models", real_models)
    assert code == 0
    assert "licence Apache-2.0" in text
    assert "whole and checked (for tests only" in text
    assert re.search(r"^smollm2-135m .* yes ", meshai("list", "--models", real_models)[1], re.MULTILINE)


@pytest.mark.parametrize("command", [[], ["fetch"], ["list"], ["add"]])
def test_every_help_has_an_example(command: list[str]) -> None:
    code, text = meshai(*command, "--help")
    assert code == 0
    assert "meshai model" in text[text.index("Example") :]
