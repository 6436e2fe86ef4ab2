"""Disk space of a fresh installation, base and with the local model's engine (its weights apart).

    python -m benchmarks.install [--quick] [--json FILE]

Installs into temporary environments with pip, so it wants the network; `--quick` leaves out `[local]`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from rich.progress import Progress

from benchmarks.report import Row, options, show

ROOT = Path(__file__).parents[1]


def installed_mb(folder: Path, requirement: str) -> float:
    """Size of a new environment with `requirement` in it, beyond that of an empty one, in MB."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    before = size_mb(folder)
    subprocess.run([python, "-m", "pip", "install", "-qq", requirement], check=True, cwd=ROOT)
    return size_mb(folder) - before


def size_mb(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e6


def measure(*, is_quick: bool) -> list[Row]:
    rows = []
    kinds = {"base": "."} if is_quick else {"base": ".", "with [local]": ".[local]"}
    with Progress() as progress:
        for what, requirement in progress.track(kinds.items(), description="installing"):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(Row(f"installed, {what}", installed_mb(Path(folder), requirement), "MB"))
    return rows


if __name__ == "__main__":
    chosen = options(__doc__ or "")
    show("MeshAI installation", measure(is_quick=chosen.quick), chosen.json)
