"""The bot with a pause between texts that is shorter than the settings allow, for `benchmarks.core`.

Its questions come faster than any person's, so it takes nobody for a bot and has no limits.
"""

import asyncio
import logging
import random
import signal
import sys
from pathlib import Path
from typing import Final

from meshai import app
from meshai.clock import ScaledClock
from meshai.config import load
from meshai.loops import NoGuard
from meshai.notify import Notifier

SPEED: Final = 50.0
"""So that what it waits for the air's sake, as for the ack of a question to pass, is next to nothing."""


async def main(settings: Path, gap_s: float) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    logging.basicConfig(level=logging.INFO)
    config = load(settings)
    config = config.model_copy(
        update={
            "replies": config.replies.model_copy(update={"gap_s": gap_s * SPEED}),
            "airtime": config.airtime.model_copy(
                update={"share_percent": 1e6, "answers_per_node_hour": 10**6, "answers_per_hour": 10**6}
            ),
        }
    )
    await app.run(
        config,
        clock=ScaledClock(SPEED),
        rng=random.SystemRandom(),
        stop=stop,
        notifier=Notifier({}),
        loop_guard=NoGuard(),
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
