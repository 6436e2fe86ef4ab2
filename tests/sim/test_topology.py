"""Meshes from files: what may stand in them, and that those shipped with MeshAI live."""

import asyncio
import math
import random
from collections import Counter
from pathlib import Path

import pytest

from meshai.airtime import Modem
from meshai.errors import ConfigError
from meshai.sim.air import Cause
from meshai.sim.channel import Outcome
from meshai.sim.links import Link
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.packets import TELEMETRY
from meshai.sim.topology import Terrain, Topology, load, parse, shipped
from meshai.testing import ManualClock
from tests.sim.clients import DeskClient, routings, text_packet

OURS = '[[nodes]]\nshort = "US"\nis_ours = true\n'
PAIR = OURS + '[[nodes]]\nshort = "ANN"\nname = "Ann Other"\nrole = "ROUTER"\n'


async def test_stations_and_links_of_a_file(clock: ManualClock) -> None:
    topology = parse(
        'preset = "MEDIUM_FAST"\nregion = "EU_868"\ncapture_db = 6\n'
        + PAIR
        + '[[nodes]]\nshort = "FAR"\nhop_limit = 5\nis_known = false\n'
        + '[[links]]\nbetween = ["US", "ANN"]\nsnr = 9\n'
        + '[[links]]\nbetween = ["ANN", "FAR"]\nloss = 0.25\nsnr = -4.5\nback = { loss = 0.5, snr = -8.0 }\n',
        "test",
    )
    async with topology.mesh(clock=clock, rng=random.Random(1)) as mesh:
        node = topology.settle(mesh, channels=("", "bots"))
        ann, far = mesh.peers.values()
        assert (mesh.air.modem.spreading_factor, mesh.air.region, node.firmware.channels) == (9, "EU_868", ("", "bots"))
        assert (ann.identity.long_name, ann.identity.role, far.identity.long_name) == ("Ann Other", "ROUTER", "FAR")
        assert (ann.distance, ann.snr, far.distance, far.hop_limit) == (0, 9.0, 1, 5)
        assert [info.user.short_name for info in node.database.nodes.values()] == ["ANN"]
        links = mesh.air.channel.links
        assert links.of(ann.number) == {node.number: Link(0.0, 9.0), far.number: Link(0.25, -4.5)}
        assert links.of(far.number) == {ann.number: Link(0.5, -8.0)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'nodes' is missing"),
        ("nodes = [", "Invalid value"),
        ('[[nodes]]\nshort = "A"\n', "exactly one node is ours"),
        (OURS + OURS, "exactly one node is ours"),
        (OURS + '[[nodes]]\nshort = "US"\n', "must differ: US"),
        (OURS + '[[links]]\nbetween = ["US", "ANN"]\n', "not there: ANN"),
        (OURS + '[[groups]]\ncount = 1\nshort = "G"\nnames = ["x"]\nhub = "HILL"\n', "not there: HILL"),
        (OURS + '[[groups]]\ncount = 0\nshort = "G"\nnames = ["x"]\n', "groups 1: a group has members"),
        (PAIR + '[[links]]\nbetween = ["US"]\n', "links 1: between: 2 entries belong here, not 1"),
        (PAIR + '[[links]]\nbetween = ["US", "ANN"]\nloss = 1.5\n', "links 1: loss is a probability, not 1.5"),
        (PAIR + '[[links]]\nbetween = "US"\n', "'US' is not a list"),
        (PAIR + '[[links]]\nbetween = ["US", "ANN"]\nback = 3\n', "a table belongs here, not 3"),
        (OURS + "colour = 1\n", "nodes 1: unknown key 'colour'"),
        (OURS + 'role = "KING"\n', "no role 'KING'"),
        (OURS + "telemetry_minutes = -1\n", "cannot be negative"),
        (OURS + 'hop_limit = "3"\n', "nodes 1: hop_limit: '3' is not a whole number"),
        (OURS + "is_known = 1\n", "1 is not true or false"),
        (OURS + "gain_db = true\n", "True is not a number"),
        ('preset = "FAST"\n' + OURS, "no preset 'FAST'"),
        ('region = "MARS"\n' + OURS, "no region 'MARS'"),
    ],
)
def test_mistakes_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse(text, "mesh.toml")
    assert str(caught.value).startswith("mesh.toml: ")


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="with MeshAI come: line, star, town"):
        load(str(tmp_path / "none.toml"))


def test_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "pair.toml"
    path.write_text(PAIR, encoding="utf-8")
    assert [node.short for node in load(str(path)).nodes] == ["US", "ANN"]


@pytest.mark.parametrize(
    ("distance_km", "expected"),
    [
        (0.01, Link(0.0, 12.0)),  # no radio reports more
        (1.0, Link(0.0, 10.0)),
        (2.0, Link(0.0001, -0.5)),  # 10 - 35 * 0.301 = -0.54; 17 dB above the limit of SF 11, -17.5 dB
        (6.1, Link(0.5, -17.5)),
        (8.0, None),
    ],
)
def test_signals_weaken_with_distance(distance_km: float, expected: Link | None) -> None:
    link = Terrain().link(distance_km, 0.0, 11)
    if expected is None:
        assert link is None
        return
    assert link is not None
    assert link.snr == expected.snr
    assert math.isclose(link.loss, expected.loss, abs_tol=0.02)


@pytest.mark.parametrize(("name", "stations"), [("line", 4), ("star", 21), ("town", 100)])
async def test_shipped_topology_is_whole(clock: ManualClock, name: str, stations: int) -> None:
    assert name in shipped()
    topology = load(name)
    async with topology.mesh(clock=clock, rng=random.Random(1)) as mesh:
        node = topology.settle(mesh)
        assert len(mesh.peers) + 1 == stations
        hops = mesh.air.channel.links.hops_from(node.number)
        assert len(hops) >= 0.95 * (stations - 1), "nearly everybody can be reached somehow"


async def test_direct_message_to_the_end_of_the_line(clock: ManualClock) -> None:
    topology = load("line")
    async with topology.mesh(clock=clock, rng=random.Random(5)) as mesh:
        node = topology.settle(mesh)
        far = next(peer for peer in mesh.peers.values() if peer.identity.short_name == "ОЛЯ")
        client = DeskClient(node.firmware)
        client.send(text_packet("hello", to=far.number, packet_id=1, want_ack=True))
        await clock.advance(120)
        client.take()
        assert [(heard.text, heard.hops) for heard in far.inbox] == [("hello", 2)]
        assert (far.number, 1, 0) in routings(client.taken)


async def run(clock: ManualClock, topology: Topology, hours: float) -> tuple[SimulatedMesh, Counter[Outcome]]:
    """A mesh after that time, and what became of all that was sent on it."""
    outcomes: Counter[Outcome] = Counter()
    async with topology.mesh(clock=clock, rng=random.Random(3), keep_last=2000) as mesh:
        topology.settle(mesh)
        await clock.advance(hours * 3600)
        for tally in mesh.air.channel.tally.values():
            outcomes.update(tally)
    return mesh, outcomes


async def test_busy_town(clock: ManualClock) -> None:
    """Half an hour: packets are heard and lost in every way there is, and nobody's share is impossible."""
    mesh, outcomes = await run(clock, load("town"), 0.5)
    assert set(outcomes) >= {Outcome.HEARD, Outcome.FADED, Outcome.COLLIDED, Outcome.DEAFENED}
    assert outcomes[Outcome.HEARD] > outcomes[Outcome.COLLIDED]
    assert {entry.cause for entry in mesh.log} >= {Cause.PEER, Cause.RELAY}
    assert TELEMETRY in {entry.port for entry in mesh.log}
    for peer in mesh.peers.values():
        assert 0 <= peer.ledger.utilisation_percent <= 100
        assert peer.ledger.own_s == pytest.approx(
            sum(entry.airtime_s for entry in mesh.log if entry.by == peer.number), abs=1e-6
        )


async def test_same_seed_same_town() -> None:
    async def story() -> list[tuple[float, int, str]]:
        mesh, _ = await run(ManualClock(), load("town"), 0.1)
        return [(entry.at, entry.by, entry.cause) for entry in mesh.log]

    first = await story()
    assert len(first) > 20
    assert await story() == first


async def test_groups_hear_their_hub_alone(clock: ManualClock) -> None:
    topology = load("star")
    async with topology.mesh(clock=clock, rng=random.Random(1)) as mesh:
        topology.settle(mesh)
        hill, *people = mesh.peers.values()
        assert {frozenset(mesh.air.channel.links.of(person.number)) for person in people} == {frozenset({hill.number})}
        await asyncio.sleep(0)


async def test_custom_modem_of_a_file(clock: ManualClock) -> None:
    topology = parse(
        'nodes = [{short = "MAI", is_ours = true}]\n'
        "modem = {spreading_factor = 9, bandwidth_khz = 125.0, coding_rate = 7}",
        "custom",
    )
    async with topology.mesh(clock=clock, rng=random.Random(1)) as mesh:
        assert mesh.air.modem == Modem(9, 125.0, 7)
