"""!stats: how much was heard and said, and what it took, in one packet."""

from meshai.commands.base import Command, Request, duration
from meshai.messages import Reply
from meshai.model.machine import resident_memory


async def run(request: Request) -> Reply:
    status = request.status()
    parts = [
        f"up {duration(status.uptime_s)}",
        f"heard {status.heard}, answered {status.answered}, refused {status.refused}",
        f"packets {status.sent} sent, {status.failed} failed",
        f"air {status.airtime.spent_s:.0f}/{status.airtime.budget_s:.0f} s",
        f"{len(request.radio.nodes())} nodes",
        f"{resident_memory() / 1e6:.0f} MB",
    ]
    return Reply("; ".join(parts))


command = Command("stats", "counts since my start, airtime of this hour, nodes, memory.", run, ("!stats",), admin=True)
