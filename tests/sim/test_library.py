"""The real library talks with the people of a simulated mesh."""

from meshai.sim.mesh import SimulatedMesh
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
        heard = await ann.heard()
        assert (heard.text, heard.sender, heard.packet_id, heard.is_direct) == (
            "hello Ann",
            node.number,
            sent.id,
            True,
        )
        await client.until(lambda: (ann.number, "NONE") in client.routings(sent.id))

        await mesh.clock.sleep(2.5)
        broadcast = await client.send("hello everyone", wantAck=True)
        assert (await bob.heard()).text == "hello all"
        assert (await bob.heard()).text == "hello everyone"
        await client.until(lambda: client.routings(broadcast.id) == [(node.number, "NONE")])
