"""The process of the embedded model: llama.cpp behind the same HTTP interface as any other server.

A program, not a part of the package: the bot starts this file and nothing of it runs in the bot. It needs only the
standard library and `xllamacpp`. Orders come as one line of JSON on standard input, so that the key is in no list of
processes, with the remedies to name; one line of JSON on standard output tells the address, or what is missing. It
lives until its standard input ends, which happens however the bot ends, kill -9 included.
"""

import json
import os
import platform
import sys
from typing import Any, Final

NICENESS: Final = 10
"""The radio and the bot come first when processors are scarce."""


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    install, reinstall, repair = (orders.pop(name) for name in ("install", "reinstall", "repair"))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Whatever a library prints must not mix with our one line.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.nice(NICENESS)
    # Read when the library is loaded. Threads that spin while they wait starve a machine of few processors.
    os.putenv("OMP_WAIT_POLICY", "passive")
    try:
        server = serve(**orders)
    except ImportError as error:
        answer = {"error": why_not_importable(error, install=install, reinstall=reinstall)}
    except RuntimeError as error:
        answer = {"error": f"{orders['path']} cannot be loaded ({error}); {repair}"}
    else:
        answer = {"url": server.listening_address}
    print(json.dumps(answer), file=answers, flush=True)
    sys.stdin.read()
    # Not an orderly end: nothing is to be saved, and an answer in progress would delay it.
    os._exit(0)


def serve(*, path: str, name: str, key: str, context_tokens: int) -> Any:
    """Load the weights and listen on a free loopback port; the library's own threads do the rest.

    The settings are for small computers: the library's defaults take several times the memory.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {name}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.n_batch, params.n_ubatch = 256, 64
    params.cache_ram_mib = 64
    params.no_extra_bufts = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, processors() - 1)
    params.api_keys = [key]
    params.ui, params.endpoint_slots = False, False
    params.verbosity, params.warmup = 1, False
    params.sleep_idle_seconds = 900
    return xllamacpp.Server(params)


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def why_not_importable(
    error: ImportError,
    *,
    install: str,
    reinstall: str,
    machine: str = platform.machine(),
    is_64_bit: bool = sys.maxsize > 2**32,
) -> str:
    """The remedy for an engine that is missing, by the command `install`, or broken, by `reinstall`."""
    if not is_64_bit:
        return f"the embedded model needs a 64-bit system and this is a 32-bit one ({machine}); set model.base_url"
    if "libgomp.so.1" in str(error):
        return "the embedded model needs the system library libgomp.so.1; install it: sudo apt install libgomp1"
    if isinstance(error, ModuleNotFoundError):
        return f"the engine of the embedded model is not installed; install it: {install}"
    return f"the engine of the embedded model cannot be started ({error}); install it anew: {reinstall}"


if __name__ == "__main__":
    main()
