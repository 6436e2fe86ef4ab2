"""Stories of a bot that holds its tongue: in quiet hours, for nodes nobody wants answered, and for those far away."""

from datetime import datetime
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.config import AirtimeSettings, BotSettings, Config
from meshai.messages import Direct, Node
from meshai.testing import FakeRadio
from tests.stories import ANNA, BEN, story

KEY, SHOWN_KEY = bytes(range(32)), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def at(time: str) -> float:
    """That time of a day where this machine is."""
    return datetime.fromisoformat(f"2027-06-01T{time}").timestamp()


async def test_nothing_is_answered_in_quiet_hours_but_what_is_under_way_is_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(airtime=AirtimeSettings(quiet_hours=("22:00-22:10",)))
    caplog.set_level("INFO")
    async with story(tmp_path, config=config, clock=ScaledClock(50, start=at("21:59:40"))) as told:
        told.model.gate.clear()
        told.radio.hear("late?", sender=ANNA)
        await told.until(lambda: bool(told.model.requests))
        await told.until(lambda: told.clock.now() > at("22:00:00"))
        told.model.gate.set()
        await told.until(lambda: len(told.radio.sent) == 1)
        for text in ("are you there?", "!ping", "more"):
            told.radio.hear(text, sender=BEN)
        told.radio.hear("@MeshAI hi", sender=BEN, channel=2)
        told.radio.hear("just talk", sender=BEN, channel=2)
        await told.quiet(60)
        assert told.said_to(Direct(ANNA)) == ["You said late?"]
        assert len(told.radio.sent) == len(told.model.requests) == 1
        await told.until(lambda: told.clock.now() > at("22:10:00"))
        told.radio.hear("good morning", sender=BEN)
        await told.until(lambda: len(told.radio.sent) == 2)
    assert caplog.text.count("silent, quiet hours 22:00-22:10") == 4
    assert caplog.text.count("silent, not addressed") == 1


async def test_what_was_asked_before_quiet_hours_is_answered_in_them_also_by_the_next_process(tmp_path: Path) -> None:
    config = Config(airtime=AirtimeSettings(quiet_hours=("22:00-22:10",)))
    clock = ScaledClock(50, start=at("21:59:50"))
    async with story(tmp_path, config=config, clock=clock) as told:
        told.model.gate.clear()
        told.radio.hear("are you there?", sender=ANNA, heard_at=clock.now())
        await told.until(lambda: bool(told.model.requests))
    await clock.sleep(at("22:00:00") - clock.now())
    async with story(tmp_path, config=config, clock=clock) as again:
        await again.until(lambda: len(again.radio.sent) == 1)
        assert at("22:00:00") < clock.now() < at("22:10:00")
    assert again.said_to(Direct(ANNA)) == ["You said are you there?"]


async def test_ignored_nodes_cost_nothing_not_even_a_look_into_the_model(tmp_path: Path) -> None:
    config = Config(bot=BotSettings(ignore_nodes=(SHOWN_KEY,)))
    radio = FakeRadio(nodes=[Node(ANNA, "Anna", public_key=KEY), Node(BEN, "Ben")])
    async with story(tmp_path, config=config, radio=radio) as told:
        radio.hear("hi", sender=ANNA)
        radio.hear("@MeshAI hi", sender=ANNA, channel=2)
        radio.hear("!ping", sender=BEN, public_key=KEY)
        await told.quiet()
        assert (radio.sent, told.model.requests) == ([], [])
        radio.hear("hi", sender=BEN)
        await told.until(lambda: len(radio.sent) == 1)


async def test_a_channel_question_from_far_away_is_answered_by_direct_message_if_so_set(tmp_path: Path) -> None:
    config = Config(bot=BotSettings(max_hops=2, beyond_max_hops="direct"))
    async with story(tmp_path, config=config) as told:
        told.radio.hear("@MeshAI hi", sender=ANNA, channel=2, hops=3)
        await told.until(lambda: len(told.radio.sent) == 1)
    assert told.radio.sent[0].address.destination == Direct(ANNA)
    assert told.radio.sent[0].address.limit_bytes == 200
