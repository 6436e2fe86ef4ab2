"""Links that fail in every way, over TCP and over a pseudo-terminal, and are healthy afterwards."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshtastic.protobuf import mesh_pb2
from pubsub import pub

from meshai.sim.faults import SERIAL_FAULTS, TCP_FAULTS, LinkFault
from meshai.sim.link import frame
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.peers import Peer
from tests.sim.clients import PATIENCE_S, LibraryClient, SocketClient, eventually
from tests.sim.conftest import Attach, Dial


@asynccontextmanager
async def suffering(node: SimulatedNode, fault: LinkFault) -> AsyncIterator[None]:
    """A fault that lasts as long as the block."""
    outage = asyncio.create_task(node.fault(fault, seconds=1e6))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        outage.cancel()
        await asyncio.gather(outage, return_exceptions=True)


async def answered(client: LibraryClient, peer: Peer, text: str) -> None:
    """A text comes in and another goes out: the link works both ways."""
    await peer.send_channel(0, text)
    await client.until(lambda: text in client.texts())
    await client.send(f"answer to {text}")
    while (await peer.heard(PATIENCE_S)).text != f"answer to {text}":
        pass


@pytest.mark.parametrize("fault", sorted(TCP_FAULTS))
async def test_healthy_after_every_fault_over_tcp(
    mesh: SimulatedMesh, dial: Dial, attach: Attach, fault: LinkFault
) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    port = await node.listen_tcp()
    async with dial(port) as sufferer:
        await sufferer.configure()
        await node.fault(fault, seconds=5)
    async with attach(port) as client:
        assert client.interface.myInfo.my_node_num == node.number
        await answered(client, ann, "after")
    assert await eventually(lambda: node.open_connections == 0)


@pytest.mark.parametrize("fault", sorted(SERIAL_FAULTS))
async def test_healthy_after_every_fault_over_serial(
    mesh: SimulatedMesh, attach: Attach, tmp_path: Path, fault: LinkFault
) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    link = await node.open_pty(tmp_path / "ttyRadio")
    descriptor = os.open(link, os.O_RDWR | os.O_NOCTTY)
    try:
        os.write(descriptor, frame(mesh_pb2.ToRadio(want_config_id=1).SerializeToString()))
        await mesh.clock.sleep(1)
        await node.fault(fault, seconds=5)
    finally:
        os.close(descriptor)
    async with attach(link) as client:
        assert client.interface.myInfo.my_node_num == node.number
        await answered(client, ann, "after")


async def test_close_and_reset_are_told_apart(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    for fault, ending in ((LinkFault.CLOSE, "closed"), (LinkFault.RESET, "reset")):
        async with dial(port) as client:
            await client.configure()
            await node.fault(fault)
            await client.until(lambda client=client: client.ended is not None)  # type: ignore[misc]
            assert client.ended == ending


async def test_refuse(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with dial(port) as client:
        await client.configure()
        async with suffering(node, LinkFault.REFUSE):
            await client.until(lambda: client.ended == "closed")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
    async with dial(port) as client:
        await client.configure()


async def test_mute(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with suffering(node, LinkFault.MUTE), dial(port) as client:
        client.send(want_config_id=1)
        await mesh.clock.sleep(20)
        assert client.wire == b""
        node.ports.end_client()
        await client.until(lambda: client.ended == "closed")
        assert client.wire == b""
    async with dial(port) as client:
        await client.configure()


async def test_half_open_stalls_writes_and_says_nothing(mesh: SimulatedMesh) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        assert await eventually(lambda: node.open_connections == 1)
        async with suffering(node, LinkFault.HALF_OPEN):
            flood = asyncio.create_task(flooding(sock))
            await mesh.clock.sleep(20)
            assert not flood.done()
            flood.cancel()
            await asyncio.gather(flood, return_exceptions=True)
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(sock, 1)


async def flooding(sock: socket.socket) -> None:
    """Ends only when more than a megabyte could be written."""
    for _ in range(1000):
        await asyncio.get_running_loop().sock_sendall(sock, bytes(1000))


async def test_half_open_client_may_come_back_meanwhile(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with dial(port) as first:
        await first.configure()
        async with suffering(node, LinkFault.HALF_OPEN), dial(port) as second:
            await second.configure(8)
            await first.until(lambda: first.ended is not None)
            await second.configure(9)
            assert second.ended is None


async def test_slow(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    async with dial(await node.listen_tcp()) as client, suffering(node, LinkFault.SLOW):
        start = mesh.clock.monotonic()
        await client.configure()
        assert mesh.clock.monotonic() - start >= 0.9 * len(client.wire) / 400


@pytest.mark.parametrize("fault", [LinkFault.GARBAGE, LinkFault.LOG_TEXT])
async def test_noise_between_frames(mesh: SimulatedMesh, dial: Dial, fault: LinkFault) -> None:
    node = mesh.node()
    async with dial(await node.listen_tcp()) as client:
        await client.configure(1)
        clean = len(client.wire)
        async with suffering(node, fault):
            await client.configure(2)
        assert len(client.wire) - clean > clean + 40
        assert (b"[Router]" in client.wire) == (fault is LinkFault.LOG_TEXT)


async def test_broken_frames(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    async with dial(await node.listen_tcp()) as client:
        await client.configure(1)
        await node.fault(LinkFault.CORRUPT_FRAME)
        await client.until(lambda: b"\xff" * 20 in client.wire)
        await node.fault(LinkFault.WRONG_LENGTH)
        client.send(heartbeat=mesh_pb2.Heartbeat())
        await client.until(lambda: client.wire.count(b"\x94\xc3\x00\x30cut") == 1)
        await node.fault(LinkFault.PARTIAL_FRAME)
        await client.until(lambda: client.ended == "closed")
        assert client.wire.endswith(b"half of what was promised")


async def test_config_that_never_ends(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with suffering(node, LinkFault.CONFIG_NEVER_ENDS), dial(port) as client:
        client.send(want_config_id=1)
        await client.until(lambda: client.of("fileInfo"))
        await mesh.clock.sleep(20)
        assert client.of("config_complete_id") == []
    async with dial(port) as again:
        await again.configure()


async def test_slow_config(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with suffering(node, LinkFault.CONFIG_SLOW), dial(port) as client:
        start = mesh.clock.monotonic()
        await client.configure()
        assert mesh.clock.monotonic() - start > 30


async def test_rival_takes_the_place_again_and_again(mesh: SimulatedMesh, dial: Dial) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    async with suffering(node, LinkFault.RIVAL):
        for _ in range(3):
            async with dial(port) as client:
                await client.until(lambda client=client: client.ended is not None)  # type: ignore[misc]
    assert node.peak_connections == 1, "the rival's own are not counted"


async def test_reboot_loses_what_a_reboot_loses(mesh: SimulatedMesh, dial: Dial) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    port = await node.listen_tcp()
    await ann.send_channel(0, "before")
    await eventually(lambda: len(node.firmware.client) == 1)
    node.firmware.set_time(1_900_000_000)
    await node.fault(LinkFault.REBOOT, seconds=10)
    async with dial(port) as client:
        await client.configure()
        (info,) = client.of("my_info")
        assert (info.my_node_num, info.reboot_count) == (node.number, 2)
        assert len(client.of("node_info")) == 2, "nodes are remembered"
        await ann.send_channel(0, "after")
        await client.until(lambda: client.texts() == ["after"])
        assert client.of("packet")[-1].rx_time == 0, "time is not"


async def test_reboot_over_serial_is_announced(mesh: SimulatedMesh, attach: Attach, tmp_path: Path) -> None:
    events: list[str] = []

    def lost(interface: object) -> None:
        events.append("lost")

    def established(interface: object) -> None:
        events.append("established")

    node, ann = mesh.node(), mesh.peer("Ann")
    async with attach(await node.open_pty(tmp_path / "tty")) as client:
        pub.subscribe(lost, "meshtastic.connection.lost")
        pub.subscribe(established, "meshtastic.connection.established")
        try:
            await node.fault(LinkFault.REBOOT, seconds=5)
            await client.until(lambda: events[-2:] == ["lost", "established"])
            assert node.firmware.boots == 2
            assert client.interface.myInfo.reboot_count == 2
            await answered(client, ann, "after the reboot")
        finally:
            pub.unsubscribe(lost, "meshtastic.connection.lost")
            pub.unsubscribe(established, "meshtastic.connection.established")


async def test_renumbering(mesh: SimulatedMesh, attach: Attach) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    port = await node.listen_tcp()
    former = node.number
    await node.fault(LinkFault.RENUMBER, seconds=1)
    assert node.number != former
    async with attach(port) as client:
        assert client.interface.myInfo.my_node_num == node.number
        await ann.send_direct("to the new number")
        await client.until(lambda: client.texts() == ["to the new number"])


async def test_unplugged_port_comes_back_under_the_same_link(mesh: SimulatedMesh, tmp_path: Path) -> None:
    node = mesh.node()
    link = await node.open_pty(tmp_path / "by-id")
    descriptor = os.open(link, os.O_RDWR | os.O_NOCTTY)
    try:
        async with suffering(node, LinkFault.UNPLUG):
            assert not link.exists()
            assert await eventually(lambda: is_gone(descriptor))
        assert link.exists()
    finally:
        os.close(descriptor)
    assert link.readlink() == node.ports.serial_path


def is_gone(descriptor: int) -> bool:
    try:
        os.write(descriptor, b"x")
    except OSError:
        return True
    return False


async def test_closing_in_the_middle_of_a_fault(mesh: SimulatedMesh) -> None:
    node = mesh.node()
    port = await node.listen_tcp()
    client = await SocketClient.connect(mesh.clock, port)
    await client.configure()
    outage = asyncio.create_task(node.fault(LinkFault.REFUSE, seconds=3600))
    await asyncio.sleep(0.01)
    outage.cancel()
    await asyncio.gather(outage, return_exceptions=True)
    node.close()
    await client.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_port_in_use_is_an_error(mesh: SimulatedMesh) -> None:
    port = await mesh.node().listen_tcp()
    with pytest.raises(OSError, match="in use"):
        await mesh.node("Another").listen_tcp(port=port)


def test_every_fault_can_be_had() -> None:
    assert set(LinkFault) == TCP_FAULTS | SERIAL_FAULTS
