"""The words we send the model around what people said."""

from meshai.plaintext import one_line_name


def system_text(persona: str, *, name: str | None, room_characters: int) -> str:
    """What the model is told: who it is, whom it talks to (an untrusted name, quoted), and how much fits."""
    lines = [persona, f"Keep the answer under {room_characters} characters, without Markdown."]
    if name:
        lines.append(f'The user you talk to is named "{one_line_name(name)}".')
    return "\n".join(lines)


def spoken_by(name: str, text: str) -> str:
    """A channel turn, with its speaker: several people talk there."""
    return f"{one_line_name(name)}: {text}"
