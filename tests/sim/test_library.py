"""The real library talks with the people of a simulated mesh."""

import asyncio
from pathlib import Path
from typing import Any

from meshai.sim.mesh import SimulatedMesh
from tests.sim.clients import PATIENCE_S
from tests.sim.conftest import Attach


async def test_library_hears_and_is_heard(mesh: SimulatedMesh, attach: Attach) -> None:
    node = mesh.node()
    ann = mesh.peer("Ann")
    bob = mesh.peer("Bob", distance=1)
    async with attach(await node.listen_tcp()) as client:
        assert client.interface.myInfo.my_node_num == node.number
        assert client.interface.getLongName() == "MeshAI"
        assert set(client.interface.nodesByNum) == {node.number, ann.number, bob.number}

        await ann.send_channel(0, "hello all")
        await bob.send_direct("hello bot")
        await client.until(lambda: client.texts() == ["hello all", "hello bot"])

        sent = await client.send("hello Ann", destinationId=ann.number, wantAck=True)
        heard = await ann.heard(PATIENCE_S)
        assert (heard.text, heard.sender, heard.packet_id, heard.is_direct) == (
            "hello Ann",
            node.number,
            sent.id,
            True,
        )
        await client.until(lambda: (ann.number, "NONE") in client.routings(sent.id))

        await mesh.clock.sleep(2.5)
        broadcast = await client.send("hello everyone", wantAck=True)
        assert (await bob.heard(PATIENCE_S)).text == "hello all"
        assert (await bob.heard(PATIENCE_S)).text == "hello everyone"
        await client.until(lambda: client.routings(broadcast.id) == [(node.number, "NONE")])


async def test_heartbeat_is_answered_by_a_new_queue_status(mesh: SimulatedMesh, attach: Attach) -> None:
    node = mesh.node()
    async with attach(await node.listen_tcp()) as client:
        await client.until(lambda: client.interface.queueStatus is not None)
        for _ in range(3):
            before = client.interface.queueStatus
            await asyncio.to_thread(client.interface.sendHeartbeat)
            await client.until(lambda before=before: client.interface.queueStatus is not before)  # type: ignore[misc]
            assert (client.interface.queueStatus.free, client.interface.queueStatus.mesh_packet_id) == (16, 0)


async def test_library_learns_of_a_refusal_but_not_of_haste(mesh: SimulatedMesh, attach: Attach) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    async with attach(await node.listen_tcp()) as client:
        refused = await client.send("hello?", destinationId=0x1234, wantAck=True)
        await client.until(lambda: client.routings(refused.id) == [(node.number, "PKI_SEND_FAIL_PUBLIC_KEY")])
        await mesh.clock.sleep(2.5)
        long = await client.send("x" * 233)
        await client.until(lambda: client.routings(long.id) == [(node.number, "TOO_LARGE")])
        await mesh.clock.sleep(2.5)
        first, second = await asyncio.to_thread(send_two, client.interface, ann.number)
        await client.until(lambda: (ann.number, "NONE") in client.routings(first.id))
        await mesh.clock.sleep(30)
        assert client.routings(second.id) == []
    assert [(handed.packet_id, handed.refusal) for handed in node.handed_over] == [
        (refused.id, "PKI_SEND_FAIL_PUBLIC_KEY"),
        (long.id, "TOO_LARGE"),
        (first.id, ""),
        (second.id, "TOO_SOON"),
    ]


def send_two(interface: Any, to: int) -> tuple[Any, Any]:
    first, second = (interface.sendText(text, destinationId=to, wantAck=True) for text in ("one", "two"))
    return first, second


async def test_library_reconnects_by_itself_after_a_close(mesh: SimulatedMesh, attach: Attach) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    async with attach(await node.listen_tcp()) as client:
        node.ports.end_client()
        await client.until(lambda: len(node.connects) == 2)
        await ann.send_channel(0, "still there?")
        await client.until(lambda: client.texts() == ["still there?"])
        assert node.peak_connections == 1


async def test_library_on_a_serial_port(mesh: SimulatedMesh, attach: Attach, tmp_path: Path) -> None:
    node, ann = mesh.node(), mesh.peer("Ann")
    async with attach(await node.open_pty(tmp_path / "ttyRadio")) as client:
        await ann.send_direct("by wire")
        await client.until(lambda: client.texts() == ["by wire"])
        sent = await client.send("back", destinationId=ann.number, wantAck=True)
        await client.until(lambda: (ann.number, "NONE") in client.routings(sent.id))
        assert [text.text for text in ann.inbox] == ["back"]
    await ann.send_direct("while nobody listens")
    async with attach(tmp_path / "ttyRadio") as client:
        await client.until(lambda: client.texts() == ["while nobody listens"])
        assert node.firmware.boots == 1
        assert len(node.firmware.client) == 0, "what was taken waits no more"
