"""`meshai sim`: a simulated node among a few others, for any Meshtastic client to attach to."""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from meshai.cli.meshmap import MAP_COLUMNS, MeshMap
from meshai.cli.params import picture, seconds
from meshai.clock import Clock, ScaledClock, SystemClock
from meshai.errors import ConfigError
from meshai.messages import BROADCAST, node_id
from meshai.sim.air import PRESET_NAMES, REGION_NAMES, OnAir
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.node import SimulatedNode
from meshai.sim.packets import port_name
from meshai.sim.topology import HOME, load, shipped

DEFAULT_PORT: Final = 4403
CHANNELS: Final = ("", "MeshAI")
RESIDENTS: Final = (
    ("Anna Weber", "ANNA", "CLIENT"),
    ("Ridge Repeater", "RDGE", "ROUTER"),
    ("Ольга", "ОЛЯ", "CLIENT"),
    ("山田 太郎", "山田", "CLIENT_MUTE"),
    ("Νίκος", "NIK", "CLIENT"),
    ("سامي", "سامي", "CLIENT"),
    ("Weather Station", "WX", "SENSOR"),
    ("🦊 Fox", "🦊", "CLIENT"),
)
"""Long name, short name and role of the people on the mesh; with more of them the names begin again."""
SHOWN: Final = 8
KEPT: Final = 1000
"""Packets and texts the simulation remembers; it may run for months."""


@click.command(
    epilog="""\b
Examples:
  meshai sim
  meshai sim --people 20 --preset MEDIUM_FAST --verbose
  meshai sim --topology town
  meshai sim --topology town --map --speed 60 --for 30m    (who hears whom, and what became of 30 minutes' packets)
  meshtastic --host 127.0.0.1 --info        (in another terminal)"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 takes any.")
@click.option("--pty", is_flag=True, help="Offer a serial port (a pseudo-terminal), too.")
@click.option(
    "--preset",
    type=click.Choice(PRESET_NAMES),
    default="LONG_FAST",
    show_default=True,
    metavar="NAME",
    help="Modem preset.",
)
@click.option(
    "--region", type=click.Choice(REGION_NAMES), default="US", show_default=True, metavar="NAME", help="Region."
)
@click.option("--people", type=click.IntRange(0, 1000), default=5, show_default=True, help="Other nodes on the mesh.")
@click.option(
    "--topology",
    metavar="FILE",
    help=f"A mesh with relays, loss and collisions, from a TOML file or by name ({', '.join(shipped())}); "
    "it decides preset, region and people.",
)
@click.option("--speed", type=click.FloatRange(0.1, 1000), default=1.0, help="How much faster than life time runs.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, other numbers and chances.")
@click.option("--verbose", is_flag=True, help="Show everything that goes on air.")
@click.option(
    "--map", "shows_map", is_flag=True, help="Draw who hears whom, and at the end how much of what was sent was heard."
)
@click.option(
    "--svg",
    callback=picture,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the last map as a picture, too.",
)
@click.option(
    "--for", "duration_s", callback=seconds, metavar="TIME", help="End after this time on the mesh (10m, 1h)."
)
def sim(
    *,
    host: str,
    port: int,
    pty: bool,
    preset: str,
    region: str,
    people: int,
    topology: str | None,
    speed: float,
    seed: int,
    verbose: bool,
    shows_map: bool,
    svg: Path | None,
    duration_s: float | None,
) -> None:
    """Serve a simulated node to any Meshtastic client, until stopped.

    The node behaves as real firmware does, with true airtime, acks and limits. Point an app, the official command
    line or `meshai run` at it.
    """
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else MAP_COLUMNS)
    observer = (lambda packet: console.print(line(packet))) if verbose else None
    clock, rng = _clock(speed), random.Random(seed)
    try:
        plan = None if topology is None else load(topology)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if plan is not None:
        mesh = plan.mesh(clock=clock, rng=rng, observer=observer, keep_last=KEPT)
        settle = partial(plan.settle, channels=CHANNELS)
    else:
        mesh = SimulatedMesh(clock=clock, rng=rng, preset=preset, region=region, observer=observer, keep_last=KEPT)
        settle = partial(_settle, people=people)
    asyncio.run(
        _serve(mesh, settle, console, host=host, port=port, pty=pty, shows_map=shows_map, duration_s=duration_s)
    )
    if shows_map and mesh.log:
        MeshMap(mesh).show(console)
    if svg is not None:
        MeshMap(mesh).save(svg)


def _clock(speed: float) -> Clock:
    return SystemClock() if speed == 1 else ScaledClock(speed)


async def _serve(
    mesh: SimulatedMesh,
    settle: Callable[[SimulatedMesh], SimulatedNode],
    console: Console,
    *,
    host: str,
    port: int,
    pty: bool,
    shows_map: bool,
    duration_s: float | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with mesh:
        node = settle(mesh)
        try:
            port = await node.listen_tcp(host, port)
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port"
            ) from error
        address = host if port == DEFAULT_PORT else f"{host}:{port}"
        console.print(f"Node {node_id(node.number)} (MeshAI). Ctrl-C ends it.")
        console.print(f"  TCP:    {host}:{port}   try: meshtastic --host {address} --info")
        if pty:
            path = await node.open_pty()
            console.print(f"  serial: {path}   try: meshtastic --port {path} --info")
        if shows_map:
            MeshMap(mesh).show(console)
        else:
            _show_people(mesh, console)
        with contextlib.suppress(TimeoutError):
            async with mesh.clock.timeout(duration_s):
                await stop.wait()
    console.print("Stopped.")


def _show_people(mesh: SimulatedMesh, console: Console) -> None:
    for peer in list(mesh.peers.values())[:SHOWN]:
        hops = f"{peer.distance} hops away" if peer.distance else "direct neighbour"
        console.print(f"  {node_id(peer.number)} {peer.identity.long_name}, {hops}", style="dim")
    if len(mesh.peers) > SHOWN:
        console.print(f"  and {len(mesh.peers) - SHOWN} more", style="dim")


def _settle(mesh: SimulatedMesh, people: int) -> SimulatedNode:
    """Our node, and people up to three relays away, the farther the weaker."""
    node = mesh.node(channels=CHANNELS)
    for number in range(people):
        long_name, short_name, role = RESIDENTS[number % len(RESIDENTS)]
        distance = min(3, number // 3)
        mesh.peer(
            long_name,
            short_name,
            role=role,
            distance=distance,
            snr=8.0 - 4.25 * distance - number % 3,
            battery_percent=100 - 7 * number % 90,
            position=(HOME[0] + 0.031 * number, HOME[1] - 0.027 * number),
        )
    return node


def line(packet: OnAir) -> Text:
    """One transmission for the terminal; what people wrote is shown without control signs."""
    to = "all" if packet.to == BROADCAST else node_id(packet.to)
    text = Text(time.strftime("%H:%M:%S ", time.localtime(packet.at)), style="dim")
    text.append(f"{node_id(packet.by)} → {to} ")
    text.append(f"{packet.cause}, {_content(packet)}", style="bold" if packet.is_text else "")
    text.append(f"  [{packet.frame_bytes} B, {packet.airtime_s:.3f} s, id {packet.packet_id:08x}]", style="dim")
    return text


def _content(packet: OnAir) -> str:
    if packet.is_text:
        return repr(packet.text)
    if packet.error is not None:
        return f"routing error {packet.error}" if packet.error else f"for {packet.request_id:08x}"
    return port_name(packet.port)
