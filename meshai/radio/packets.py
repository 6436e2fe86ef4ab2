"""The library's packet, node and settings dicts into our values: pure, and never raising.

The dicts are protobuf JSON: camelCase keys, fields at their default value absent, enum values by name (by number
when newer than the library). All of it came over the air, so nothing in it is trusted: a field that is missing,
of another type or out of range reads as absent, and a packet that cannot mean anything to us is None.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeGuard

from meshai.airtime import BANDWIDTH_KHZ, PRESETS, WIDE_KHZ, Modem
from meshai.characters import beginning
from meshai.messages import BROADCAST, IncomingMessage, Node, NodeNum, TextLimits, node_id, parse_key
from meshai.radio.base import OwnNode

TEXT_PORT: Final = "TEXT_MESSAGE_APP"
ROUTING_PORT: Final = "ROUTING_APP"
NO_ERROR: Final = "NONE"
NAME_CHARACTERS: Final = 40
"""Longest name kept. The firmware allows 39 bytes; anything longer is no name."""
DEFAULT_HOP_LIMIT: Final = 3

REFUSALS: Final[Mapping[int, str]] = {
    6: "NO_CHANNEL",
    7: "TOO_LARGE",
    9: "DUTY_CYCLE_LIMIT",
    32: "QUEUE_FULL",
    33: "NO_INTERFACE",
    34: "RADIO_DISABLED",
    38: "RATE_LIMIT_EXCEEDED",
    39: "PKI_SEND_FAIL_PUBLIC_KEY",
}
"""What `QueueStatus.res` means. It mixes two number spaces (firmware `MeshTypes.h`): a routing error tells better."""
ACCEPTED: Final = frozenset({0, 35})
"""`QueueStatus.res` of a packet the node holds; 35 is "should release", which is internal and no error."""

_BIDI_CONTROLS: Final = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")


@dataclass(frozen=True, slots=True)
class RoutingAnswer:
    """What the mesh says of a packet we sent: an ack when `error` is NONE, else a nak by its name."""

    request_id: int
    sender: NodeNum
    error: str


@dataclass(frozen=True, slots=True)
class Heard:
    """One packet of any kind: when it came (our two clocks and the node's), and what is in it for us."""

    at: float
    """Monotonic seconds when the library handed it to us."""
    rx_time: int | None
    """Unix seconds by the node's clock when it was received over the air; None when the node has no time."""
    is_text: bool
    content: IncomingMessage | RoutingAnswer | None


def heard_from(packet: object, limits: TextLimits, *, at: float, now: float) -> Heard:
    """Read a packet as published on `meshtastic.receive`."""
    decoded = _section(packet, "decoded")
    port = decoded.get("portnum")
    content: IncomingMessage | RoutingAnswer | None = None
    if port == TEXT_PORT:
        content = _message(packet, decoded, limits, now)
    elif port == ROUTING_PORT:
        content = _routing_answer(packet, decoded)
    return Heard(at, _whole(packet, "rxTime") or None, port == TEXT_PORT, content)


def _message(packet: object, decoded: Mapping[str, Any], limits: TextLimits, now: float) -> IncomingMessage | None:
    sender, channel = _whole(packet, "from"), _whole(packet, "channel")
    payload = decoded.get("payload")
    if not sender or sender == BROADCAST or channel > 7 or not isinstance(payload, bytes):
        return None
    rssi = _whole(packet, "rxRssi", least=-(2**31)) or None
    snr = _real(packet, "rxSnr")
    return IncomingMessage(
        packet_id=_whole(packet, "id"),
        sender=sender,
        to=_whole(packet, "to"),
        channel=channel,
        text=payload.decode("utf-8", "replace"),
        heard_at=now,
        limits=limits,
        is_tapback=_whole(decoded, "emoji") != 0,
        via_mqtt=_field(packet, "viaMqtt") is True,
        reply_to=_whole(decoded, "replyId") or None,
        hops=_hops(packet, decoded),
        # An SNR of exactly 0 dB is "absent"; that there was a signal at all shows in the RSSI, which is never 0.
        snr=0.0 if snr is None and rssi is not None else snr,
        rssi=rssi,
        public_key=_key(packet) if _field(packet, "pkiEncrypted") is True else None,
    )


def _hops(packet: object, decoded: Mapping[str, Any]) -> int | None:
    """Relays so far. Firmware too old to set `hop_start` does not set `bitfield` either."""
    if _field(packet, "hopStart") is None and decoded.get("bitfield") is None:
        return None
    hops = _whole(packet, "hopStart") - _whole(packet, "hopLimit")
    return hops if 0 <= hops <= 7 else None


def _routing_answer(packet: object, decoded: Mapping[str, Any]) -> RoutingAnswer | None:
    request_id, sender, routing = _whole(decoded, "requestId"), _whole(packet, "from"), _section(decoded, "routing")
    if not request_id or not sender or "routeRequest" in routing or "routeReply" in routing:
        return None
    return RoutingAnswer(request_id, sender, routing_error_name(routing.get("errorReason", NO_ERROR)))


def routing_error_name(error: object) -> str:
    """The error's name; a number newer than the library becomes `ROUTING_ERROR_77`, a failure like any other."""
    return error if isinstance(error, str) else f"ROUTING_ERROR_{error}"


def refusal_name(res: int) -> str:
    """What `QueueStatus.res` says went wrong, as a routing error's name where one exists."""
    return REFUSALS.get(res, f"REFUSED_{res}")


def node_from(node: object) -> Node | None:
    """Read one entry of the library's node table; None without a usable number."""
    number = _whole(node, "num")
    if not number or number == BROADCAST:
        return None
    user, position = _section(node, "user"), _section(node, "position")
    metrics = _section(node, "deviceMetrics")
    battery = metrics.get("batteryLevel")
    long_name, short_name = clean_name(user.get("longName")), clean_name(user.get("shortName"))
    # The library invents a name after the id for a node it knows by number only.
    is_invented = user.get("hwModel") == "UNSET" and long_name == f"Meshtastic {node_id(number)[-4:]}"
    return Node(
        number=number,
        long_name="" if is_invented else long_name,
        short_name="" if is_invented else short_name,
        snr=_real(node, "snr"),
        hops_away=_whole(node, "hopsAway") if _field(node, "hopsAway") is not None else None,
        last_heard=float(_whole(node, "lastHeard")) or None,
        # 101 means powered from outside.
        battery_percent=min(battery, 100) if _is_whole(battery) and battery >= 0 else None,
        channel_utilisation_percent=_real(metrics, "channelUtilization"),
        latitude=_real(position, "latitude", most=90.0),
        longitude=_real(position, "longitude", most=180.0),
        public_key=_key(user),
    )


def merged(old: Node | None, new: Node) -> Node:
    """What is known of a node, when `new` may lack what a fuller download told before."""
    if old is None:
        return new
    known = {field.name: getattr(new, field.name) for field in fields(new)}
    return replace(old, **{name: value for name, value in known.items() if value not in (None, "")})


def own_node_from(
    number: NodeNum, node: object, lora: Mapping[str, Any] | None, channels: Iterable[object], firmware: object
) -> OwnNode:
    """Read what our node told of itself. `lora` is None when it did not send that section."""
    settings: Mapping[str, Any] = lora if lora is not None else {}
    has_preset = _field(settings, "usePreset") is True
    preset = settings.get("modemPreset", "LONG_FAST")
    region = settings.get("region", "UNSET")
    names = {
        _whole(channel, "index"): clean_name(_section(channel, "settings").get("name"))
        for channel in channels
        if _field(channel, "role") in ("PRIMARY", "SECONDARY")
    }
    return OwnNode(
        node=node_from(node) or Node(number),
        modem=modem_from(lora),
        region=str(region) if lora is not None else "",
        preset="" if lora is None else str(preset) if has_preset else "custom",
        hop_limit=min(_whole(settings, "hopLimit"), 7) or DEFAULT_HOP_LIMIT,
        channel_names=names or None,
        firmware=clean_name(firmware),
    )


def modem_from(lora: Mapping[str, Any] | None) -> Modem | None:
    """Compute the modem as the firmware does (`RadioInterface::applyModemConfig`); None when it cannot be known."""
    if lora is None:
        return None
    is_2_4_ghz = lora.get("region") == "LORA_24"
    coding_rate = _whole(lora, "codingRate")
    if lora.get("usePreset") is not True:
        code = _whole(lora, "bandwidth")
        modem = Modem(_whole(lora, "spreadFactor"), BANDWIDTH_KHZ.get(code, code), coding_rate, is_2_4_ghz)
        is_possible = 5 <= modem.spreading_factor <= 12 and modem.bandwidth_khz > 0 and 5 <= modem.coding_rate <= 8
        return modem if is_possible else None
    preset = PRESETS.get(str(lora.get("modemPreset", "LONG_FAST")))
    if preset is None:
        return None
    bandwidth = WIDE_KHZ.get(preset.bandwidth_khz, preset.bandwidth_khz) if is_2_4_ghz else preset.bandwidth_khz
    most_coded = max(preset.coding_rate, coding_rate) if coding_rate <= 8 else preset.coding_rate
    return Modem(preset.spreading_factor, bandwidth, most_coded, is_2_4_ghz)


def clean_name(name: object, *, most: int = NAME_CHARACTERS) -> str:
    """A name fit to be shown on one line: no control or direction characters, one space at a time, capped.

    Capped between graphemes; a name that begins with a longer one is none.
    """
    if not isinstance(name, str):
        return ""
    kept = (" " if character.isspace() else character for character in name if _is_shown(character))
    return beginning(" ".join("".join(kept).split()), most).rstrip()


def _is_shown(character: str) -> bool:
    if character.isspace():
        return True
    return unicodedata.category(character) not in ("Cc", "Cs", "Co", "Cn") and character not in _BIDI_CONTROLS


def _field(mapping: object, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, Mapping) else None


def _section(mapping: object, key: str) -> Mapping[str, Any]:
    section = _field(mapping, key)
    return section if isinstance(section, Mapping) else {}


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(mapping: object, key: str, *, least: int = 0) -> int:
    """A number of at most 32 bits, 0 (the protobuf default) when it is missing or cannot be one."""
    value = _field(mapping, key)
    return value if _is_whole(value) and least <= value <= 0xFFFFFFFF else 0


def _real(mapping: object, key: str, *, most: float = 1000.0) -> float | None:
    value = _field(mapping, key)
    return float(value) if (_is_whole(value) or isinstance(value, float)) and abs(value) <= most else None


def _key(mapping: object) -> bytes | None:
    """The 32 bytes of `publicKey`, which the library gives as base64."""
    text = _field(mapping, "publicKey")
    try:
        return parse_key(text) if isinstance(text, str) else None
    except ValueError:
        return None
