"""How a conversation is written in a row: its kind and its number."""

from meshai.messages import Channel, Conversation, Direct


def key(conversation: Conversation) -> tuple[str, int]:
    """The (kind, number) columns of a conversation."""
    match conversation:
        case Direct(node):
            return "direct", node
        case Channel(index):
            return "channel", index


def conversation(kind: str, number: int) -> Conversation:
    """The conversation of a row's (kind, number)."""
    return Direct(number) if kind == "direct" else Channel(number)
