"""Facts: found in what people say of themselves, in three languages, replaced and ended, told where they belong."""

import random
from pathlib import Path

import pytest

from meshai.config import Config
from meshai.memory.facts import Facts
from meshai.memory.statements import Ends, Forgets, Reader, States
from meshai.messages import Channel, Conversation, Direct, Turn
from meshai.store import forgetting, turns
from meshai.store.database import Database
from tests.stories import ANNA, BEN, story


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("my name is Anna", [("name", "Anna")]),
        ("Hi, I'm Anna", [("name", "Anna")]),
        ("hello there. My name's Zoë Łukasz and I live in New York", [("name", "Zoë Łukasz"), ("home", "New York")]),
        ("I moved from Oslo to Bergen last year", [("home", "Bergen")]),
        ("I live in St. Gallen. Nice there.", [("home", "St. Gallen")]),
        ("I'm allergic to nuts, bees and wasps.", [("allergy", "nuts"), ("allergy", "bees"), ("allergy", "wasps")]),
        ("I'm allergic to nuts, thanks", [("allergy", "nuts")]),
        ("my callsign is dl1abc/p now", [("call sign", "DL1ABC/P")]),
        ("my dog is called Rex", [("pet", "dog Rex")]),
        ("I use a Heltec V3 now", [("gear", "Heltec V3")]),
        ("please answer in German", [("language", "German")]),
        ("use metric units", [("units", "metric")]),
        ("remember that the key is under the stone", [("note", "the key is under the stone")]),
        ("remember, my name is Zoë", [("name", "Zoë")]),
        ("ich heiße Anna und wohne in Köln", [("name", "Anna"), ("home", "Köln")]),
        ("Ich bin von Kiel nach Hamburg umgezogen.", [("home", "Hamburg")]),
        ("ich bin gegen Nüsse und Bienen allergisch", [("allergy", "Nüsse"), ("allergy", "Bienen")]),
        ("me llamo José María y vivo en Sevilla", [("name", "José María"), ("home", "Sevilla")]),
        ("soy alérgica a las nueces y al polen", [("allergy", "nueces"), ("allergy", "polen")]),
        ("llámame Pepe", [("nickname", "Pepe")]),
    ],
)
def test_what_a_person_says_of_themselves_is_found(reader: Reader, text: str, told: list[tuple[str, str]]) -> None:
    said = reader.read(text)
    assert [(each.slot, each.value) for each in said if isinstance(each, States)] == told
    assert len(said) == len(told)


@pytest.mark.parametrize(
    "text",
    [
        "my dog is sick", "MY DOG IS SICK", "Hi I'm sick", "is my name Anna?", 'she said "my name is Bob"',
        "she thinks my name is Bob", "if my name is Anna, say hi", "I wish I lived in Rome", "i moved to bed",
        "I live in a small house", "call me back later", "call me when you can", "my name is hard to pronounce",
        "my name is on the list", "my battery is 40%", "please reply in one sentence", "don't forget the milk",
        "what is my name?", "> my name is Bob", "I live in fear", "I moved to channel 3", "mein Hund ist krank",
        "mein Auto ist Schrott", "Ich wohne in der Stadt", "ich wohne in einem kleinen Haus", "wie heiße ich?",
        "mi perro está enfermo", "¿vivo en Sevilla?", "dime qué hora es", "soy de los que madrugan", "", "👍",
        "ok thanks",
        "how is the weather in Berlin today?", "anyone on LongFast tonight", "Wie ist das Wetter?",
        "¿qué tiempo hace?",
    ],
)  # fmt: skip
def test_chatter_teaches_nothing(reader: Reader, text: str) -> None:
    assert list(reader.read(text)) == []


def test_ends_and_forgetting_are_found(reader: Reader) -> None:
    assert reader.read("I am no longer allergic to nuts") == [Ends("allergy", "nuts")]
    assert reader.read("ya no soy alérgico a las nueces") == [Ends("allergy", "nueces")]
    assert reader.read("ich bin nicht mehr gegen Nüsse allergisch") == [Ends("allergy", "Nüsse")]
    assert reader.read("vergiss meinen Namen") == [Forgets(frozenset({"name", "nickname"}), ())]


def test_a_hostile_text_is_read_in_bounded_time(reader: Reader) -> None:
    for text in ("my name is " * 200, "and " * 400, ", " * 500, "i live in " + "a " * 500, "(" * 2000):
        assert len(reader.read(text)) <= 1


class Life:
    """Someone who tells things, one exchange after another."""

    def __init__(self, database: Database, conversation: Conversation, node: int = ANNA) -> None:
        self.database, self.conversation, self.node = database, conversation, node
        self.facts = Facts()
        self.exchange = 0

    async def say(self, *texts: str) -> None:
        for text in texts:
            self.exchange += 1
            async with self.database.transaction() as db:
                turn = Turn(self.conversation, text, self.node, is_ours=False, at=float(self.exchange))
                await turns.add_question(db, self.exchange, turn, packet_id=0, public_key=None)
                await self.facts.learn(db, self.conversation, self.node, until=self.exchange)

    async def lines(self, question: str = "and now?") -> list[str]:
        async with self.database.transaction() as db:
            return list(await self.facts.lines(db, self.conversation, self.node, question))

    async def rows(self) -> int:
        async with self.database.transaction() as db, db.execute("SELECT count(*) FROM facts") as cursor:
            row = await cursor.fetchone()
        return int(row[0]) if row else -1


SAYS = {
    "name": (("my name is {}", "mein Name ist {}", "me llamo {}"), ("Anna", "Łukasz", "Søren", "José María", "Zoë")),
    "home": (("I live in {}", "I moved to {}", "ich wohne jetzt in {}", "ich bin nach {} gezogen", "vivo en {}",
              "me mudé a {}"), ("Berlin", "New York", "Köln", "Sevilla", "Oslo")),
    "call sign": (("my call sign is {}", "mein Rufzeichen ist {}", "mi indicativo es {}"),
                  ("DL1ABC", "EA4XYZ", "K7RST", "OE3QQ", "2E0VBN")),
    "nickname": (("call me {}", "nenn mich {}", "llámame {}"), ("Bo", "Kit", "Mimi", "Tito", "Ace")),
}  # fmt: skip
FILLER = (
    "my dog is sick",
    "ok thanks",
    "Wie ist das Wetter?",
    "¿qué hora es?",
    "is my name Bob?",
    "lol",
    "call me later",
)


@pytest.mark.parametrize("seed", range(12))
async def test_only_the_newest_of_each_slot_holds_whatever_the_language(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    life = Life(database, Direct(ANNA))
    values: dict[str, list[str]] = {slot: rng.sample(choices, 3) for slot, (_, choices) in SAYS.items()}
    await life.say("I'm allergic to peanuts")
    for step in range(3):
        for slot in rng.sample(sorted(SAYS), len(SAYS)):
            await life.say(rng.choice(SAYS[slot][0]).format(values[slot][step]), *rng.sample(FILLER, 3))
    assert sorted(await life.lines()) == sorted(
        [*(f'{slot}: "{told[-1]}"' for slot, told in values.items()), 'allergy: "peanuts"']
    )
    assert 'home: "' + values["home"][0] + '" (before, no longer so)' in await life.lines(
        "where did I live before that?"
    )


async def test_a_hundred_restatements_are_one_row(database: Database) -> None:
    life = Life(database, Direct(ANNA))
    await life.say(*["my name is Anna", "MY NAME IS ANNA!", "ich heiße anna", "me llamo Anna"] * 25)
    await life.say(*["I'm allergic to nuts"] * 100)
    assert await life.rows() == 2


async def test_many_valued_slots_append_and_a_fuller_value_takes_the_place_of_a_lesser(database: Database) -> None:
    life = Life(database, Direct(ANNA))
    await life.say(
        "I have a dog", "my dog is called Rex", "I have a dog", "my cat is called Mia", "I'm allergic to nuts and bees"
    )
    assert sorted(await life.lines()) == ['allergy: "bees"', 'allergy: "nuts"', 'pet: "cat Mia"', 'pet: "dog Rex"']
    await life.say("my dog Rex died", "I'm no longer allergic to bees")
    assert sorted(await life.lines()) == ['allergy: "nuts"', 'pet: "cat Mia"']


async def test_what_shall_be_forgotten_is_gone_also_as_the_past(database: Database) -> None:
    life = Life(database, Direct(ANNA))
    await life.say("my name is Anna", "my name is Bea", "I'm allergic to nuts", "forget my name")
    assert await life.lines("what was my former name?") == ['allergy: "nuts"']
    await life.say("please forget about my allergy to nuts")
    assert await life.rows() == 0


async def test_facts_go_with_the_exchange_they_came_from(database: Database) -> None:
    life = Life(database, Direct(ANNA))
    await life.say("my name is Anna", "I live in Berlin")
    async with database.transaction() as db:
        await forgetting.forget(db, Direct(ANNA), [1])
    assert await life.lines() == ['home: "Berlin"']
    async with database.transaction() as db:
        await forgetting.forget_all(db, Direct(ANNA))
    assert await life.rows() == 0


async def test_facts_stay_with_their_conversation_and_their_speaker(database: Database) -> None:
    anna = Life(database, Direct(ANNA))
    await anna.say("my locker code is 4711")
    channel = Life(database, Channel(0))
    channel.exchange = 1
    await channel.say("my name is Anna")
    async with database.transaction() as db:
        assert await channel.facts.lines(db, Channel(0), BEN, "who am I?") == []
        assert await channel.facts.lines(db, Direct(BEN), BEN, "who am I?") == []
    assert await channel.lines() == ['name: "Anna"']
    assert await anna.lines() == ['locker code: "4711"']


async def test_a_full_memory_tells_the_model_and_a_chat_memory_does_not(tmp_path: Path) -> None:
    for level, is_told in (("full", True), ("chat", False)):
        config = Config.model_validate({"memory": {"level": level}})
        async with story(tmp_path / level, config=config) as told:
            await told.ask("my name is Annabell and I'm allergic to nuts")
            await told.ask("what may I eat?")
            system = told.model.requests[-1][0].content
            assert ('- name: "Annabell"\n- allergy: "nuts"' in system) == is_told
            assert ("allergy" in system) == is_told


def test_a_sentence_of_clauses_without_end_is_not_read_to_its_end(reader: Reader) -> None:
    assert reader.read("well, " * 5 + "my name is Anna") == [States("name", "Anna")]
    assert list(reader.read("well, " * 30 + "my name is Anna")) == []
