"""!whoami: whom the bot takes the asker for, and how much it remembers."""

from meshai.commands.base import Command, Request
from meshai.messages import Reply, node_id
from meshai.plaintext import one_line_name


async def run(request: Request) -> Reply:
    message, asker = request.message, request.asker
    name = f"{one_line_name(asker.long_name)} " if asker.long_name else ""
    proof = "proved by your key" if message.public_key else "not proved by a key"
    kept = await request.memory.count(message.conversation, message.sender)
    return Reply(f"You are {name}{node_id(message.sender)}, {proof}. I keep {kept} lines of our talk here.")


command = Command("whoami", "who you are to me and how much I remember.", run, ("!whoami",))
