"""How the running bot is, for a terminal of 80 columns."""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshai.cli.airview import harmless
from meshai.commands.base import duration
from meshai.messages import Fate
from meshai.outbox import REMEDIES
from meshai.status import Hour, Part, Report, SentReply, Status, Talker

BAR_ROWS: Final = 3
EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
NAME_COLUMNS: Final = 24
STYLES: Final[Mapping[str, str]] = {
    Fate.DELIVERED: "green",
    Fate.RELAYED: "green",
    Fate.UNCONFIRMED: "yellow",
    Fate.FAILED: "red",
    Fate.EXPIRED: "red",
}


def picture(report: Report) -> RenderableType:
    """Everything a report says. Names and reasons are untrusted, and shown as mere text."""
    parts: list[RenderableType] = [_state(report), Text(), _chart(report.hours)]
    if report.replies:
        parts += [Text(), Text("newest replies", "bold"), _replies(report)]
    if report.talkers:
        parts += [Text(), _talkers_title(report), _talkers(report)]
    return Group(*parts)


def _state(report: Report) -> Table:
    status = report.status
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [
        ("MeshAI", Text(harmless(f"{status.version}, up {duration(status.uptime_s)}"))),
        ("link", Text(harmless(status.radio), "green" if status.is_connected else "red")),
        ("radio", Text(_radio(status))),
        ("model", _model(status)),
        ("memory", Text("the database cannot be used: nothing is kept, the log says why", "red"))
        if report.is_stand_in
        else ("", Text()),
        ("silent", Text(harmless(report.silence), "yellow")),
        ("airtime", _airtime(status)),
        ("texts", _texts(status)),
        ("packets", _packets(status)),
        ("queue", Text(_queue(report))),
    ]
    for title, shown in rows:
        if shown:
            table.add_row(title, shown)
    return table


def _radio(status: Status) -> str:
    if not status.modem:
        return ""
    busy = status.airtime.utilisation_percent
    return harmless(
        ", ".join(
            filter(
                None,
                [
                    status.modem,
                    f"firmware {status.firmware}" if status.firmware else "",
                    f"channel {busy:.0f} % busy" if busy is not None else "",
                ],
            )
        )
    )


def _model(status: Status) -> Text:
    if status.model_trouble:
        return Text(harmless(f"out of order: {status.model_trouble}"), "red")
    return Text(harmless(status.model) or "none: only commands are answered")


def _airtime(status: Status) -> Text:
    if not status.modem:
        return Text()
    spent = status.airtime
    return Text(
        f"{spent.spent_s:.1f} s of {spent.budget_s:.0f} s spent in the last hour, {spent.left_s:.1f} s left",
        "" if spent.left_s else "red",
    )


def _texts(status: Status) -> Text:
    shown = Text(f"{status.heard} heard, {status.answered} answered, {status.refused} refused to spare the air")
    if status.apologies:
        shown.append(f", {status.apologies} model failed", "yellow")
    return shown


def _packets(status: Status) -> Text:
    shown = Text(f"{status.sent} sent")
    if status.failed:
        shown.append(f", {status.failed} failed", "yellow")
    return shown.append(f", {status.waiting} waiting")


def _queue(report: Report) -> str:
    places = [f"{harmless(str(queued.to))} {queued.packets}" for queued in report.queue]
    rest = report.status.waiting - sum(queued.packets for queued in report.queue)
    return ", ".join([*places, *([f"others {rest}"] if rest > 0 else [])])


def _chart(hours: Sequence[Hour]) -> RenderableType:
    """A bar for each hour, as high as its part of the highest."""
    highest = max(hour.spent_s for hour in hours)
    total = sum(hour.spent_s for hour in hours)
    title = Text("airtime by hour", "bold").append(f", {total:.0f} s in all, {highest:.0f} s at most", "not bold")
    if not total:
        return title
    steps = len(EIGHTHS) - 1
    heights = [max(round(hour.spent_s / highest * BAR_ROWS * steps), hour.spent_s > 0) for hour in hours]
    rows = [
        Text("".join(f" {EIGHTHS[min(max(height - row * steps, 0), steps)] * 2}" for height in heights), "cyan")
        for row in reversed(range(BAR_ROWS))
    ]
    names = "".join(time.strftime(" %H", time.localtime(hour.began_at)) for hour in hours)
    return Group(title, *rows, Text(names, "dim"))


def _replies(report: Report) -> Table:
    table = _table("to", "age", "parts")
    for reply in report.replies:
        age = duration(max(0.0, report.at - reply.queued_at))
        table.add_row(Text(harmless(str(reply.to))), Text(age), _parts(reply))
    return table


def _parts(reply: SentReply) -> Text:
    shown = []
    for _, alike in groupby(reply.parts, key=lambda part: (part.state, part.reason, part.tries)):
        parts = list(alike)
        shown.append(Text(harmless(f"{_numbers(parts)}{_end(parts[0])}"), STYLES.get(parts[0].state, "")))
    return Text("; ").join(shown)


def _numbers(parts: Sequence[Part]) -> str:
    first, last = parts[0], parts[-1]
    if last.parts == 1:
        return ""
    return f"{first.part}/{last.parts} " if len(parts) == 1 else f"{first.part}-{last.part}/{last.parts} "


def _end(part: Part) -> str:
    tries = f" after {part.tries} tries" if part.tries > 1 else ""
    return f"{part.state}{tries}{f': {REMEDIES.get(part.reason, part.reason)}' if part.reason else ''}"


def _talkers_title(report: Report) -> Text:
    rest = report.talkers_in_all - len(report.talkers)
    title = Text("who talks to it", "bold").append(", in the last 24 hours", "not bold")
    return title.append(f"; {rest} more are not shown" if rest else "", "not bold")


def _talkers(report: Report) -> Table:
    table = _table("name", "node", "messages", "last heard")
    for talker in report.talkers:
        table.add_row(*_cells(report, talker))
    return table


def _cells(report: Report, talker: Talker) -> Iterable[Text]:
    return (
        Text(harmless(talker.node.name)),
        Text(harmless(talker.node.id)),
        Text(str(talker.messages)),
        Text(f"{duration(max(0.0, report.at - talker.heard_at))} ago"),
    )


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(
            title,
            no_wrap=number + 1 < len(titles),
            overflow="ellipsis" if not number else "fold",
            max_width=None if number else NAME_COLUMNS,
        )
    return table
