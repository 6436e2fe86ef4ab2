"""!status: is the bot well."""

from meshai.commands.base import Command, Request
from meshai.messages import Reply
from meshai.status import Status


async def run(request: Request) -> Reply:
    status = request.status()
    airtime = status.airtime
    parts = [
        f"up {duration(status.uptime_s)}",
        status.modem,
        _model(status),
        f"{status.answered} answered",
        f"{status.waiting} packet{'' if status.waiting == 1 else 's'} waiting",
        f"airtime {airtime.spent_s:.0f} s spent, {airtime.left_s:.0f} s left this hour" if status.modem else "",
    ]
    return Reply(", ".join(filter(None, parts)))


def _model(status: Status) -> str:
    if status.model_trouble:
        return f"model out of order: {status.model_trouble}"
    return f"model {status.model}" if status.model else "no language model"


def duration(seconds: float) -> str:
    """A length of time in its two largest units: 3 d 4 h, 5 min 6 s."""
    total = int(seconds)
    units = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)]
    values = []
    for unit, size in units:
        count, total = divmod(total, size)
        values.append((count, unit))
    first = next((index for index, (count, _) in enumerate(values) if count), len(values) - 1)
    return " ".join(f"{count} {unit}" for count, unit in values[first : first + 2] if count or unit == "s")


command = Command("status", "how long I run, with which model, how busy.", run, ("!status",))
