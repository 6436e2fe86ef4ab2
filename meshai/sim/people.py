"""Scripted people on a simulated mesh, for the demo, tests and benchmarks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from meshai.clock import Clock
from meshai.sim.mesh import SimulatedMesh
from meshai.sim.peers import Peer

BOT_CHANNEL: Final = 1
"""The channel our people keep for talking with the bot."""


@dataclass(frozen=True, slots=True)
class Line:
    """Something a person says: directly to the bot, or on a channel; `after_s` seconds after the line before."""

    speaker: int
    """Index of the speaker among the people."""
    text: str
    after_s: float
    channel: int | None = None
    wants_answer: bool = True
    is_tapback: bool = False


async def perform(lines: Sequence[Line], people: Sequence[Peer], *, clock: Clock) -> list[tuple[Line, int]]:
    """Say the lines in their time; returns each with its packet id."""
    said: list[tuple[Line, int]] = []
    for line in lines:
        await clock.sleep(line.after_s)
        said.append((line, await say(line, people[line.speaker])))
    return said


async def say(line: Line, peer: Peer) -> int:
    """Say one line, as apps do wanting an ack, and reacting to the newest text heard when it is a tapback.

    Returns the packet id.
    """
    target = peer.inbox[-1].packet_id if line.is_tapback and peer.inbox else 0
    if line.channel is None:
        return await peer.send_direct(line.text, emoji=int(line.is_tapback), reply_id=target)
    return await peer.send_channel(line.channel, line.text, emoji=int(line.is_tapback), reply_id=target, want_ack=True)


def villagers(mesh: SimulatedMesh) -> list[Peer]:
    """A few people around Bend, Oregon, for a mesh that has none yet."""
    return [
        mesh.peer("Anna Weber", "ANNA", snr=7.5, battery_percent=93, position=(44.058, -121.315)),
        mesh.peer("Marek K7MRK", "MRK", snr=4.25, distance=1, position=(44.172, -121.410)),
        mesh.peer("Ольга", "ОЛЯ", snr=2.0, distance=1, position=(44.291, -121.549)),
        mesh.peer("山田 太郎", "山田", snr=-6.5, distance=2, position=(43.804, -121.580)),
    ]


VILLAGE_TALK: Final = (
    Line(0, "Hi there, my dog is called Rex.", 2),
    Line(1, "Good morning everyone, nice SNR today", 5, channel=0, wants_answer=False),
    Line(1, "@MeshAI what does SNR mean?", 6, channel=BOT_CHANNEL),
    Line(0, "What is my dog called?", 9),
    Line(0, "👍", 7, wants_answer=False, is_tapback=True),
    Line(2, "Привет! Как дела?", 5),
    Line(3, "!ping", 7),
    Line(1, "does anybody know if the ridge repeater is up?", 6, channel=BOT_CHANNEL, wants_answer=False),
    Line(0, "!whoami", 5),
    Line(3, "おはようございます", 6),
    Line(2, "!status", 8),
    Line(1, "How long is a half-wave dipole for 40 m?", 7),
)
"""What the people say in the demo: questions, talk that is none of the bot's business, commands, a tapback."""

_WORDS: Final = {
    "Latin": ["the", "quick", "radio", "on", "that", "hill", "hears", "every", "word", "we", "send", "tonight"],
    "Cyrillic": ["быстрое", "радио", "на", "холме", "слышит", "каждое", "слово", "этой", "ночью", "всегда"],
    "Greek": ["το", "γρήγορο", "ραδιόφωνο", "στον", "λόφο", "ακούει", "κάθε", "λέξη", "μας", "απόψε"],
    "Arabic": ["الراديو", "السريع", "على", "التل", "يسمع", "كل", "كلمة", "نرسلها", "الليلة", "دائما"],
    "CJK": ["山の上の", "速い無線は", "今夜も", "すべての言葉を", "聞いている", "你好", "世界"],
    "emoji": ["📡", "🏔️", "👩\u200d🚀", "🇩🇪", "👍🏽", "🔋", "🌲", "☀️"],
}


def crowd(mesh: SimulatedMesh, *, count: int = 20) -> list[Peer]:
    """`count` people with names in six scripts, some of them equal, all within reach of each other."""
    names = ("Alex", "Борис", "Νίκος", "سامي", "山本", "🦊")
    return [mesh.peer(names[number % len(names)], snr=8.0 - number) for number in range(count)]


def crowd_talk(rng: random.Random, *, people: int = 20, lines: int = 300, pause_s: float = 12.0) -> list[Line]:
    """`lines` seeded lines in six scripts; direct, addressed and not, on several channels, commands and tapbacks."""
    talk: list[Line] = []
    for number in range(lines):
        words = _WORDS[list(_WORDS)[number % len(_WORDS)]]
        text = f"{number}: {' '.join(rng.choices(words, k=rng.randint(2, 5)))}"
        speaker = rng.randrange(people)
        after_s = rng.uniform(0.2, 2 * pause_s)
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                line = Line(speaker, text, after_s)
            case 4 | 5:
                line = Line(speaker, f"@MeshAI {text}", after_s, channel=BOT_CHANNEL)
            case 6:
                line = Line(speaker, "!ping", after_s, channel=rng.choice((None, BOT_CHANNEL)))
            case 7:
                line = Line(speaker, text, after_s, channel=rng.choice((0, BOT_CHANNEL)), wants_answer=False)
            case 8:
                line = Line(speaker, f"@MeshAI {text}", after_s, channel=0, wants_answer=False)
            case _:
                line = Line(speaker, "👍", after_s, channel=rng.choice((None, 0)), wants_answer=False, is_tapback=True)
        talk.append(line)
    return talk
