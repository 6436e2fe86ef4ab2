"""The prompt: inside its budget, alternating, newest turns first to enter, the question always."""

from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshai.errors import ContextTooLong
from meshai.memory.context import Context, fit
from meshai.memory.memory import needed_tokens
from meshai.memory.prompts import spoken_by, system_text
from meshai.model.base import ChatMessage
from meshai.model.tokens import estimate


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def bot(text: str) -> ChatMessage:
    return ChatMessage("assistant", text)


async def context(
    oldest_first: Sequence[ChatMessage],
    question: str = "now?",
    *,
    persona: str = "be brief",
    budget_tokens: int = 500,
) -> Context:
    async def newest() -> AsyncIterator[ChatMessage]:
        for turn in reversed(oldest_first):
            yield turn

    return await fit(persona, newest(), question, budget_tokens=budget_tokens)


async def test_a_history_that_fits_is_sent_whole_and_in_order() -> None:
    made = await context([user("a"), bot("b"), user("c"), bot("d")])
    assert [message.content for message in made.messages] == ["be brief", "a", "b", "c", "d", "now?"]
    assert made.turns == 4


async def test_a_new_node_has_no_past() -> None:
    made = await context([])
    assert made.messages == (ChatMessage("system", "be brief"), user("now?"))


async def test_two_quick_texts_and_a_failed_answer_become_one_message() -> None:
    made = await context([user("a"), user("b"), bot("c"), user("failed")])
    assert [message.content for message in made.messages] == ["be brief", "a\nb", "c", "failed\nnow?"]


async def test_an_answer_whose_question_is_outside_the_window_is_left_out() -> None:
    made = await context([bot("orphan"), user("a"), bot("b")])
    assert [message.content for message in made.messages] == ["be brief", "a", "b", "now?"]


async def test_what_does_not_fit_is_the_oldest() -> None:
    turns = [turn for number in range(40) for turn in (user(f"question {number}"), bot(f"answer {number}"))]
    made = await context(turns, budget_tokens=120)
    contents = [message.content for message in made.messages[1:-1]]
    assert contents == [turn.content for turn in turns[-len(contents) :]]
    assert 0 < len(contents) < len(turns)


@given(
    turns=st.lists(st.builds(ChatMessage, st.sampled_from(["user", "assistant"]), st.text(max_size=80)), max_size=30),
    question=st.text(max_size=2000),
    persona=st.text(max_size=2000),
    budget=st.integers(min_value=0, max_value=1500),
)
async def test_any_prompt_alternates_and_stays_inside_the_budget(
    turns: list[ChatMessage], question: str, persona: str, budget: int
) -> None:
    if estimate([ChatMessage("system", persona), user(question)]) > budget:
        with pytest.raises(ContextTooLong, match=r"shorten bot.persona or raise model\.context_tokens"):
            await context(turns, question, persona=persona, budget_tokens=budget)
        return
    made = await context(turns, question, persona=persona, budget_tokens=budget)
    roles = [message.role for message in made.messages]
    assert roles == ["system", "user"] + ["assistant", "user"] * ((len(roles) - 2) // 2)
    assert made.tokens == estimate(made.messages) <= budget
    assert made.messages[0].content == persona
    assert made.messages[-1].content.endswith(question)


@given(
    persona=st.text(max_size=300),
    name=st.text(max_size=39).filter(lambda name: len(name.encode(errors="replace")) <= 39),
    question=st.text(max_size=233).filter(lambda text: len(text.encode(errors="replace")) <= 233),
)
def test_what_is_kept_free_for_a_question_holds_any_packet(persona: str, name: str, question: str) -> None:
    system = system_text(persona, name=name, room_characters=2270)
    needed = needed_tokens(persona)
    assert estimate([ChatMessage("system", system), user(question)]) <= needed
    system = system_text(persona, name=None, room_characters=2270)
    assert estimate([ChatMessage("system", system), user(spoken_by(name, question))]) <= needed
