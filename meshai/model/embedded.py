"""A language model on this machine: a process of its own, asked through the same client as any other server.

One task starts the process, waits for its address, and starts it again when it ends. A question waits for the
process as long as its asker would wait for the answer; when the process ends under it, it is asked once more.
What only the operator can mend (no weights, no memory, no engine) is told at once, and looked at again now and then.
"""

import asyncio
import json
import logging
import re
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from meshai.clock import Clock
from meshai.config import ModelSettings
from meshai.errors import ModelTimeout, ModelUnavailable, WeightsError
from meshai.model import engine, server
from meshai.model.base import ChatMessage, Completion
from meshai.model.machine import free_memory
from meshai.model.openai import OpenAIModel
from meshai.model.weights import CATALOGUE, LocalModel, Weights, choose, models_dir, repair, select

log = logging.getLogger(__name__)

LOAD_S: Final = 300.0
"""A gigabyte from a slow memory card takes a minute."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
HEALTHY_S: Final = 120.0
"""A process that lived this long is started again without a longer pause."""
PATIENT_STARTS: Final = 3
"""After so many failed starts in a row questions no longer wait for the next one."""
GRACE_S: Final = 0.5
"""How long a process may take to notice that it is not needed; one that loads weights does not notice."""
TEMPERATURE: Final = 0.0
"""Small models answer best, and always alike, with the likeliest words."""
_PROGRAM: Final = (sys.executable, "-P", server.__file__)


class EmbeddedModel:
    """The model that `model.embedded` names, from `folder`."""

    def __init__(
        self,
        settings: ModelSettings,
        *,
        clock: Clock,
        folder: Path | None = None,
        catalogue: Sequence[Weights] = CATALOGUE,
        memory: Callable[[], int] = free_memory,
        program: Sequence[str] = _PROGRAM,
        engine_trouble: Callable[[], str] = engine.trouble,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._folder = models_dir() if folder is None else folder
        self._catalogue = catalogue
        self._memory = memory
        self._program = program
        self._engine_trouble = engine_trouble
        self._model: LocalModel | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[OpenAIModel] | None = None
        self._questions: set[asyncio.Task[Completion]] = set()
        self._trouble = ""
        """Why there is no process now."""

    @property
    def name(self) -> str:
        if self._model:
            return self._model.name
        if self._settings.embedded != "auto":
            return self._settings.embedded
        best = choose(self._memory(), self._catalogue)
        return best.name if best else "no embedded model fits"

    @property
    def trouble(self) -> str:
        # Without the remedy, and without what a process said at its end, which may be about anything.
        return re.split("; | \\(", self._trouble)[0]

    @property
    def at_once(self) -> int:
        return 1

    @property
    def can_summarize(self) -> bool:
        return False

    @property
    def context_tokens(self) -> int:
        most = self._model.context_tokens if self._model else None
        return min(self._settings.context_tokens, most or self._settings.context_tokens)

    async def __aenter__(self) -> Self:
        self._renew()
        self._keeper = asyncio.create_task(self._keep_running(), name="embedded model")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._fail(ModelUnavailable(f"{self.name} is stopped"))

    async def complete(self, messages: Sequence[ChatMessage], *, max_tokens: int) -> Completion:
        timeout_s = self._settings.timeout_s
        try:
            async with self._clock.timeout(timeout_s):
                completion = await self._ask(messages, max_tokens) or await self._ask(messages, max_tokens)
        except TimeoutError:
            why = self._trouble or "raise model.timeout_s, or set model.base_url to a faster server"
            if self._ready and not self._ready.done():
                why = self._trouble or "it is still starting"
            raise ModelTimeout(f"{self.name}: no answer within {timeout_s:g} s; {why}") from None
        if completion is None:
            raise ModelUnavailable(f"{self.name}: its process ended twice during one question; see the log")
        return completion

    async def _ask(self, messages: Sequence[ChatMessage], max_tokens: int) -> Completion | None:
        """Ask the process, when there is one; None when it ended meanwhile."""
        if self._ready is None:
            raise RuntimeError("the model is asked outside its `async with` block")
        client = await asyncio.shield(self._ready)
        question = asyncio.create_task(client.complete(messages, max_tokens=max_tokens))
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)
        try:
            return await question
        except asyncio.CancelledError:
            asker = asyncio.current_task()
            if asker and asker.cancelling():
                raise
            return None

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        bad_starts = 0
        while True:
            served_s = 0.0
            try:
                # First of all: without the engine, weights of a gigabyte would be fetched for nothing.
                if lacking := self._engine_trouble():
                    raise ModelUnavailable(lacking)
                self._model = select(
                    self._settings.embedded, self._folder, free_bytes=self._memory(), catalogue=self._catalogue
                )
                why, served_s = await self._run(self._model)
                is_hopeless = False
            except (WeightsError, ModelUnavailable) as error:
                why, is_hopeless = str(error), True
            except OSError as error:
                why, is_hopeless = f"no process could be started: {error.strerror or error}", True
            if why != self._trouble:
                log.warning("no embedded model: %s", why)
            self._trouble = why
            bad_starts = 0 if served_s else bad_starts + 1
            if is_hopeless or bad_starts >= PATIENT_STARTS:
                self._fail(ModelUnavailable(why))
            if served_s > HEALTHY_S:
                pause_s = FIRST_PAUSE_S
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._renew()

    def _renew(self) -> "asyncio.Future[OpenAIModel]":
        """What questions wait for from now on."""
        if self._ready is None or self._ready.done():
            self._ready = asyncio.get_running_loop().create_future()
        return self._ready

    def _fail(self, error: ModelUnavailable) -> None:
        """Let questions fail at once."""
        ready = self._renew()
        ready.set_exception(error)
        ready.exception()  # or asyncio complains when nobody asks

    async def _run(self, model: LocalModel) -> tuple[str, float]:
        """Run the process until it ends; returns why it did, and the seconds it served.

        Raises ModelUnavailable for what it lacks.
        """
        served_s = 0.0
        # Ctrl-C in a terminal is for the bot, which then ends this process itself.
        process = await asyncio.create_subprocess_exec(
            *self._program, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        last_words = asyncio.create_task(_last_words(process), name="last words of the embedded model")
        try:
            key = secrets.token_urlsafe(32)
            address = await self._address(process, model, key)
            if address:
                served_s = await self._serve(process, model, address, key)
        finally:
            ending = asyncio.create_task(_end(process, last_words), name="end of the embedded model")
            try:
                why = await asyncio.shield(ending)
            except asyncio.CancelledError:
                await ending
                raise
        return f"the process of {model.name} ended: {why}", served_s

    async def _address(self, process: Process, model: LocalModel, key: str) -> str | None:
        """Give the process its orders and wait until it listens; None when it ends or takes too long."""
        orders = {
            "path": str(model.path),
            "name": model.name,
            "key": key,
            "context_tokens": self.context_tokens,
            "install": engine.install_command(),
            "reinstall": engine.install_command(anew=True),
            "repair": repair(model, self._folder, self._catalogue),
        }
        stdin, stdout = cast(asyncio.StreamWriter, process.stdin), cast(asyncio.StreamReader, process.stdout)
        try:
            async with self._clock.timeout(LOAD_S):
                stdin.write(json.dumps(orders).encode() + b"\n")
                await stdin.drain()
                answer = json.loads(await stdout.readline() or b"null")
        except TimeoutError:
            process.kill()
            return None
        except (ConnectionError, ValueError):
            return None
        match answer:
            case {"url": str(url)}:
                return url
            case {"error": str(why)}:
                raise ModelUnavailable(why)
            case _:
                return None

    async def _serve(self, process: Process, model: LocalModel, address: str, key: str) -> float:
        """Let questions through until the process ends; returns after how many seconds it did."""
        client = OpenAIModel(
            self._settings,
            clock=self._clock,
            base_url=f"{address}/v1",
            api_key=key,
            name=model.name,
            temperature=TEMPERATURE,
        )
        async with client:
            self._trouble = ""
            started = self._clock.monotonic()
            log.info("embedded model %s is ready", model.name)
            self._renew().set_result(client)
            try:
                await process.wait()
            finally:
                self._renew()
                for question in self._questions:
                    question.cancel()
                await asyncio.gather(*self._questions, return_exceptions=True)
        return self._clock.monotonic() - started


async def _end(process: Process, last_words: asyncio.Task[str]) -> str:
    """End the process, if it has not ended; returns why it did."""
    # Not killed at once: it may have ended a moment ago, and asyncio loses the code of a process that is killed
    # before it is noticed to have ended.
    cast(asyncio.StreamWriter, process.stdin).close()
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
    why, said = _why_ended(await process.wait()), await last_words
    return f"{why} ({said})" if said else why


async def _last_words(process: Process) -> str:
    """Read what the process complains of until it ends, and keep the last line."""
    stderr = cast(asyncio.StreamReader, process.stderr)
    last = b""
    while piece := await stderr.read(65_536):
        log.debug("embedded model: %s", piece.decode(errors="replace").rstrip())
        last = (last + piece)[-4096:]
    lines = last.decode(errors="replace").split("\n")
    words = next((line for line in reversed(lines) if line.strip()), "")
    return "".join(c if c.isprintable() else " " for c in words).strip()[:200]


def _why_ended(code: int) -> str:
    match -code:
        case signal.SIGKILL:
            return "it was killed, most likely because memory ran out"
        case signal.SIGILL:
            return "this processor lacks instructions that the engine needs; set model.base_url to a model server"
        case number if number > 0:
            return f"signal {number}"
        case _:
            return f"exit code {code}"
