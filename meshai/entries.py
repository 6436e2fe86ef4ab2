"""What may be written for a setting that is more than a number or free text, and what it means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

TCP_PORT: Final = 4403
"""Where a node with network access listens."""

_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_SWITCHED: Final[Mapping[str, bool]] = {"on": True, "yes": True, "off": False, "no": False}
_NODE_ID: Final = "![0-9a-fA-F]{8}"
_KEY: Final = "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]="


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


def _switched(found: object) -> object:
    return _SWITCHED.get(found.lower(), found) if isinstance(found, str) else found


NodeOrKey: TypeAlias = Annotated[
    str,
    _matching(
        f"{_NODE_ID}|{_KEY}",
        'a node id such as "!a1b2c3d4", or the public key of a node, 44 characters that end in =, as the apps show it',
    ),
    Field(json_schema_extra={"pattern": f"^({_NODE_ID}|{_KEY})$", "examples": ["!a1b2c3d4"]}),
]
PublicKey: TypeAlias = Annotated[
    str,
    _matching(_KEY, "a public key, 44 characters that end in =, as the apps show it; an id or a name proves nothing"),
    Field(json_schema_extra={"pattern": f"^{_KEY}$", "examples": ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]}),
]
Hours: TypeAlias = Annotated[
    str,
    _matching(
        rf"({_TIME})-(?!\1)({_TIME})",
        'two different times from 00:00 to 23:59, such as "22:00-07:00"; to be quiet always, set airtime.transmit to '
        "off",
    ),
    Field(json_schema_extra={"pattern": rf"^{_TIME}-{_TIME}$", "examples": ["22:00-07:00"]}),
]
Switch: TypeAlias = Annotated[bool, BeforeValidator(_switched)]
"""True or false, also in the other words that people are used to in YAML."""
Word: TypeAlias = Annotated[str, Field(pattern=r"^[^\s!]\S*$", examples=["help"])]
"""Something to type after the `!` of a command."""
Alias: TypeAlias = Annotated[str, Field(pattern=r"\S", examples=["bot"])]


@dataclass(frozen=True, slots=True)
class SerialAddress:
    """A serial port, or with path None whichever single port a radio is found on."""

    path: str | None = None


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int = TCP_PORT


@dataclass(frozen=True, slots=True)
class BleAddress:
    device: str
    """A Bluetooth address, or the name the device advertises."""


RadioAddress: TypeAlias = SerialAddress | TcpAddress | BleAddress


def parse_radio_address(text: str) -> RadioAddress:
    """Read what people write for `radio.address`. Raises ValueError that says what to write instead."""
    text = text.strip()
    kind, _, rest = text.partition(":")
    match kind.lower():
        case "auto" if not rest:
            return SerialAddress()
        case "ble" if rest:
            return BleAddress(rest)
        case "tcp" if rest:
            found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+))(?::(\d{1,5}))?", rest)
            if found and 1 <= int(found[3] or TCP_PORT) <= 65_535:
                return TcpAddress(found[1] or found[2], int(found[3] or TCP_PORT))
        case _ if re.match(r"/|COM\d", text):
            return SerialAddress(text)
    raise ValueError(
        f"{text!r} is not a radio address; write auto, a serial port such as /dev/ttyUSB0, tcp:HOST, "
        "tcp:HOST:PORT (an IPv6 host in brackets) or ble:ADDRESS"
    )


def check_server_url(text: str) -> None:
    """Raise ValueError, which says what is expected, unless `text` can be `model.base_url`."""
    try:
        url = urlsplit(text)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or re.search(r"\s", text):
        raise ValueError("expected an address such as http://127.0.0.1:11434/v1")
    if url.username or url.password:
        raise ValueError("expected an address without user or password; the key belongs in model.api_key")
    if url.query or url.fragment:
        raise ValueError("expected an address that ends before any ? or #")
