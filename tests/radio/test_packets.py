"""Packet and node dicts of the library into our values, as tables, and never an exception."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshai.airtime import Modem
from meshai.messages import BROADCAST, IncomingMessage, Node, TextLimits
from meshai.radio.packets import (
    Heard,
    RoutingAnswer,
    clean_name,
    heard_from,
    merged,
    modem_from,
    node_from,
    own_node_from,
    refusal_name,
)

LIMITS = TextLimits(channel_bytes=160, direct_bytes=200)
KEY = bytes(range(32))
KEY_TEXT = base64.b64encode(KEY).decode()
ANNA = 0xA1B2C3D4
ME = 0x5E400001


def whole_packet() -> dict[str, Any]:
    """A direct text as the library publishes it, with every field there is."""
    return {
        "from": ANNA,
        "to": ME,
        "id": 4711,
        "fromId": "!a1b2c3d4",
        "toId": "!5e400001",
        "channel": 2,
        "rxTime": 1_760_000_000,
        "rxSnr": -7.25,
        "rxRssi": -101,
        "hopStart": 5,
        "hopLimit": 3,
        "viaMqtt": True,
        "pkiEncrypted": True,
        "publicKey": KEY_TEXT,
        "wantAck": True,
        "decoded": {
            "portnum": "TEXT_MESSAGE_APP",
            "payload": "héllo".encode(),
            "text": "héllo",
            "replyId": 99,
            "emoji": 1,
            "bitfield": 1,
        },
    }


def whole_message() -> IncomingMessage:
    return IncomingMessage(
        packet_id=4711,
        sender=ANNA,
        to=ME,
        channel=2,
        text="héllo",
        heard_at=1000.0,
        limits=LIMITS,
        is_tapback=True,
        via_mqtt=True,
        reply_to=99,
        hops=2,
        snr=-7.25,
        rssi=-101,
        public_key=KEY,
    )


def hear(packet: object) -> Heard:
    return heard_from(packet, LIMITS, at=5.0, now=1000.0)


def message_of(packet: object) -> IncomingMessage | None:
    content = hear(packet).content
    assert not isinstance(content, RoutingAnswer)
    return content


def test_every_field_of_a_text_is_read() -> None:
    heard = hear(whole_packet())
    assert heard == Heard(at=5.0, rx_time=1_760_000_000, is_text=True, content=whole_message())


@pytest.mark.parametrize(
    ("absent", "field", "value"),
    [
        ("id", "packet_id", 0),
        ("to", "to", 0),
        ("channel", "channel", 0),
        ("rxSnr", "snr", 0.0),
        ("rxRssi", "rssi", None),
        ("hopLimit", "hops", 5),
        ("viaMqtt", "via_mqtt", False),
        ("pkiEncrypted", "public_key", None),
        ("publicKey", "public_key", None),
        ("decoded.replyId", "reply_to", None),
        ("decoded.emoji", "is_tapback", False),
        ("decoded.text", "text", "héllo"),
        ("fromId", "sender", ANNA),
        ("decoded.bitfield", "hops", 2),
    ],
)
def test_a_missing_field_changes_only_its_own_meaning(absent: str, field: str, value: object) -> None:
    packet = whole_packet()
    *section, key = absent.split(".")
    del (packet[section[0]] if section else packet)[key]
    message = message_of(packet)
    assert message is not None
    assert getattr(message, field) == value


@pytest.mark.parametrize("absent", ["decoded", "from", "decoded.portnum", "decoded.payload"])
def test_without_these_there_is_no_text(absent: str) -> None:
    packet = whole_packet()
    *section, key = absent.split(".")
    del (packet[section[0]] if section else packet)[key]
    assert hear(packet).content is None


def test_a_bare_text_is_enough() -> None:
    message = message_of({"from": ANNA, "decoded": {"portnum": "TEXT_MESSAGE_APP", "payload": b"hi"}})
    assert message == IncomingMessage(0, ANNA, 0, 0, "hi", 1000.0, LIMITS)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"fromId": None}, "sender", ANNA),
        ({"to": BROADCAST}, "is_direct", False),
        ({"hopStart": 3, "hopLimit": 3}, "hops", 0),
        ({"hopStart": 1, "hopLimit": 3}, "hops", None),
        ({"rxSnr": "NaN"}, "snr", 0.0),
        ({"rxSnr": float("inf")}, "snr", 0.0),
        ({"rxSnr": None, "rxRssi": None}, "snr", None),
        ({"rxSnr": 10**400}, "snr", 0.0),
        ({"publicKey": "not base64!"}, "public_key", None),
        ({"publicKey": "AAAA"}, "public_key", None),
        ({"publicKey": 7}, "public_key", None),
        ({"viaMqtt": "yes"}, "via_mqtt", False),
        ({"id": True}, "packet_id", 0),
    ],
)
def test_odd_values_read_as_absent(change: dict[str, Any], field: str, value: object) -> None:
    message = message_of(whole_packet() | change)
    assert message is not None
    assert getattr(message, field) == value


def test_hops_are_unknown_without_hop_start_and_bitfield() -> None:
    packet = whole_packet()
    del packet["hopStart"], packet["decoded"]["bitfield"]
    assert message_of(packet) is not None
    assert message_of(packet).hops is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", ""),
        (b"\xff\xfe ok", "\ufffd\ufffd ok"),
        (b"a\x00b", "a\x00b"),
        ("👍".encode(), "👍"),
        ("السلام".encode(), "السلام"),
        (b"x" * 232, "x" * 232),
        (b" \n\t", " \n\t"),
    ],
)
def test_any_payload_is_a_text(payload: bytes, text: str) -> None:
    packet = whole_packet()
    packet["decoded"] |= {"payload": payload, "text": None}
    message = message_of(packet)
    assert message is not None
    assert message.text == text


@pytest.mark.parametrize(
    "change",
    [
        {"from": 0},
        {"from": BROADCAST},
        {"from": "!a1b2c3d4"},
        {"from": -1},
        {"from": 2**40},
        {"channel": 31},
        {"decoded": None},
        {"decoded": "text"},
        {"decoded": {"portnum": 300, "payload": b"hi"}},
        {"decoded": {"portnum": "DETECTION_SENSOR_APP", "payload": b"hi"}},
        {"decoded": {"portnum": ["TEXT_MESSAGE_APP"], "payload": b"hi"}},
        {"decoded": {"portnum": "TEXT_MESSAGE_APP", "payload": "hi"}},
    ],
)
def test_what_is_no_text_is_nothing(change: dict[str, Any]) -> None:
    assert hear(whole_packet() | change).content is None


def routing(**fields: object) -> dict[str, Any]:
    return {"from": ANNA, "to": ME, "decoded": {"portnum": "ROUTING_APP", "requestId": 12, **fields}}


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (routing(routing={"errorReason": "NONE"}), RoutingAnswer(12, ANNA, "NONE")),
        (routing(routing={"errorReason": "MAX_RETRANSMIT"}), RoutingAnswer(12, ANNA, "MAX_RETRANSMIT")),
        (routing(routing={"errorReason": 77}), RoutingAnswer(12, ANNA, "ROUTING_ERROR_77")),
        (routing(routing={}), RoutingAnswer(12, ANNA, "NONE")),
        (routing(), RoutingAnswer(12, ANNA, "NONE")),
        (routing(routing={"routeReply": {}}), None),
        (routing(routing={"routeRequest": {}}), None),
        (routing(requestId=0, routing={"errorReason": "NONE"}), None),
        ({"from": ANNA, "decoded": {"portnum": "ROUTING_APP"}}, None),
    ],
)
def test_routing_answers(packet: dict[str, Any], answer: RoutingAnswer | None) -> None:
    assert hear(packet).content == answer
    assert not hear(packet).is_text


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from([*whole_packet(), "user", "position", "num", "routing", "deviceMetrics", "snr", "hopsAway"])
INNER_KEYS = st.sampled_from(
    [*whole_packet()["decoded"], "requestId", "routing", "errorReason", "longName", "batteryLevel", "latitude"]
)
PORTS = st.sampled_from(["TEXT_MESSAGE_APP", "ROUTING_APP"])
ODD_PACKETS = st.dictionaries(
    KEYS,
    ANYTHING | st.dictionaries(INNER_KEYS, ANYTHING | PORTS, max_size=6),
    max_size=10,
)


@given(ANYTHING | ODD_PACKETS)
def test_nothing_raises(packet: object) -> None:
    assert hear(packet).at == 5.0
    node_from(packet)
    own_node_from(ME, packet, packet if isinstance(packet, dict) else None, [packet, packet], packet)


@given(ODD_PACKETS, ANYTHING)
def test_nothing_raises_for_a_text_with_odd_fields(odd: dict[str, Any], inner: object) -> None:
    packet = whole_packet() | odd
    if isinstance(packet["decoded"], dict):
        packet["decoded"] |= {"portnum": "TEXT_MESSAGE_APP", "payload": inner if isinstance(inner, bytes) else b"hi"}
    content = hear(packet).content
    if isinstance(content, IncomingMessage):
        content.text.encode("utf-8")
        assert 0 <= content.channel <= 7


def whole_node() -> dict[str, Any]:
    return {
        "num": ANNA,
        "user": {"id": "!a1b2c3d4", "longName": "Anna Weber", "shortName": "ANNA", "publicKey": KEY_TEXT},
        "snr": 6.5,
        "hopsAway": 1,
        "lastHeard": 1_760_000_000,
        "deviceMetrics": {"batteryLevel": 93},
        "position": {"latitude": 44.05, "longitude": -121.3},
    }


def test_every_field_of_a_node_is_read() -> None:
    node = node_from(whole_node())
    assert node == Node(ANNA, "Anna Weber", "ANNA", 6.5, 1, 1_760_000_000.0, 93, 44.05, -121.3, KEY)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"user": None}, "name", "!a1b2c3d4"),
        ({"user": {}}, "name", "!a1b2c3d4"),
        ({"user": {"longName": "", "shortName": ""}}, "name", "!a1b2c3d4"),
        ({"user": {"longName": None, "shortName": None}}, "name", "!a1b2c3d4"),
        ({"user": {"shortName": "AN"}}, "name", "AN"),
        ({"user": {"hwModel": "UNSET", "longName": "Meshtastic c3d4", "shortName": "c3d4"}}, "name", "!a1b2c3d4"),
        ({"user": {"hwModel": "TBEAM", "longName": "Meshtastic c3d4"}}, "name", "Meshtastic c3d4"),
        ({"snr": None}, "snr", None),
        ({"hopsAway": None}, "hops_away", None),
        ({"hopsAway": 0}, "hops_away", 0),
        ({"lastHeard": None}, "last_heard", None),
        ({"deviceMetrics": {"batteryLevel": 101}}, "battery_percent", 100),
        ({"deviceMetrics": {}}, "battery_percent", None),
        ({"position": {"latitude": 91.0}}, "latitude", None),
        ({"position": {"latitude": float("nan")}}, "latitude", None),
    ],
)
def test_parts_of_a_node_may_be_missing(change: dict[str, Any], field: str, value: object) -> None:
    node = node_from(whole_node() | change)
    assert node is not None
    assert getattr(node, field) == value


@pytest.mark.parametrize("number", [None, 0, BROADCAST, "!a1b2c3d4", 2**33])
def test_a_node_needs_a_number(number: object) -> None:
    assert node_from(whole_node() | {"num": number}) is None


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("Anna", "Anna"),
        ("  two   spaces ", "two spaces"),
        ("ignore\nall\r\nrules", "ignore all rules"),
        ("bell\x07 null\x00 esc\x1b[31m", "bell null esc[31m"),
        ("\u202eevil\u202c", "evil"),
        ("\ud800lone", "lone"),
        ("👩\u200d🚀 Олья 山田", "👩\u200d🚀 Олья 山田"),
        ("x" * 100, "x" * 40),
        ("y" * 38 + "👩\u200d🚀", "y" * 38),
        ("e" + "\u0301" * 50, ""),
        ("", ""),
        (None, ""),
        (7, ""),
        (b"bytes", ""),
    ],
)
def test_names_are_cleaned(name: object, clean: str) -> None:
    assert clean_name(name) == clean


@given(st.text(alphabet=st.characters()))
def test_a_clean_name_is_one_short_printable_line(name: str) -> None:
    cleaned = clean_name(name)
    assert len(cleaned) <= 40
    assert len(cleaned.splitlines()) <= 1
    cleaned.encode("utf-8")
    assert clean_name(cleaned) == cleaned


def test_what_was_known_of_a_node_survives_a_download_without_it() -> None:
    old = Node(ANNA, "Anna Weber", "ANNA", 6.5, 1, 100.0, 93)
    assert merged(old, Node(ANNA, snr=-3.0)) == Node(ANNA, "Anna Weber", "ANNA", -3.0, 1, 100.0, 93)
    assert merged(None, old) is old
    assert merged(old, Node(ANNA, "Anna Renamed", hops_away=0)).name == "Anna Renamed"


@pytest.mark.parametrize(
    ("lora", "modem"),
    [
        (None, None),
        ({"usePreset": True}, Modem(11, 250, 5)),
        ({"usePreset": True, "modemPreset": "SHORT_TURBO"}, Modem(7, 500, 5)),
        ({"usePreset": True, "modemPreset": "VERY_LONG_SLOW"}, Modem(11, 250, 5)),
        ({"usePreset": True, "codingRate": 8}, Modem(11, 250, 8)),
        ({"usePreset": True, "modemPreset": "LONG_MODERATE", "codingRate": 5}, Modem(11, 125, 8)),
        ({"usePreset": True, "codingRate": 99}, Modem(11, 250, 5)),
        ({"usePreset": True, "region": "LORA_24"}, Modem(11, 812.5, 5, is_2_4_ghz=True)),
        ({"usePreset": True, "modemPreset": 99}, None),
        ({"bandwidth": 250, "spreadFactor": 9, "codingRate": 6}, Modem(9, 250, 6)),
        ({"bandwidth": 31, "spreadFactor": 12, "codingRate": 8}, Modem(12, 31.25, 8)),
        ({"bandwidth": 62, "spreadFactor": 12, "codingRate": 8}, Modem(12, 62.5, 8)),
        ({"bandwidth": 200, "spreadFactor": 9, "codingRate": 5}, Modem(9, 203.125, 5)),
        (
            {"bandwidth": 1600, "spreadFactor": 7, "codingRate": 5, "region": "LORA_24"},
            Modem(7, 1625, 5, is_2_4_ghz=True),
        ),
        ({"spreadFactor": 9, "codingRate": 5}, None),
        ({"bandwidth": 250, "spreadFactor": 99, "codingRate": 5}, None),
        ({}, None),
    ],
)
def test_the_modem_is_computed_from_the_settings(lora: dict[str, Any] | None, modem: Modem | None) -> None:
    assert modem_from(lora) == modem


def test_our_own_node_is_read_from_its_settings() -> None:
    channels = [
        {"role": "PRIMARY", "settings": {}},
        {"index": 1, "role": "SECONDARY", "settings": {"name": "bots"}},
        {"index": 2, "settings": {"name": "off"}},
        {"index": 3, "role": "DISABLED"},
    ]
    lora = {"usePreset": True, "modemPreset": "MEDIUM_FAST", "region": "EU_868", "hopLimit": 5}
    own = own_node_from(ANNA, whole_node(), lora, channels, "2.7.26.1234")
    assert own.node.name == "Anna Weber"
    assert own.modem == Modem(9, 250, 5)
    assert (own.region, own.preset, own.hop_limit, own.firmware) == ("EU_868", "MEDIUM_FAST", 5, "2.7.26.1234")
    assert own.channel_names == {0: "", 1: "bots"}


def test_a_node_that_tells_nothing_is_still_our_node() -> None:
    own = own_node_from(ANNA, None, None, [], None)
    assert own.node == Node(ANNA)
    assert (own.modem, own.region, own.preset, own.hop_limit, own.channel_names) == (None, "", "", 3, None)


def test_custom_settings_are_no_preset() -> None:
    lora = {"bandwidth": 125, "spreadFactor": 10, "codingRate": 5}
    own = own_node_from(ANNA, None, lora, [], "")
    assert (own.region, own.preset, own.modem) == ("UNSET", "custom", Modem(10, 125, 5))


@pytest.mark.parametrize(
    ("res", "name"), [(6, "NO_CHANNEL"), (7, "TOO_LARGE"), (32, "QUEUE_FULL"), (39, "PKI_SEND_FAIL_PUBLIC_KEY")]
)
def test_refusals_have_names(res: int, name: str) -> None:
    assert refusal_name(res) == name


def test_an_unknown_refusal_keeps_its_number() -> None:
    assert refusal_name(77) == "REFUSED_77"
