"""!memory: what is kept of the asker, and how to have more, less or nothing kept."""

from typing import Final

from meshai.commands.base import Command, Request
from meshai.errors import CommandError
from meshai.memory.consent import Level
from meshai.messages import Reply

MEANING: Final = {
    Level.OFF: "nothing of what you say",
    Level.CHAT: "what was said and a summary, for a while",
    Level.FULL: "what was said, a summary, and facts about you",
}


async def run(request: Request) -> Reply:
    message = request.message
    if not message.is_direct:
        return Reply("What I keep of you is between us: ask me by direct message.")
    word = request.argument.strip().casefold()
    if not word:
        level = await request.memory.level(message)
        kept = await request.memory.count(message.conversation, message.sender) if level is not Level.OFF else 0
        return Reply(
            f"Level {level}: I keep {MEANING[level]}; {kept} lines now. !memory full, chat or off; !reset forgets."
        )
    if word not in list(Level):
        raise CommandError(f"There are the levels full, chat and off, not {word[:20]!r}: !memory full")
    level = Level(word)
    if not await request.memory.choose(message, level):
        return Reply("That needs an encrypted direct message, which proves that you are you.")
    return Reply(
        f"From now on I keep {MEANING[level]}." + (" The rest is forgotten." if level is not Level.FULL else "")
    )


command = Command("memory", "what I keep of you, and how much I may.", run, ("!memory", "!memory full"))
