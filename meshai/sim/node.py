"""A simulated node as a client finds it: the firmware, its ports, and the faults one can inflict on them."""

from pathlib import Path
from typing import Final

from meshai.messages import NodeNum
from meshai.sim.air import Air
from meshai.sim.faults import DEFAULT_S, LinkFault, inflict
from meshai.sim.firmware import Firmware, Given, HandOver
from meshai.sim.identity import Identity, NodeDatabase
from meshai.sim.ports import Ports

IDLE_LIMIT_S: Final = 900.0
"""A TCP client silent for that long is closed (firmware `ServerAPI.cpp`)."""


class SimulatedNode:
    """The node a bot or an app attaches to. Over TCP one client at a time: a new one ends the old one's connection."""

    def __init__(
        self, air: Air, identity: Identity, *, channels: tuple[str, ...], hop_limit: int, idle_limit_s: float | None
    ) -> None:
        self.firmware = Firmware(air, identity, channels=channels, hop_limit=hop_limit)
        self.ports = Ports(self.firmware, idle_limit_s=idle_limit_s)

    @property
    def number(self) -> NodeNum:
        return self.firmware.number

    @property
    def database(self) -> NodeDatabase:
        """The nodes it knows and the keys it holds of them."""
        return self.firmware.database

    @property
    def connects(self) -> list[float]:
        """When a client attached over TCP, in Unix seconds of the mesh's clock."""
        return self.ports.connects

    @property
    def open_connections(self) -> int:
        """TCP connections a client has not closed yet; a client that cleans up has never more than one."""
        return self.ports.open_connections

    @property
    def peak_connections(self) -> int:
        """The most connections a client has had open at once."""
        return self.ports.peak_connections

    @property
    def handed_over(self) -> list[HandOver]:
        """Every packet a client ever handed over, with what became of it here."""
        return self.firmware.handed_over

    @property
    def given(self) -> list[Given]:
        """Every packet this node ever gave to a client."""
        return self.firmware.given

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Accept clients over TCP; returns the port."""
        return (await self.ports.listen(host, port))[1]

    async def open_pty(self, link: Path | None = None) -> Path:
        """Offer a serial port; `link` is a name that stays when the port is unplugged and comes back as another."""
        return await self.ports.plug_in(link)

    async def fault(self, kind: LinkFault, *, seconds: float = DEFAULT_S) -> None:
        """Let something happen to the links; returns when the node is healthy again."""
        await inflict(kind, self.ports, seconds)

    def close(self) -> None:
        """Stop accepting clients and end the connections there are."""
        self.ports.close()
