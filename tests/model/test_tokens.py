import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshai.model.base import ChatMessage
from meshai.model.tokens import MESSAGE_TOKENS, estimate

# (text, tokens the vocabulary of Qwen2.5 cuts it into), measured through llama.cpp.
MEASURED = [
    ("The repeater on the ridge went down last night because of the storm; can someone check the batteries?", 21),
    ("Ретранслятор на хребте вчера вечером отключился из-за бури; кто-нибудь может проверить батареи?", 37),
    ("Ο αναμεταδότης στην κορυφογραμμή έπεσε χθες το βράδυ λόγω της καταιγίδας", 63),
    ("تعطل المكرر على التلال الليلة الماضية بسبب العاصفة هل يمكن لأحد فحص البطاريات", 25),
    ("昨晚山脊上的中继器因暴风雨而停机，有人能检查一下电池吗？", 21),
    ("昨夜、嵐のため尾根の中継器が停止しました。誰かバッテリーを確認できますか？", 28),
    ("👍🏔️📻🔋😀🎉🚑🧭", 9),
    ("कल रात तूफान के कारण रिपीटर बंद हो गया", 36),
    ("!a1b2c3d4 SNR -12.25 dB RSSI -118 3 hops 44.0582,-121.3153 KD7ABC", 47),
    ("1234567890 9876543210 3.14159", 29),
]


@pytest.mark.parametrize(("text", "tokens"), MEASURED)
def test_estimate_is_enough_and_not_three_times_too_much(text: str, tokens: int) -> None:
    assert tokens <= estimate([ChatMessage("user", text)]) <= MESSAGE_TOKENS + 3 * tokens


@given(st.lists(st.text(), max_size=5))
def test_a_prompt_costs_the_sum_of_its_messages(texts: list[str]) -> None:
    messages = [ChatMessage("user", text) for text in texts]
    assert estimate(messages) == sum(estimate([message]) for message in messages)


@given(st.text(st.characters(exclude_categories=()), max_size=200), st.text(max_size=50))
def test_more_text_never_costs_less(text: str, more: str) -> None:
    assert estimate([ChatMessage("user", text + more)]) >= estimate([ChatMessage("user", text)]) >= MESSAGE_TOKENS


def test_no_messages_cost_nothing() -> None:
    assert estimate([]) == 0
