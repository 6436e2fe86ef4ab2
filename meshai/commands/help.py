"""!help: what the bot can do, in one packet."""

from meshai.characters import beginning
from meshai.commands.base import Command, Request
from meshai.errors import CommandError
from meshai.messages import Reply


async def run(request: Request) -> Reply:
    word = request.argument.split(maxsplit=1)[0].lstrip("!").casefold() if request.argument.strip() else ""
    if not word:
        names = " ".join(f"!{name}" for name in request.commands)
        return Reply(f"Ask me anything directly. Commands: {names}. More: !help ping")
    command = request.commands.get(word)
    if command is None:
        raise CommandError(f"I have no command !{beginning(word, 20)}. Send !help for those I have.")
    example = f" Example: {command.examples[0]}" if command.examples else ""
    return Reply(f"{command.name}: {command.help}{example}")


command = Command("help", "what I can do, or how one command is used.", run, ("!help", "!help ping"))
