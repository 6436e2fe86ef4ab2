"""What a start would refuse, beyond what a settings file can be judged by alone."""

import re

from meshai.app import unusable
from meshai.config import PROMPT_TOKENS_MIN, BotSettings, Config, ModelSettings


def test_the_usual_settings_are_usable() -> None:
    assert unusable(Config()) == {}
    assert unusable(Config(model=ModelSettings(context_tokens=200 + PROMPT_TOKENS_MIN))) == {}


def test_a_persona_that_leaves_no_room_for_a_question_is_refused_with_the_room_there_is() -> None:
    complaint = unusable(Config(bot=BotSettings(persona="sage " * 1800)))["bot", "persona"]
    assert complaint.startswith("found 9000 characters, about 3008 tokens; expected at most 1")
    assert "model.context_tokens" in complaint
    assert unusable(Config(bot=BotSettings(persona="sage " * 1800), model=ModelSettings(context_tokens=4096))) == {}


def test_the_room_named_is_the_room_there_is() -> None:
    def is_refused(words: int) -> bool:
        return bool(unusable(Config(bot=BotSettings(persona="sages " * words))))

    least = next(words for words in range(100, 2000) if is_refused(words))
    complaint = unusable(Config(bot=BotSettings(persona="sages " * least)))["bot", "persona"]
    limit = re.search(r"expected at most (\d+) tokens", complaint)
    assert limit is not None
    # Six letters are two tokens, and a message costs eight.
    assert 2 * (least - 1) + 8 <= int(limit[1]) < 2 * least + 8
