"""Whether files can be made where settings and databases are to be."""

import os
import tempfile
from pathlib import Path


def existing_folder(path: Path) -> Path:
    """The folder of `path`, or the nearest around it that is there."""
    return next((folder for folder in path.absolute().parents if os.path.exists(folder)), path)


def why_not_writable(path: Path) -> str:
    """Why no file can be made at `path`, nor the folders on the way to it; empty when it can.

    Tried, for permissions alone tell root nothing of file systems like /proc, and leaves nothing behind.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=existing_folder(path), prefix=".meshai-"):
            return ""
    except OSError as error:
        return error.strerror or str(error)
