"""MeshAI answers people on a Meshtastic mesh with a language model and remembers them in SQLite."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("meshai")
except PackageNotFoundError:
    # A source tree on the path, not installed.
    __version__ = "0+unknown"
