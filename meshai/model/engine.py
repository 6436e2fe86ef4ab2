"""Whether the engine of the embedded model is here, and how to install it.

Our own name on the package index may be another project's, so nobody is ever told to install by it.
"""

import importlib.metadata
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterable
from typing import Final

from meshai.config import is_service
from meshai.model.server import why_not_importable

PACKAGE: Final = "xllamacpp"


def install_command(*, anew: bool = False, of_service: bool | None = None) -> str:
    """What to type so that this Python, or that of the service, gets the engine, or gets it `anew`."""
    of_service = is_service() if of_service is None else of_service
    if of_service and not anew:
        return "sudo sh systemd/install.sh --local"
    option = " --force-reinstall" if anew else ""
    sudo = "sudo " if of_service else ""
    return f"{sudo}{shlex.quote(sys.executable)} -m pip install{option} {shlex.quote(requirement())}"


def requirement(package: str = PACKAGE, stated: Iterable[str] | None = None) -> str:
    """The version of `package` that our own metadata, or `stated` in its place, asks for; else just its name."""
    if stated is None:
        try:
            stated = importlib.metadata.requires("meshai") or ()
        except importlib.metadata.PackageNotFoundError:
            stated = ()  # run from a checkout
    pinned = (text.partition(";")[0].strip() for text in stated)
    return next((text for text in pinned if re.match(rf"{re.escape(package)}(?![\w.-])", text)), package)


def trouble(package: str = PACKAGE) -> str:
    """Why the embedded model cannot run here, with the remedy; empty when its engine is installed."""
    if importlib.util.find_spec(package) is not None:
        return ""
    missing = ModuleNotFoundError(f"No module named {package!r}")
    return why_not_importable(missing, install=install_command(), reinstall=install_command(anew=True))
