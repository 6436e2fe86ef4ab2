"""The sign of a model at work: on terminals only, and gone when the answer is there."""

import asyncio
import io

import pytest
from rich.console import Console

from meshai.cli import thinking


async def shown(*, is_terminal: bool, is_thinking: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=80)
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return is_thinking

    task = asyncio.create_task(thinking.show(console, look))
    while looks < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return out.getvalue()


@pytest.mark.parametrize(
    ("is_terminal", "is_thinking", "is_seen"), [(True, True, True), (True, False, False), (False, True, False)]
)
async def test_the_sign(is_terminal: bool, is_thinking: bool, is_seen: bool) -> None:
    text = await shown(is_terminal=is_terminal, is_thinking=is_thinking)
    assert (thinking.SIGN in text) is is_seen
    # The line is erased and the cursor shown again.
    assert text == "" or (text.endswith("\x1b[2K") and "\x1b[?25h" in text)
