"""How the program logs: one line a record, with a level systemd's journal understands, or a time for a person."""

import logging
from typing import Final

_JOURNAL_LEVELS: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _JournalFormatter(logging.Formatter):
    """Prefixes the level as `sd-daemon(3)` wants it, on every line, so that a traceback keeps its level too."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_JOURNAL_LEVELS.get(record.levelno, 5)}>"
        return "\n".join(f"{prefix}{line}" for line in super().format(record).splitlines())


def set_up(level: str, *, is_journal: bool) -> None:
    """Log to standard error from `level` on. Libraries speak up from warnings on only: they log what people write."""
    handler = logging.StreamHandler()
    if is_journal:
        handler.setFormatter(_JournalFormatter("%(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("meshai").setLevel(level.upper())
