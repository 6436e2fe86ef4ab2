"""Whole stories: from a text on the radio to packets in the air, through the real store, router and outbox."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshai.clock import ScaledClock
from meshai.config import AirtimeSettings, BotSettings, ChannelSettings, Config, ModelSettings, ReplySettings
from meshai.errors import ModelRefused, ModelTimeout, ModelUnavailable
from meshai.listener import MOST_REPEATS
from meshai.messages import Channel, Delivery, Direct, Fate
from meshai.model.base import ChatMessage
from meshai.model.tokens import estimate
from meshai.store import heard
from meshai.store.database import open_database
from meshai.testing import FakeRadio
from tests.stories import ANNA, BEN, story


async def test_a_direct_question_is_answered_to_its_sender_in_reply(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.radio.hear("hello", sender=ANNA, packet_id=77)
        await told.until(lambda: bool(told.radio.sent))
    packet = told.radio.sent[0]
    assert packet.text == "You said hello"
    assert (packet.address.destination, packet.address.reply_to) == (Direct(ANNA), 77)
    assert 'named "Anna"' in told.model.requests[0][0].content


async def test_a_second_question_brings_the_first_exchange_along_and_no_one_elses(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.radio.hear("my dog is Rex", sender=ANNA)
        told.radio.hear("my code is 4711", sender=BEN)
        await told.until(lambda: len(told.radio.sent) == 2)
        told.radio.hear("what is my dog called?", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 3)
    last = [message.content for message in told.model.requests[-1][1:]]
    assert last == ["my dog is Rex", "You said my dog is Rex", "what is my dog called?"]


async def test_direct_talk_never_enters_a_channel(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.radio.hear("my secret is plum", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 1)
        told.radio.hear("@MeshAI what is my secret?", sender=ANNA, channel=2)
        await told.until(lambda: len(told.radio.sent) == 2)
    assert "plum" not in str(told.model.requests[-1])
    assert told.model.requests[-1][-1].content == "Anna: what is my secret?"
    assert told.radio.sent[-1].address.destination == Channel(2)


async def test_one_nodes_questions_are_answered_in_order_and_others_do_not_wait(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.model.gate.clear()
        told.radio.hear("first", sender=ANNA)
        told.radio.hear("second", sender=ANNA)
        told.radio.hear("ben's", sender=BEN)
        await told.until(lambda: len(told.model.requests) == 2)
        await told.clock.sleep(5)
        assert sorted(request[-1].content for request in told.model.requests) == ["ben's", "first"]
        told.radio.hear("!ping", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 1)
        assert told.radio.sent[0].text.startswith("pong")
        told.model.gate.set()
        await told.until(lambda: len(told.radio.sent) == 4)
    assert told.said_to(Direct(ANNA))[1:] == ["You said first", "You said second"]
    second = next(request for request in told.model.requests if request[-1].content == "second")
    assert [message.content for message in second[1:]] == ["first", "You said first", "second"]


async def test_the_same_packet_is_answered_once_also_after_a_restart(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.radio.hear("hello", sender=ANNA, packet_id=5)
        told.radio.hear("hello", sender=ANNA, packet_id=5)
        await told.until(lambda: bool(told.radio.sent))
        await told.quiet()
        told.radio.hear("hello", sender=ANNA, packet_id=6)
        await told.until(lambda: len(told.radio.sent) == 2)
    async with story(tmp_path) as again:
        again.radio.hear("hello", sender=ANNA, packet_id=5)
        await again.quiet()
    assert again.radio.sent == []
    assert again.model.requests == []


async def test_what_deserves_silence_gets_it_everywhere(tmp_path: Path) -> None:
    config = Config(bot=BotSettings(ignore_nodes=("!0000be17",)))
    async with story(tmp_path, config=config) as told:
        radio = told.radio
        radio.hear("hi", sender=radio.me.node.number)
        radio.hear("👍", is_tapback=True)
        radio.hear(" \n​")
        radio.hear("from the past", is_stale=True)
        radio.hear("from the internet", via_mqtt=True)
        radio.hear("ignored", sender=BEN)
        radio.hear("@MeshAI on the primary channel", channel=0)
        radio.hear("nobody asked you", channel=2)
        radio.hear("!weather", channel=2)
        await told.quiet()
    assert (radio.sent, told.model.requests) == ([], [])


async def test_a_channel_question_can_be_answered_by_direct_message(tmp_path: Path) -> None:
    config = Config(channels=ChannelSettings(reply_by="direct"))
    async with story(tmp_path, config=config) as told:
        told.radio.hear("MeshAI: hi", sender=ANNA, channel=3)
        await told.until(lambda: bool(told.radio.sent))
    assert told.radio.sent[0].address.destination == Direct(ANNA)
    assert told.radio.sent[0].address.limit_bytes == 200


async def test_a_long_answer_leaves_in_numbered_parts_and_memory_keeps_what_was_sent(tmp_path: Path) -> None:
    words = " ".join(f"слово{number}" for number in range(200))
    config = Config(replies=ReplySettings(max_packets=3))
    async with story(tmp_path, answer=lambda _: words, config=config) as told:
        told.radio.hear("tell me", sender=ANNA, packet_id=77)
        await told.until(lambda: len(told.radio.sent) == 3)
        told.radio.hear("what else?", sender=ANNA, packet_id=78)
        await told.until(lambda: len(told.radio.sent) == 6)
    assert [packet.address.reply_to for packet in told.radio.sent] == [77] * 3 + [78] * 3
    parts = told.said_to(Direct(ANNA))[:3]
    assert [part[:6] for part in parts] == ["(1/3) ", "(2/3) ", "(3/3) "]
    assert all(len(part) <= 150 and len(part.encode()) <= 200 for part in parts)
    remembered = told.model.requests[1][2].content
    assert remembered.startswith("слово0 слово1 ")
    assert "слово150" not in remembered


LONG = " ".join(f"word{number}" for number in range(150))


@pytest.mark.parametrize("words", ["!more", "go on", "More!", "weiter", "ещё", "続けて"])
async def test_more_sends_the_rest_without_asking_again_until_there_is_none(tmp_path: Path, words: str) -> None:
    async with story(tmp_path, answer=lambda _: LONG) as told:
        told.radio.hear("tell me", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 3)
        told.radio.hear(words, sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 6)
        assert len(told.model.requests) == 1
        told.radio.hear(words, sender=ANNA)
        await told.quiet()
        texts = told.said_to(Direct(ANNA))
        read = " ".join(re.sub(r"^\(\d/\d\) |… \[cut.*$", "", text) for text in texts)
        assert read.split() == LONG.split()
        assert len(told.model.requests) == 1
        told.radio.hear("!more", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == len(texts) + 1)
        assert told.radio.sent[-1].text == "There is no more to send."
        told.radio.hear("and now?", sender=ANNA)
        await told.until(lambda: len(told.model.requests) == 2)
    past = " ".join(message.content for message in told.model.requests[-1] if message.role == "assistant")
    assert past.replace("…", "").split() == LONG.split()


async def test_more_is_for_whoever_asked_where_they_asked(tmp_path: Path) -> None:
    async with story(tmp_path, answer=lambda messages: LONG if "tell" in messages[-1].content else "fine") as told:
        told.radio.hear("tell me", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 3)
        told.radio.hear("!more", sender=BEN)
        told.radio.hear("!more", sender=ANNA, channel=2)
        told.radio.hear("@MeshAI go on", sender=ANNA, channel=2)
        await told.until(lambda: len(told.radio.sent) == 6)
    assert told.said_to(Direct(BEN)) == ["There is no more to send."]
    assert sorted(told.said_to(Channel(2))) == ["There is no more to send.", "fine"]


async def test_the_rest_of_an_answer_survives_a_restart_but_not_an_hour_nor_a_reset(tmp_path: Path) -> None:
    async with story(tmp_path, answer=lambda _: LONG) as told:
        told.radio.hear("tell me", sender=ANNA)
        told.radio.hear("tell me", sender=BEN)
        await told.until(lambda: len(told.radio.sent) == 6)
    async with story(tmp_path, clock=told.clock) as again:
        again.radio.hear("!more", sender=ANNA, packet_id=901)
        await again.until(lambda: len(again.radio.sent) == 3)
        again.radio.hear("!reset", sender=ANNA, packet_id=902)
        await again.until(lambda: len(again.radio.sent) == 4)
        again.radio.hear("!more", sender=ANNA, packet_id=903)
        await again.until(lambda: len(again.radio.sent) == 5)
        assert again.radio.sent[-1].text == "There is no more to send."
    late = ScaledClock(50, start=told.clock.now() + 3700)
    async with story(tmp_path, clock=late) as later:
        later.radio.hear("!more", sender=BEN, packet_id=904)
        await later.until(lambda: bool(later.radio.sent))
    assert later.radio.sent[0].text == "There is no more to send."


@pytest.mark.parametrize("prefix", ["Anna: ", "MeshAI: ", "AI:", ""])
async def test_an_answer_does_not_begin_with_a_speakers_name(tmp_path: Path, prefix: str) -> None:
    async with story(tmp_path, answer=lambda _: f"{prefix}Time: 12:30") as told:
        told.radio.hear("when?", sender=ANNA)
        await told.until(lambda: bool(told.radio.sent))
    assert told.radio.sent[0].text == "Time: 12:30"


async def test_reasoning_and_markdown_never_leave_nor_stay(tmp_path: Path) -> None:
    async with story(tmp_path, answer=lambda _: "<think>hmm</think>**Yes**, `2*3*4` is 24.") as told:
        told.radio.hear("2*3*4?", sender=ANNA)
        await told.until(lambda: bool(told.radio.sent))
        told.radio.hear("sure?", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 2)
    assert told.radio.sent[0].text == "Yes, 2*3*4 is 24."
    assert told.model.requests[1][2].content == "Yes, 2*3*4 is 24."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelTimeout("slow"), "in time"),
        (ModelUnavailable("http://x/v1: 401, wrong key"), "can't reach"),
        (ModelRefused("empty"), "no usable answer"),
    ],
)
async def test_a_model_error_is_told_once_in_direct_and_never_on_a_channel(
    tmp_path: Path, error: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[str | Exception] = [error, error, "fine"]
    async with story(tmp_path, answer=lambda _: answers.pop(0)) as told:
        told.radio.hear("first", sender=ANNA)
        await told.until(lambda: bool(told.radio.sent))
        told.radio.hear("@MeshAI second", sender=ANNA, channel=2)
        await told.until(lambda: len(told.model.requests) == 2)
        await told.quiet()
        told.radio.hear("third", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 2)
    assert words in told.radio.sent[0].text
    assert told.said_to(Channel(2)) == []
    assert sum(str(error) in record.getMessage() for record in caplog.records) == 2
    assert [message.content for message in told.model.requests[2][1:]] == ["third"]


@pytest.mark.parametrize("answer", ["<think>I wonder", "\u200b", "\u2800", "&#8203;", "***"])
async def test_nothing_to_read_is_a_refusal(tmp_path: Path, answer: str) -> None:
    async with story(tmp_path, answer=lambda _: answer) as told:
        told.radio.hear("hm?", sender=ANNA)
        await told.until(lambda: bool(told.radio.sent))
    assert "no usable answer" in told.radio.sent[0].text


async def test_without_a_model_commands_work_and_questions_are_told_so(tmp_path: Path) -> None:
    async with story(tmp_path, has_model=False) as told:
        told.radio.hear("hello", sender=ANNA)
        told.radio.hear("!status", sender=BEN)
        told.radio.hear("@MeshAI hello", sender=BEN, channel=2)
        await told.until(lambda: len(told.radio.sent) == 2)
        await told.quiet()
    assert "only answer commands" in told.said_to(Direct(ANNA))[0]
    assert "no language model" in told.said_to(Direct(BEN))[0]
    assert told.said_to(Channel(2)) == []


async def test_reset_forgets_also_the_answer_that_is_being_written(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.radio.hear("my code is 4711", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 1)
        told.model.gate.clear()
        told.radio.hear("repeat it", sender=ANNA)
        await told.until(lambda: len(told.model.requests) == 2)
        told.radio.hear("!reset", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 2)
        told.model.gate.set()
        await told.until(lambda: len(told.radio.sent) == 3)
        told.radio.hear("what do you know?", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 4)
    assert [message.content for message in told.model.requests[-1][1:]] == ["what do you know?"]


async def test_a_question_in_hand_at_the_end_is_answered_at_the_next_start(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.model.gate.clear()
        told.radio.hear("are you there?", sender=ANNA, packet_id=9)
        told.radio.hear("and now?", sender=ANNA, packet_id=10)
        await told.until(lambda: bool(told.model.requests))
    assert told.radio.sent == []
    async with story(tmp_path, clock=told.clock) as again:
        await again.until(lambda: len(again.radio.sent) == 2)
        await again.quiet()
    assert again.said_to(Direct(ANNA)) == ["You said are you there?", "You said and now?"]
    async with story(tmp_path, clock=told.clock) as third:
        await third.quiet()
    assert third.radio.sent == []


async def test_a_question_from_too_long_ago_is_settled_in_silence(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.model.gate.clear()
        told.radio.hear("are you there?", sender=ANNA, heard_at=told.clock.now() - 3600)
        await told.until(lambda: bool(told.model.requests))
    async with story(tmp_path, clock=told.clock) as again:
        await again.quiet()
    assert again.radio.sent == []


async def test_a_question_that_keeps_killing_the_process_is_given_up_and_no_other(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.model.gate.clear()
        told.radio.hear("poison", sender=ANNA)
        told.radio.hear("harmless", sender=ANNA)
        await told.until(lambda: bool(told.model.requests))
    async with story(tmp_path) as again:
        again.model.gate.clear()
        await again.until(lambda: bool(again.model.requests))
    async with open_database(tmp_path / "meshai.db") as database, database.transaction() as db:
        (poison, repeats, _), (_, harmless_repeats, _) = await heard.unsettled(db)
        assert (repeats, harmless_repeats) == (1, 0), "a question that only waited its turn has ended no process"
        await heard.note_repeats(db, poison, MOST_REPEATS)
    async with story(tmp_path) as last:
        await last.until(lambda: len(last.radio.sent) == 2)
        await last.quiet()
    assert last.said_to(Direct(ANNA)) == [
        "Sorry, I broke down over your message several times.",
        "You said harmless",
    ]


async def test_a_question_is_begun_again_at_several_starts(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.model.gate.clear()
        told.radio.hear("hello", sender=ANNA)
        await told.until(lambda: bool(told.model.requests))
    async with open_database(tmp_path / "meshai.db") as database, database.transaction() as db:
        await heard.note_repeats(db, 1, MOST_REPEATS - 1)
    async with story(tmp_path) as again:
        await again.until(lambda: bool(again.radio.sent))
    assert again.said_to(Direct(ANNA)) == ["You said hello"]


async def test_a_fault_of_ours_costs_one_message_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def answer(messages: Sequence[ChatMessage]) -> str | Exception:
        return RuntimeError("bug") if messages[-1].content == "bad" else "fine"

    async with story(tmp_path, answer=answer) as told:
        told.radio.hear("bad", sender=ANNA)
        told.radio.hear("good", sender=BEN)
        await told.until(lambda: bool(told.radio.sent))
        assert told.said_to(Direct(BEN)) == ["fine"]
        told.radio.hear("good", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 2)
    assert "by a fault of ours" in caplog.text


async def test_stopping_before_there_was_ever_a_radio_ends_at_once(tmp_path: Path) -> None:
    radio = FakeRadio()
    radio.unplug()
    async with asyncio.timeout(5), story(tmp_path, radio=radio) as told:
        await told.clock.sleep(1)
    assert radio.sent == []


async def test_a_prompt_never_exceeds_its_budget_over_a_long_talk(tmp_path: Path) -> None:
    config = Config(
        model=ModelSettings(context_tokens=700, max_tokens=200), airtime=AirtimeSettings(answers_per_node_hour=60)
    )
    async with story(tmp_path, config=config, answer=lambda _: "ja " * 40, clock=ScaledClock(2000)) as told:
        for number in range(60):
            told.radio.hear(f"{number} " + "довольно длинный вопрос " * 4, sender=ANNA, heard_at=told.clock.now())
        await told.until(lambda: len(told.model.requests) == 60)
    for request in told.model.requests:
        assert estimate(request) <= 450
        assert request[0].role == "system"
        assert request[-1].role == "user"


async def test_a_question_of_more_than_the_model_takes_in_is_told_so_and_asked_of_nobody(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.radio.hear("a text as no packet carries it " * 300, sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 1)
        told.radio.hear("hello", sender=ANNA)
        await told.until(lambda: len(told.radio.sent) == 2)
    assert told.said_to(Direct(ANNA)) == [
        "Sorry, that is more than my language model can take in. Please ask in fewer words.",
        "You said hello",
    ]
    assert [request[-1].content for request in told.model.requests] == ["hello"]


async def test_who_asks_too_often_is_told_once_and_then_met_with_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = Config(airtime=AirtimeSettings(answers_per_node_hour=3))
    async with story(tmp_path, config=config) as told:
        for number in range(6):
            told.radio.hear(f"question {number}", sender=ANNA, packet_id=100 + number)
        told.radio.hear("Ben's question", sender=BEN)
        await told.until(lambda: len(told.radio.sent) == 5)
        await told.quiet()
        assert told.parts.listener.refused == 3
        assert await told.parts.memory.count(Direct(ANNA), ANNA) == 6
    assert [text.partition(".")[0] for text in told.said_to(Direct(ANNA))] == [
        "To keep the channel free I pause my answers to you",
        *(f"You said Anna: question {number}" for number in range(3)),
    ] or len(told.said_to(Direct(ANNA))) == 4
    assert len(told.model.requests) == 4
    silent = [record.getMessage() for record in caplog.records if "silent, answers per hour" in record.getMessage()]
    assert len(silent) == 3


async def test_who_missed_part_of_an_answer_is_told_when_heard_again_and_can_have_it(tmp_path: Path) -> None:
    long = " ".join(f"word{number:03}" for number in range(80))

    async with story(tmp_path, answer=lambda asked: long if "long" in asked[-1].content else "short") as told:
        lost = Delivery(Fate.FAILED, "MAX_RETRANSMIT")
        told.radio.fate = lambda packet: lost if "(2/3)" in packet.text else Delivery(Fate.DELIVERED)
        told.radio.hear("a long one", sender=ANNA)
        await told.until(lambda: told.parts.outbox.failed == 1)
        told.radio.fate = lambda packet: Delivery(Fate.DELIVERED)
        told.radio.hear("go on", sender=ANNA)
        await told.quiet()
        first, *tries, second, third, fourth = told.said_to(Direct(ANNA))
        told.radio.hear("!more", sender=ANNA)
        await told.quiet(12)
        rest = told.said_to(Direct(ANNA))[len(tries) + 4 :]
        assert told.parts.responder.answered == 3
        assert len(told.model.requests) == 1
    read = " ".join(re.sub(r"^\(\d/\d\) |….*", "", text) for text in (first, second, third, fourth, *rest))
    assert {text[:5] for text in tries} == {"(2/3)"}
    assert read.split() == long.split()

    async with story(tmp_path, answer=lambda asked: long if "long" in asked[-1].content else "short") as told:
        told.radio.fate = lambda packet: lost if "(2/3)" in packet.text else Delivery(Fate.DELIVERED)
        told.radio.hear("another long one", sender=ANNA, packet_id=101)
        await told.until(lambda: told.parts.outbox.failed == 1)
        told.radio.hear("hello?", sender=ANNA, packet_id=102)
        await told.until(lambda: told.parts.outbox.sent >= 2)
        told.radio.hear("and now?", sender=ANNA, packet_id=103)
        await told.until(lambda: told.parts.outbox.sent >= 3)
    assert told.said_to(Direct(ANNA))[-2:] == ["(Part of my last answer got lost.) short", "short"]


async def test_a_slow_answer_is_announced_by_a_sign_if_that_is_wanted(tmp_path: Path) -> None:
    config = Config(replies=ReplySettings(working_after_s=10))
    async with story(tmp_path, config=config) as told:
        told.model.gate.clear()
        told.radio.hear("think hard", sender=ANNA, packet_id=77)
        await told.until(lambda: len(told.radio.sent) == 1)
        assert told.radio.sent[0].is_tapback
        assert (told.radio.sent[0].text, told.radio.sent[0].address.reply_to) == ("⏳", 77)
        told.model.gate.set()
        await told.until(lambda: len(told.radio.sent) == 2)
        told.radio.hear("this is easy", sender=ANNA)
        await told.quiet(30)
    assert [packet.is_tapback for packet in told.radio.sent] == [True, False, False]


async def test_without_the_setting_there_is_no_sign(tmp_path: Path) -> None:
    async with story(tmp_path) as told:
        told.model.gate.clear()
        told.radio.hear("think hard", sender=ANNA)
        await told.quiet(60)
        assert told.radio.sent == []
        told.model.gate.set()
        await told.until(lambda: len(told.radio.sent) == 1)
