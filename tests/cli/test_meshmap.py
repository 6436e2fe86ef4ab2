"""The picture of a mesh: who hangs where, how good the links are, and what was heard on them."""

import asyncio
import io
import random

from rich.console import Console

from meshai.cli.meshmap import MAP_COLUMNS, MeshMap
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.topology import load, parse
from meshai.testing import ManualClock

DETOUR = """
nodes = [{short = "MAI", is_ours = true, role = "CLIENT_MUTE"}, {short = "NEAR"}, {short = "FAR"}, {short = "LOST"}]

[[links]]
between = ["MAI", "NEAR"]
snr = 9.0

[[links]]
between = ["NEAR", "FAR"]
back = {snr = -3.0, loss = 0.1}

[[links]]
between = ["MAI", "FAR"]
snr = -19.0
loss = 0.8
"""


def drawn(mesh: SimulatedMesh) -> list[str]:
    paper = Console(file=io.StringIO(), width=MAP_COLUMNS)
    MeshMap(mesh).show(paper)
    assert isinstance(paper.file, io.StringIO)
    return [line.rstrip() for line in paper.file.getvalue().splitlines()]


async def test_stations_hang_where_fewest_transmissions_lead_to_them(clock: ManualClock) -> None:
    plan = parse(DETOUR, "detour")
    async with plan.mesh(clock=clock, rng=random.Random(1)) as mesh:
        plan.settle(mesh)
        assert drawn(mesh) == [
            "MAI CLIENT_MUTE",
            "├── NEAR CLIENT  9.0 dB, 1 more in reach",
            "│   └── FAR CLIENT  hears 6.0 dB, is heard -3.0 dB, 10% lost, 1 more in reach",
            "└── LOST CLIENT  no way to it",
            "",
            "Who hears whom: SNR in dB, and loss",
            " speaks        MAI      NEAR        FAR  LOST",
            " MAI                     9.0  -19.0 80%     ·",
            " NEAR          9.0                  6.0     ·",
            " FAR     -19.0 80%  -3.0 10%                ·",
            " LOST            ·         ·          ·",
        ]


async def test_after_a_run_it_tells_what_was_heard(clock: ManualClock) -> None:
    plan = parse(DETOUR, "detour")
    async with plan.mesh(clock=clock, rng=random.Random(1)) as mesh:
        plan.settle(mesh)
        near = next(peer for peer in mesh.peers.values() if peer.identity.short_name == "NEAR")
        far = next(peer for peer in mesh.peers.values() if peer.identity.short_name == "FAR")
        far.is_deaf = True
        saying = asyncio.create_task(near.send_channel(0, "hello"))
        await clock.advance(10)
        await saying
        lines = drawn(mesh)
    assert lines[1:3] == [
        "├── NEAR CLIENT  9.0 dB, 1 more in reach  ↑ 1 of 1",
        "│   └── FAR CLIENT  hears 6.0 dB, is heard -3.0 dB, 10% lost, 1 more in reach  ↓ 0 of 1 (1 off)",
    ]
    assert ["NEAR", "1/1", "0/1", "·"] in [line.split() for line in lines]


async def test_large_meshes_are_drawn_without_the_table(clock: ManualClock) -> None:
    plan = load("town")
    async with plan.mesh(clock=clock, rng=random.Random(1)) as mesh:
        plan.settle(mesh)
        lines = drawn(mesh)
    assert len(lines) == len(mesh.peers) + 1
    assert max(map(len, lines)) <= MAP_COLUMNS
