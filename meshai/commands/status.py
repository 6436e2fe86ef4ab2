"""!status: is the bot well."""

from meshai.commands.base import Command, Request, duration
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


command = Command("status", "how long I run, with which model, how busy.", run, ("!status",))
