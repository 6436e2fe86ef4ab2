"""Everything that goes wrong between a node and its client, each kind by name, to be had at any moment."""

from contextlib import suppress
from enum import StrEnum
from typing import Final, assert_never

from meshtastic.protobuf import mesh_pb2

from meshai.sim.link import START, LinkConditions, frame
from meshai.sim.ports import Ports


class LinkFault(StrEnum):
    """What may happen to a link. After its time the node is healthy again."""

    CLOSE = "close"
    """The node closes the connection (FIN)."""
    RESET = "reset"
    """The connection is reset (RST)."""
    REFUSE = "refuse"
    """The connection is closed and new ones are refused."""
    MUTE = "mute"
    """The connection is lost; new ones are accepted, but the node neither heeds nor says anything."""
    HALF_OPEN = "half-open"
    """The node stops reading and writing without a word, as after a power cut."""
    SLOW = "slow"
    """A few hundred bytes a second."""
    GARBAGE = "garbage"
    """Random bytes between frames."""
    LOG_TEXT = "log text"
    """The node's own log lines between frames."""
    CORRUPT_FRAME = "corrupt frame"
    """A frame of the right length that holds no protobuf."""
    WRONG_LENGTH = "wrong length"
    """A header that promises more than comes, which swallows the frames behind it; and one of an absurd length."""
    PARTIAL_FRAME = "partial frame"
    """Half a frame; over TCP the connection then ends."""
    CONFIG_NEVER_ENDS = "config never ends"
    """The connection is lost, and the next download comes without its end."""
    CONFIG_SLOW = "config slow"
    """The connection is lost, and the next download takes long."""
    RIVAL = "rival"
    """Another client takes the only place, again and again."""
    REBOOT = "reboot"
    """The node starts anew: queues, ids and time are lost."""
    RENUMBER = "renumber"
    """The node comes back with another number."""
    UNPLUG = "unplug"
    """The serial port vanishes, and comes back under another name."""


TCP_FAULTS: Final = frozenset(LinkFault) - {LinkFault.UNPLUG}
SERIAL_FAULTS: Final = frozenset(LinkFault) - {
    LinkFault.CLOSE,
    LinkFault.RESET,
    LinkFault.REFUSE,
    LinkFault.RIVAL,
}
DEFAULT_S: Final = 20.0
SLOW_BYTES_PER_S: Final = 400.0
CONFIG_DELAY_S: Final = 1.0
RIVAL_PAUSE_S: Final = 1.0
RIVAL_NONCE: Final = 0x0123_4567
RENUMBERED: Final = 0x7E57_0000
LOG_LINES: Final = (
    b"INFO  | 12:03:44 812 [Router] Received packet\r\n",
    b"\x1b[34mDEBUG\x1b[0m | ??:??:?? 3 [RadioIf] Starting low level send\r\n",
)


async def inflict(fault: LinkFault, ports: Ports, seconds: float = DEFAULT_S) -> None:
    """Let something happen to a node's links; returns when the node is healthy again. Cancelling ends it at once."""
    rng = ports.firmware.air.rng
    match fault:
        case LinkFault.CLOSE:
            ports.end_client()
        case LinkFault.RESET:
            ports.reset_client()
        case LinkFault.REFUSE:
            ports.end_client()
            await _refuse(ports, seconds)
        case LinkFault.MUTE:
            ports.end_client()
            await _under(LinkConditions(is_mute=True), ports, seconds)
        case LinkFault.HALF_OPEN:
            await _freeze(ports, seconds)
        case LinkFault.SLOW:
            await _under(LinkConditions(bytes_per_s=SLOW_BYTES_PER_S), ports, seconds)
        case LinkFault.GARBAGE:
            noise = tuple(rng.randbytes(size) for size in (1, 7, 40, 90))
            await _under(LinkConditions(noise=noise), ports, seconds)
        case LinkFault.LOG_TEXT:
            await _under(LinkConditions(noise=LOG_LINES), ports, seconds)
        case LinkFault.CORRUPT_FRAME:
            ports.inject(frame(b"\xff" * 20))
        case LinkFault.WRONG_LENGTH:
            ports.inject(START + b"\xff\xff" + START + b"\x00\x30" + b"cut")
        case LinkFault.PARTIAL_FRAME:
            ports.inject(START + b"\x00\x40" + b"half of what was promised")
            ports.end_client()
        case LinkFault.CONFIG_NEVER_ENDS:
            ports.end_client()
            await _under(LinkConditions(completes_config=False), ports, seconds)
        case LinkFault.CONFIG_SLOW:
            ports.end_client()
            await _under(LinkConditions(config_delay_s=CONFIG_DELAY_S), ports, seconds)
        case LinkFault.RIVAL:
            await _fight(ports, seconds)
        case LinkFault.REBOOT:
            await _reboot(ports, seconds)
        case LinkFault.RENUMBER:
            ports.firmware.renumber(RENUMBERED | rng.randrange(0x1_0000))
            await _reboot(ports, seconds)
        case LinkFault.UNPLUG:
            await _unplug(ports, seconds)
        case _:
            assert_never(fault)


async def _under(conditions: LinkConditions, ports: Ports, seconds: float) -> None:
    ports.conditions = conditions
    try:
        await ports.firmware.air.clock.sleep(seconds)
    finally:
        ports.conditions = LinkConditions()
        ports.firmware.client.changed.set()


async def _refuse(ports: Ports, seconds: float) -> None:
    ports.stop_listening()
    try:
        await ports.firmware.air.clock.sleep(seconds)
    finally:
        await ports.listen_again()


async def _freeze(ports: Ports, seconds: float) -> None:
    """Over TCP the frozen connection is found dead afterwards; a serial port comes back to life."""
    frozen = [connection for connection in (ports.tcp, ports.serial) if connection is not None]
    for connection in frozen:
        connection.freeze()
    try:
        await ports.firmware.air.clock.sleep(seconds)
    finally:
        for connection in frozen:
            if connection is ports.serial:
                connection.thaw()
            else:
                connection.reset()


async def _reboot(ports: Ports, seconds: float) -> None:
    ports.end_client()
    if ports.serial is not None:
        ports.serial.freeze()
    ports.firmware.reboot()
    try:
        await _refuse(ports, seconds)
    finally:
        if ports.serial is not None:
            ports.serial.thaw()
            ports.serial.restart()


async def _unplug(ports: Ports, seconds: float) -> None:
    link = ports.unplug()
    try:
        await ports.firmware.air.clock.sleep(seconds)
    finally:
        await ports.plug_in(link)


async def _fight(ports: Ports, seconds: float) -> None:
    """Another library attached to the same node: it comes back a second after each time it was thrown out."""
    clock = ports.firmware.air.clock
    until = clock.monotonic() + seconds
    request = frame(mesh_pb2.ToRadio(want_config_id=RIVAL_NONCE).SerializeToString())
    while (left_s := until - clock.monotonic()) > 0:
        with suppress(OSError, TimeoutError):
            async with clock.timeout(left_s):
                await ports.visit(request)
                await clock.sleep(RIVAL_PAUSE_S)
