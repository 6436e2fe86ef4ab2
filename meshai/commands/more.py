"""!more: what the last answer had to leave out, without asking the model again."""

from typing import Final

from meshai.commands.base import Command, Request
from meshai.messages import Reply

WORDS: Final = (
    *("more", "go on", "continue", "keep going", "mehr", "weiter", "más", "mas", "sigue", "continúa", "suite", "plus"),
    *("ещё", "еще", "дальше", "продолжай", "ancora", "continua", "mais", "meer", "verder", "więcej", "dalej", "mer"),
    *("περισσότερα", "συνέχισε", "もっと", "続けて", "続き", "继续", "更多", "المزيد", "أكمل"),
)
"""What people say for !more when they have just read that something was cut off."""


def asks_for_more(text: str) -> bool:
    """Whether a whole text is one of those words."""
    return text.casefold().strip(" .!,…") in WORDS


async def run(request: Request) -> Reply:
    rest = await request.memory.rest(request.message)
    return Reply(rest.text, continues=True) if rest else Reply("There is no more to send.")


command = Command("more", "the rest of my last answer, within an hour.", run, ("!more",))
