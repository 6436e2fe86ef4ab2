"""!restart-radio: drop the link to the node, and make a new one."""

from typing import Final

from meshai.commands.base import Command, Request
from meshai.messages import Reply

WAIT_S: Final = 60.0


async def run(request: Request) -> Reply:
    """Answers when the new link is up, over which the answer then goes."""
    began = request.clock.monotonic()
    try:
        async with request.clock.timeout(WAIT_S):
            await request.radio.reconnect()
    except TimeoutError:
        return Reply(f"I dropped the link to my radio, and it took more than {WAIT_S:.0f} s to come back.")
    return Reply(f"The link to my radio is a new one, up again after {request.clock.monotonic() - began:.0f} s.")


command = Command(
    "restart-radio", "I drop the link to my radio and connect anew.", run, ("!restart-radio",), admin=True
)
