"""!ignore and !unignore: nodes that get no answer."""

from meshai.commands.base import Command, Request
from meshai.errors import CommandError
from meshai.messages import Reply, key_text, node_id, parse_key, parse_node_id


async def ignore(request: Request) -> Reply:
    if not request.argument.strip():
        ignored = await request.orders.ignored()
        return Reply(f"Ignored by command: {', '.join(ignored)}" if ignored else "Nobody is ignored by command.")
    who = _named(request.argument)
    await request.orders.ignore(who)
    return Reply(f"From now on I ignore {who}. !unignore ends it.")


async def unignore(request: Request) -> Reply:
    who = _named(request.argument)
    if await request.orders.unignore(who):
        return Reply(f"I no longer ignore {who}.")
    return Reply(f"{who} was not ignored by command; the settings may list it.")


def _named(argument: str) -> str:
    """A node as it is kept: by id or by public key, never by a name, which anybody may take."""
    word = argument.strip().split(maxsplit=1)[0] if argument.strip() else ""
    try:
        return node_id(parse_node_id(f"!{word.removeprefix('!')}"))
    except ValueError:
        pass
    try:
        return key_text(parse_key(word))
    except ValueError:
        raise CommandError("Name a node by its id, such as !a1b2c3d4, or by its public key.") from None


command = Command(
    "ignore", "I ignore a node, by id or key; alone, whom I do.", ignore, ("!ignore !a1b2c3d4", "!ignore"), admin=True
)
undo = Command("unignore", "I answer a node again.", unignore, ("!unignore !a1b2c3d4",), admin=True)
