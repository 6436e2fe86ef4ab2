"""A window into the running bot: a Unix socket beside its database that shows one document to whoever may look.

The socket is its owner's alone from the moment it is there. What a dead process left is replaced; anything else of
that name is left alone, and there is no window then. Whoever connects is given the document and shown out: nothing is
read, only `MOST_CLIENTS` are served at a time, each for `SERVE_S` at most, and no fault of theirs, of the disk, or of
what is shown does more than end one look. Times here are the machine's: a client is no part of the mesh.
"""

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from meshai.config import command
from meshai.errors import MeshAIError, NotRunning, WindowError

log = logging.getLogger(__name__)

MOST_CLIENTS: Final = 4
MOST_IN_LINE: Final = 32
"""Clients that may wait to be let in."""
SERVE_S: Final = 5.0
LOOK_S: Final = 10.0
"""How long a client waits; longer than it may take, with others before it."""
PAUSE_S: Final = 1.0
"""Before the next client, when one could not be let in for want of files."""
MOST_BYTES: Final = 1_000_000
MOST_PATH_BYTES: Final = 107
"""Linux has room for so much in `sun_path`, and a zero."""


def window_of(database: Path) -> Path:
    """Where the bot that uses this database shows itself."""
    return database.with_name(f"{database.name}.sock")


async def show(path: Path, document: Callable[[], Awaitable[bytes]]) -> None:
    """Show what `document` returns to each who looks, until cancelled. Without a window, say so and end."""
    try:
        listener = _listener(path)
    except OSError as error:
        log.warning("`%s status` will see nothing: cannot make %s: %s", command(), path, error.strerror or error)
        return
    try:
        ours = _identity(path)
        await _serve(listener, document)
    finally:
        listener.close()
        _remove(path, ours)


def _listener(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        reason = f"a socket's path may have {MOST_PATH_BYTES} bytes at most; set storage.path to a shorter one"
        raise OSError(errno.ENAMETOOLONG, reason)
    _make_way(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        # Before it has a name: Linux gives the name the socket's own mode.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen(MOST_IN_LINE)
    except BaseException:
        listener.close()
        raise
    return listener


def _make_way(path: Path) -> None:
    """Remove the socket of a process that is no more."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, "something else is there; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another program shows itself there")


def _remove(path: Path, ours: tuple[int, int]) -> None:
    with suppress(OSError):
        if _identity(path) == ours:
            path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


async def _serve(listener: socket.socket, document: Callable[[], Awaitable[bytes]]) -> None:
    room = asyncio.Semaphore(MOST_CLIENTS)
    async with asyncio.TaskGroup() as clients:
        while True:
            await room.acquire()
            client = await _next(listener)

            def gone(_: asyncio.Task[None], client: socket.socket = client) -> None:
                client.close()
                room.release()

            clients.create_task(_answer(client, document), name="status for a client").add_done_callback(gone)


async def _next(listener: socket.socket) -> socket.socket:
    """The next client. Nothing is awaited once it is let in, so that it cannot be lost."""
    loop = asyncio.get_running_loop()
    while True:
        waiting = asyncio.Event()
        loop.add_reader(listener, waiting.set)
        try:
            await waiting.wait()
        finally:
            loop.remove_reader(listener)
        try:
            client, _ = listener.accept()
        except OSError as error:
            log.debug("nobody could be let in: %s", error)
            await asyncio.sleep(PAUSE_S)
        else:
            client.setblocking(False)
            return client


async def _answer(client: socket.socket, document: Callable[[], Awaitable[bytes]]) -> None:
    try:
        async with asyncio.timeout(SERVE_S):
            await asyncio.get_running_loop().sock_sendall(client, await document())
    except (OSError, MeshAIError) as error:  # TimeoutError is an OSError
        log.debug("somebody looked and did not see: %r", error)
    except Exception:
        log.exception("somebody looked and did not see by a fault of ours")


def look(path: Path, *, within_s: float = LOOK_S) -> bytes:
    """What the bot shows there. Blocks. Raises WindowError; NotRunning when no bot does."""
    seen = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as window:
            window.settimeout(within_s)
            window.connect(str(path))
            while len(seen) <= MOST_BYTES and (more := window.recv(65_536)):
                seen += more
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise NotRunning("the bot is not running") from error
    except PermissionError as error:
        raise WindowError(f"the bot runs as another user, who alone may look at {path}") from error
    except BlockingIOError as error:
        raise WindowError("too many look at the bot at once; try again in a moment") from error
    except OSError as error:
        raise WindowError(f"the bot shows nothing at {path}: {error}") from error
    if not seen:
        raise WindowError("the bot gave no answer; it may be stopping, or its log tells why")
    return bytes(seen)
