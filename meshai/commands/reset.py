"""!reset: forget what the asker said in this conversation, and the answers."""

from meshai.commands.base import Command, Request
from meshai.messages import Reply


async def run(request: Request) -> Reply:
    gone = await request.memory.forget(request.message)
    if gone is None:
        return Reply("I know your number with a key, and this message proves none: I forget only in encrypted ones.")
    return Reply(f"Forgotten: {gone} lines of our talk here." if gone else "There was nothing to forget here.")


command = Command("reset", "I forget our talk here.", run, ("!reset",))
