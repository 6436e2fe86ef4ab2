"""!quiet: answer nothing but orders for a while."""

import re
from typing import Final

from meshai.commands.base import Command, Request, duration
from meshai.errors import CommandError
from meshai.messages import Reply
from meshai.quiet import MOST_ORDERED_S

UNITS: Final = {"m": 60, "min": 60, "h": 3600, "d": 86_400}
_ONE: Final = re.compile(r"([0-9]{1,5})\s*(min|m|h|d)\s*")


async def run(request: Request) -> Reply:
    wanted = request.argument.strip().casefold()
    if not wanted:
        left_s = await request.orders.quiet_left_s()
        return Reply(f"Quiet for {duration(left_s)} more." if left_s else "Not quiet. !quiet 2h makes me so.")
    if wanted == "off":
        await request.orders.be_quiet(0)
        return Reply("No longer quiet.")
    for_s = seconds(wanted)
    if not 0 < for_s <= MOST_ORDERED_S:
        raise CommandError(f"Say for how long, at most {duration(MOST_ORDERED_S)}: !quiet 2h, !quiet 30min, !quiet off")
    await request.orders.be_quiet(for_s)
    return Reply(f"Quiet for {duration(for_s)}; orders of yours still work. !quiet off ends it.")


def seconds(text: str) -> int:
    """A length of time such as `2h`, `1 d 12 h` or `90min` in seconds; 0 for anything else."""
    parts = list(_ONE.finditer(text))
    if "".join(part[0] for part in parts) != text:
        return 0
    return sum(int(part[1]) * UNITS[part[2]] for part in parts)


command = Command(
    "quiet",
    "I answer nothing but orders for so long, or until off.",
    run,
    ("!quiet 2h", "!quiet off", "!quiet"),
    admin=True,
)
