"""The settings file: what it may say, and how each mistake in it is told."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from hypothesis import example as case
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from meshai.config import (
    BotSettings,
    Config,
    ModelSettings,
    StorageSettings,
    data_dir,
    effective,
    example,
    find,
    is_private,
    load,
)
from meshai.errors import ConfigError

ROOT = Path(__file__).parent.parent
SOMEBODY = 12345
"""A user and group that have nothing here."""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write settings of an ordinary user's, as others of the group may read them."""

    def write(text: str | bytes, mode: int = 0o640) -> Path:
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, SOMEBODY, SOMEBODY)
        return path

    return write


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """Let this process, root's, be a user with a group of its own."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def complaints(path: Path, environ: dict[str, str] | None = None) -> list[str]:
    """What is wrong with the file, one line each, without the file's name, which must begin each."""
    with pytest.raises(ConfigError) as error:
        load(path, environ or {})
    lines = str(error.value).split("\n")
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


class TestExample:
    def test_the_file_in_the_repository_is_the_generated_one(self) -> None:
        assert (ROOT / "config.example.yaml").read_text(encoding="utf-8") == example()

    def test_it_holds_exactly_the_defaults(self) -> None:
        assert load(ROOT / "config.example.yaml", {}) == Config()

    def test_every_key_has_a_comment_line_of_its_own_and_a_default(self) -> None:
        lines = example().splitlines()
        for section, keys in Config().model_dump().items():
            assert lines[lines.index(f"{section}:") - 1].startswith("# ")
            for key in keys:
                at = next(i for i in range(lines.index(f"{section}:"), len(lines)) if lines[i].startswith(f"  {key}:"))
                assert lines[at - 1].startswith("  # ")

    def test_ranges_are_told(self) -> None:
        assert "drops texts closer than about 2.3 s (a number from 2.5 to 600)\n  gap_s: 2.5\n" in example()

    def test_any_one_line_of_it_alone_is_a_settings_file(self, write: Callable[[str], Path]) -> None:
        section = ""
        for line in example().splitlines():
            if re.match(r"\w", line):
                section = line
            elif re.match(r"  \w", line):
                assert load(write(f"{section}\n{line}\n"), {}) == Config()

    def test_changes_are_written_in_place_and_read_back(self, write: Callable[[str], Path]) -> None:
        changes = {
            "radio.address": "tcp:[fe80::1]:4403",
            "bot.aliases": ["бот", "off", "0x10", "1e8", "yes", "#1", "a: b", "✉", "2026-01-01", "12:30"],
            "bot.ignore_nodes": ["!a1b2c3d4"],
            "channels.answer_on": [],
            "model.base_url": "http://127.0.0.1:11434/v1",
            "model.name": "null",
            "model.api_key": "${KEY}",
            "model.embedded": "off",
        }
        text = example(changes)
        config = load(write(text), {"KEY": "s3cret"})
        assert config.radio.address == "tcp:[fe80::1]:4403"
        assert config.bot.aliases == tuple(changes["bot.aliases"])
        assert config.bot.ignore_nodes == ("!a1b2c3d4",)
        assert config.channels.answer_on == ()
        assert config.model.name == "null"
        assert config.model.api_key.get_secret_value() == "s3cret"
        assert config.model.embedded == "off"
        assert [line for line in text.splitlines() if "#" in line and '"' not in line and "'" not in line] == [
            line for line in example().splitlines() if "#" in line and '"' not in line and "'" not in line
        ]

    @settings(deadline=None)  # the box may be busy
    @given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip))
    @case("0\xa0")
    def test_any_text_is_written_so_that_it_reads_back(self, text: str) -> None:
        path = Path(f"/proc/self/fd/{_in_memory(effective(Config(bot=BotSettings(persona=text, aliases=(text,)))))}")
        try:
            config = load(path, {})
        finally:
            os.close(int(path.name))
        assert config.bot == BotSettings(persona=text, aliases=(text,))


def _in_memory(text: str) -> int:
    """The descriptor of a file without a name that holds `text` less its line about the key."""
    descriptor = os.memfd_create("config")
    os.write(descriptor, text.replace("  api_key: not set\n", "").encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class TestValues:
    @pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "radio:\n  # address: auto\nbot:\n", "{}"])
    def test_what_is_left_out_is_the_default(self, write: Callable[[str], Path], text: str) -> None:
        assert load(write(text), {}) == Config()

    def test_without_a_file_all_is_default(self) -> None:
        assert load(None, {}) == Config()

    def test_words_that_yaml_takes_for_truth_values_are_words(self, write: Callable[[str], Path]) -> None:
        config = load(write("model: {embedded: off}\nbot: {aliases: [on, No, y, 12:30, 1_0]}"), {})
        assert config.model.embedded == "off"
        assert config.bot.aliases == ("on", "No", "y", "12:30", "1_0")

    def test_true_and_false_and_numbers(self, write: Callable[[str], Path]) -> None:
        config = load(write("bot: {answer_mqtt: TRUE}\nreplies: {gap_s: 3}\nmodel: {timeout_s: 1.5e1}"), {})
        assert (config.bot.answer_mqtt, config.replies.gap_s, config.model.timeout_s) == (True, 3.0, 15.0)

    @pytest.mark.parametrize(
        ("word", "meant"),
        [
            ("on", True),
            ("Off", False),
            ("yes", True),
            ("no", False),
            ("'off'", False),
            ("true", True),
            ("False", False),
        ],
    )
    def test_truth_in_the_words_people_use(self, write: Callable[[str], Path], word: str, meant: bool) -> None:
        config = load(write(f"airtime: {{transmit: {word}}}\nbot: {{answer_mqtt: {word}}}"), {})
        assert (config.airtime.transmit, config.bot.answer_mqtt) == (meant, meant)

    def test_quiet_hours_need_no_quotes(self, write: Callable[[str], Path]) -> None:
        text = "airtime:\n  quiet_hours: [22:00-07:00, 12:30-13:00]\n"
        assert load(write(text), {}).airtime.quiet_hours == ("22:00-07:00", "12:30-13:00")

    def test_keys_need_no_quotes(self, write: Callable[[str], Path]) -> None:
        key = "+/ECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
        config = load(write(f"bot:\n  admin_keys: [{key}]\n  ignore_nodes:\n    - {key}\n"), {})
        assert config.bot.admin_keys == config.bot.ignore_nodes == (key,)

    def test_channel_zero_counts_as_set(self, write: Callable[[str], Path]) -> None:
        assert load(write("channels: {answer_on: [0]}"), {}).channels.answer_on == (0,)

    def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(self, write: Callable[[str | bytes], Path]) -> None:
        path = write(b"\xef\xbb\xbfradio:\r\n  address: tcp:mesh.local\r\n")
        assert load(path, {}).radio.address == "tcp:mesh.local"

    def test_an_old_file_with_few_keys_gets_the_new_defaults(self, write: Callable[[str], Path]) -> None:
        config = load(write("radio:\n  address: /dev/ttyUSB0\n"), {})
        assert config == Config.model_validate({"radio": {"address": "/dev/ttyUSB0"}})

    def test_folders_on_the_way_to_the_database_may_be_missing(self, tmp_path: Path) -> None:
        assert StorageSettings(path=tmp_path / "a" / "b.db").path == tmp_path / "a" / "b.db"

    def test_home_in_the_path_of_the_database(self) -> None:
        assert StorageSettings(path=Path("~/meshai.db")).path == Path.home() / "meshai.db"


class TestVariables:
    def test_they_come_from_the_environment(self, write: Callable[[str], Path]) -> None:
        text = 'model: {base_url: "http://${HOST}:${PORT}/v1", name: "${MODEL}", api_key: "${KEY}"}'
        config = load(write(text), {"HOST": "10.0.0.5", "PORT": "8080", "MODEL": "1e8", "KEY": "abc"})
        assert config.model.base_url == "http://10.0.0.5:8080/v1"
        assert config.model.name == "1e8"
        assert config.model.api_key == SecretStr("abc")

    def test_what_they_hold_is_not_read_again(self, write: Callable[[str], Path]) -> None:
        config = load(write("bot: {persona: '${A} $${A} $A $'}"), {"A": "${B}: # x"})
        assert config.bot.persona == "${B}: # x ${A} $A $"

    def test_unset_and_malformed_ones_name_line_and_key(self, write: Callable[[str], Path]) -> None:
        path = write("bot:\n  persona: '${NOT_SET} ${a b} ${open'\nmodel:\n  name: ${ALSO}\n")
        assert [line.partition(",")[0] for line in complaints(path, {"a b": "x"})] == [
            "2: bot.persona: found ${NOT_SET}",
            "2: bot.persona: found ${a b}; expected ${NAME}",
            "2: bot.persona: found ${open; expected ${NAME}",
            "4: model.name: found ${ALSO}",
        ]


class TestSecrets:
    TEXT = "model:\n  api_key: sk-very-secret\n"

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
    def test_a_key_in_a_file_others_can_read_is_refused(self, write: Callable[[str, int], Path], mode: int) -> None:
        path = write(self.TEXT, mode)
        (line,) = complaints(path)
        assert line.startswith("2: model.api_key: found a secret written out; expected ${MESHAI_API_KEY}")
        assert line.endswith(f"chmod 600 {path}")
        assert "sk-very" not in line

    @pytest.mark.parametrize("mode", [0o600, 0o400])
    def test_in_a_file_of_the_owner_alone_it_is_accepted(self, write: Callable[[str, int], Path], mode: int) -> None:
        assert load(write(self.TEXT, mode), {}).model.api_key.get_secret_value() == "sk-very-secret"

    @pytest.mark.parametrize(
        ("owner", "mode", "may_hold"),
        [
            (0, 0o100640, True),
            (0, 0o100440, True),
            (0, 0o100660, False),
            (0, 0o100644, False),
            (0, 0o100604, False),
            (SOMEBODY, 0o100640, False),
            (SOMEBODY, 0o100600, True),
        ],
    )
    def test_a_file_of_roots_may_be_shared_with_one_group(self, owner: int, mode: int, may_hold: bool) -> None:
        assert is_private(owner, mode) is may_hold

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_the_remedy_for_the_service_leaves_it_its_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.chmod(0o755)
        monkeypatch.chdir(tmp_path)
        path = Path("config.yaml")
        path.write_text(self.TEXT)
        path.chmod(0o644)

        def load_as_service() -> Config:
            with acting_as(SOMEBODY):
                return load(path, {"MESHAI_COMMAND": "sudo meshai-service"})

        with pytest.raises(ConfigError) as caught:
            load_as_service()
        expected, _, remedy = str(caught.value).rpartition(": ")
        assert "${MESHAI_API_KEY} or another variable from /etc/meshai/environment, or a file" in expected
        subprocess.run(remedy.replace("sudo ", ""), shell=True, check=True)
        assert load_as_service().model.api_key.get_secret_value() == "sk-very-secret"

    def test_complaints_never_show_it(self, write: Callable[[str, int], Path]) -> None:
        path = write("model: {api_key: 12345678, base_url: 'http://me:hunter2@host/v1', name: x}", 0o600)
        server, key = sorted(complaints(path), key=lambda line: "api_key: found" in line)
        assert key.startswith("1: model.api_key: found text that is not shown; expected text, in quotes")
        assert "the key belongs in model.api_key" in server
        assert not re.search("12345678|hunter2", key + server)

    def test_the_effective_settings_tell_only_whether_it_is_set(self) -> None:
        config = Config(model=ModelSettings(api_key=SecretStr("sk-very-secret")))
        assert yaml.safe_load(effective(config))["model"]["api_key"] == "set"
        assert yaml.safe_load(effective(Config()))["model"]["api_key"] == "not set"
        assert "sk-very" not in effective(config) + repr(config) + str(config)

    def test_an_empty_key_is_none(self, write: Callable[[str], Path]) -> None:
        assert load(write("model: {api_key: ''}"), {}).model.api_key.get_secret_value() == ""


FAULTS = [
    # unknown keys
    ("radio:\n  adress: x\n", "2: radio.adress: unknown key; expected radio.address?"),
    ("radios:\n  address: auto\n", "1: radios: unknown key; expected radio?"),
    ("Radio: {}\n", "1: Radio: unknown key; expected radio?"),
    ("replies:\n  max-packets: 2\n", "2: replies.max-packets: unknown key; expected replies.max_packets?"),
    ("gap_s: 3\n", "1: gap_s: unknown key; expected replies.gap_s?"),
    ("bot:\n  xyzzy: 3\n", "2: bot.xyzzy: unknown key; expected one of aliases, persona, ignore_nodes, answer_nodes"),
    # nothing where something is expected
    ("replies:\n  gap_s:\nbot:\n", "2: replies.gap_s: found nothing; expected a number from 2.5 to 600; without the "
     "line it is the default, 2.5"),
    ("bot:\n  aliases: ~\n", "2: bot.aliases: found nothing; expected a list"),
    ("bot:\n  aliases:\n    -\n    - bot", "3: bot.aliases.0: found nothing; expected text"),
    ("bot:\n  aliases: ['']\n", '2: bot.aliases.0: found the text ""; expected text such as "bot"'),
    ("bot:\n  aliases: [' ']\n", '2: bot.aliases.0: found the text " "; expected text such as "bot"'),
    # the wrong kind
    ("replies:\n  max_packets: '3'\n", '2: replies.max_packets: found the text "3"; expected a whole number from 1 to'),
    ("replies:\n  max_packets: 2.5\n", "2: replies.max_packets: found the number 2.5; expected a whole number from 1"),
    ("replies:\n  max_packets: true\n", "2: replies.max_packets: found true; expected a whole number from 1 to 10"),
    ("replies:\n  max_packets: 010\n", '2: replies.max_packets: found the text "010"; expected a whole number'),
    ("model:\n  name: 123\n", '2: model.name: found the number 123; expected text, in quotes: "123"'),
    ("model:\n  name: true\n", '2: model.name: found true; expected text, in quotes: "true"'),
    ("bot:\n  answer_mqtt: maybe\n", '2: bot.answer_mqtt: found the text "maybe"; expected true or false'),
    ("bot:\n  aliases: bot\n", '2: bot.aliases: found the text "bot"; expected a list, each text such as "bot"'),
    ("bot:\n  persona: {a: b}\n", "2: bot.persona: found a section with keys; expected text (what the model is told"),
    ("bot:\n  persona: [a]\n", "2: bot.persona: found a list; expected text"),
    ("radio:\n  - address: auto\n", "1: radio: found a list; expected a section with the keys address"),
    ("radio: auto\n", '1: radio: found the text "auto"; expected a section with the keys address, answer_within_s'),
    ("- radio\n", "1: found a list; expected a section with the keys radio, bot"),
    ("tcp:host\n", '1: found the text "tcp:host"; expected a section with the keys radio, bot'),
    ("42", "1: found the number 42; expected a section with the keys radio, bot"),
    # node ids that YAML reads as something else
    ("bot:\n  ignore_nodes: [0xa1b2c3d4]\n", "2: bot.ignore_nodes.0: found the number 0xa1b2c3d4; expected text such "
     'as "!a1b2c3d4", in quotes'),
    ("bot:\n  ignore_nodes: [1e8]\n", "2: bot.ignore_nodes.0: found the number 1e8; expected text such as"),
    ("bot:\n  ignore_nodes: [!a1b2c3d4]\n", '2: found !a1b2c3d4 without quotes; expected "!a1b2c3d4"'),
    ("bot:\n  ignore_nodes:\n    - !a1b2c3d4\n", "3: bot.ignore_nodes.0: found !a1b2c3d4 without quotes; expected text "
     'that begins with ! in quotes: "!a1b2c3d4"'),
    ("bot:\n  ignore_nodes: ['a1b2c3d4']\n", '2: bot.ignore_nodes.0: found the text "a1b2c3d4"; expected a node'),
    ("bot:\n  answer_nodes: ['Anna']\n", '2: bot.answer_nodes.0: found the text "Anna"; expected a node id such as '
     '"!a1b2c3d4", or the public key of a node, 44 characters that end in =, as the apps show it'),
    ("bot:\n  answer_nodes:\n  - '!a1b2c3d4'\n  - 'AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8'\n",
     '4: bot.answer_nodes.1: found the text "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd..."; expected a node id such as'),
    ("airtime:\n  quiet_hours: 22:00-07:00\n", '2: airtime.quiet_hours: found the text "22:00-07:00"; expected a list, '
     'each text such as "22:00-07:00"'),
    ("airtime:\n  quiet_hours: [22:00-22:00]\n", '2: airtime.quiet_hours.0: found the text "22:00-22:00"; expected two '
     'different times from 00:00 to 23:59, such as "22:00-07:00"; to be quiet always, set airtime.transmit to off'),
    ("airtime:\n  quiet_hours: [12:00-13:00, 24:00-07:00]\n", "2: airtime.quiet_hours.1: found the text"),
    ("airtime:\n  quiet_hours: [22-7]\n", '2: airtime.quiet_hours.0: found the text "22-7"; expected two different'),
    ("airtime:\n  quiet_hours: [2230]\n", "2: airtime.quiet_hours.0: found the number 2230; expected text such as"),
    ("airtime:\n  transmit: never\n", '2: airtime.transmit: found the text "never"; expected true or false'),
    ("bot:\n  admin_keys: ['!a1b2c3d4']\n", '2: bot.admin_keys.0: found the text "!a1b2c3d4"; expected a public key, '
     "44 characters that end in =, as the apps show it; an id or a name proves nothing"),
    ("bot:\n  admin_keys: [AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9=]\n", "2: bot.admin_keys.0: found the text"),
    ("bot:\n  max_hops: 8\n", "2: bot.max_hops: found the number 8; expected a whole number from 0 to 7"),
    ("bot:\n  beyond_max_hops: no\n", '2: bot.beyond_max_hops: found the text "no"; expected one of ignore, direct'),
    # limits, with their reason
    ("replies:\n  channel_bytes: 228\n", "2: replies.channel_bytes: found the number 228; expected a whole number "
     "from 60 to 227 (most UTF-8 bytes in one packet on a channel; the radio carries no more than 227"),
    ("replies:\n  direct_bytes: 216\n", "2: replies.direct_bytes: found the number 216; expected a whole number from "
     "60 to 215 (most UTF-8 bytes in one packet of a direct message; the radio carries no more than 215"),
    ("replies:\n  max_characters: 1000\n", "2: replies.max_characters: found the number 1000; expected a whole number "
     "from 40 to 227 (most characters in one packet; the radio carries no more than 227 bytes)"),
    ("replies:\n  gap_s: -1\n", "2: replies.gap_s: found the number -1; expected a number from 2.5 to 600 (least"),
    ("replies:\n  gap_s: 1e99\n", "2: replies.gap_s: found the number 1e99; expected a number from 2.5 to 600"),
    ("model:\n  timeout_s: 0\n", "2: model.timeout_s: found the number 0; expected a number above 0, at most 3600"),
    ("channels:\n  answer_on: [1, 8]\n", "2: channels.answer_on.1: found the number 8; expected a whole number from 0"),
    ("log:\n  level: verbose\n", '2: log.level: found the text "verbose"; expected one of debug, info, warning, error'),
    # one key with another
    ("model:\n  base_url: http://10.0.0.5/v1\n", "1: model.name: found nothing; expected the name of a model at"),
    ("model:\n  max_tokens: 4000\n", "1: model.context_tokens: found the default, 2048; expected at least 4450"),
    # addresses and paths
    ("model:\n  base_url: localhost:11434\n  name: x", '2: model.base_url: found the text "localhost:11434"; expected'),
    ("model:\n  base_url: 'http://'\n  name: x", '2: model.base_url: found the text "http://"; expected an address'),
    ("model:\n  base_url: 'http://h:99999/'\n  name: x", "2: model.base_url: found the text"),
    ("model:\n  base_url: http://h/v1?x=1\n  name: x", "2: model.base_url: found the text"),
    ("radio:\n  address: usb0\n", "2: radio.address: found the text \"usb0\"; 'usb0' is not a radio address; write"),
    ("storage:\n  path: /\n", '2: storage.path: found the text "/"; expected a file, and this is a folder'),
    ("storage:\n  path: /etc/passwd/x.db\n", '2: storage.path: found the text "/etc/passwd/x.db"; expected a file in a '
     "folder, and /etc/passwd is a file"),
    # secrets and models that look like something else
    ("model:\n  api_key:\n", "2: model.api_key: found nothing; expected text"),
    ("model:\n  api_key: $MY_KEY\n", "2: model.api_key: found a variable without braces; expected ${MY_KEY}"),
    ("model:\n  embedded: none\n", '2: model.embedded: found the text "none"; expected auto, off or the name of a'),
    ("model:\n  embedded: No\n", '2: model.embedded: found the text "No"; expected auto, off or the name of a model'),
    ("model:\n  embedded: ''\n", '2: model.embedded: found the text ""; expected auto, off or the name of a model'),
    ("model:\n  embedded: false\n", '2: model.embedded: found false; expected text such as "off", in quotes (local'),
    # commands
    ("commands:\n  aliases: {'!x': help}\n", "2: commands.aliases.!x: found the key '!x'; expected text such as"),
    ("commands:\n  aliases: {x: 3}\n", '2: commands.aliases.x: found the number 3; expected text such as "help"'),
    ("commands:\n  aliases: {!x: help}\n", "2: commands.aliases: found !x: as a key; expected a word, in quotes"),
    ("commands:\n  aliases: [help]\n", "2: commands.aliases: found a list; expected pairs such as {word: word}"),
    # what is not YAML, or more of it than settings need
    ("bot:\n  persona: a\n  persona: b\n", "3: bot.persona: found a second time; it is in line 2 already"),
    ("bot: {}\nradio: {}\nbot: {}\n", "3: bot: found a second time; it is in line 1 already"),
    ("radio:\n\taddress: auto\n", "2: found a tab; expected spaces before a key"),
    ("radio:\n address: auto\n  answer_within_s: 60\n", "3: found a colon where none can be"),
    ("bot:\n  persona: you: are\n", "2: found a colon where none can be"),
    ("bot:\n  persona: @bot\n", "2: found character '@' that cannot start any token; text that begins with"),
    ("bot:\n  persona: *bot\n", '2: text that begins with * needs quotes: "*..."'),
    ("bot:\n  persona: !!python/name:os.system x\n", "2: bot.persona: found !!python/name:os.system without quotes"),
    ("bot:\n  persona: !!binary aGk=\n", "2: bot.persona: found !!binary without quotes"),
    ("bot:\n  persona: \"abc\n\n", "2: found a quote that is never closed"),
    ("bot:\n  persona: \"\\ud800\"\n", "2: bot.persona: found half a character; expected UTF-8"),
    ("radio:\n  address: auto\n persona\n", "3: expected `key: value`, indented by spaces"),
    ("a: 1\n---\nb: 2\n", "2: found a second document"),
    ("? [a]\n: b\n", "1: found a list or section as a key"),
    ("<<: {bot: {}}\n", "1: <<: unknown key"),
    ("bot: \x01\n", "1: a character that no text holds"),
    ("bot: " + "[" * 5000, "1: lists or sections are nested too deeply"),
]  # fmt: skip


class TestFaults:
    @pytest.mark.parametrize(("text", "expected"), FAULTS, ids=[text[:30] for text, _ in FAULTS])
    def test_one(self, write: Callable[[str], Path], text: str, expected: str) -> None:
        lines = complaints(write(text))
        assert lines[0].startswith(expected)
        assert len(lines) == 1

    def test_all_at_once_in_the_order_of_the_file(self, write: Callable[[str], Path]) -> None:
        together = [
            ("radio", "adress: x"),
            ("bot", "aliases: bot"),
            ("bot", "persona: ${NOT_SET}"),
            ("bot", "persona: again"),
            ("replies", "gap_s:"),
            ("replies", "max_packets: 99"),
            ("model", "base_url: ftp://host"),
            ("log", "level: [a]"),
        ]
        sections = dict.fromkeys(section for section, _ in together)
        text = "".join(f"{s}:\n" + "".join(f"  {row}\n" for t, row in together if t == s) for s in sections)
        numbers = [number for number, row in enumerate(text.split("\n"), 1) if row.startswith("  ")]
        found = complaints(write(text))
        assert [int(line.partition(":")[0]) for line in found] == numbers

    def test_every_tab_is_told(self, write: Callable[[str], Path]) -> None:
        assert complaints(write("radio:\n\taddress: auto\nbot:\n\tpersona: x\n")) == [
            "2: found a tab; expected spaces before a key",
            "4: found a tab; expected spaces before a key",
        ]

    def test_what_others_know_to_be_wrong_has_its_line_too(self, write: Callable[[str], Path]) -> None:
        path = write("bot:\n  aliases:\n    - bot\n    - x\n")
        with pytest.raises(ConfigError, match=r"config\.yaml:4: bot\.aliases\.1: found 'x'; expected more"):
            load(path, {}, check=lambda config: {("bot", "aliases", 1): "found 'x'; expected more"})

    def test_long_text_is_shortened(self, write: Callable[[str], Path]) -> None:
        (line,) = complaints(write(f"log:\n  level: {'x' * 500}\n"))
        assert f'"{"x" * 40}..."' in line

    @settings(deadline=None)  # the box may be busy
    @given(st.text(max_size=200))
    def test_no_text_raises_anything_else(self, text: str) -> None:
        descriptor = _in_memory(text.encode("utf-8", "replace").decode())
        try:
            load(Path(f"/proc/self/fd/{descriptor}"), {})
        except ConfigError as error:
            assert str(error).startswith("/proc/self/fd/")  # noqa: PT017 - most texts are refused, some are not
        finally:
            os.close(descriptor)


class TestFile:
    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.yaml: no such file; `meshai init` writes one"):
            load(tmp_path / "none.yaml", {})

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"found a folder; expected a file such as .*config\.yaml"):
            load(tmp_path, {})

    def test_not_utf8(self, write: Callable[[bytes], Path]) -> None:
        path = write("bot:\n  persona: Grüße\n".encode("latin-1"))
        assert complaints(path) == ["2: found bytes that are not UTF-8; save the file as UTF-8"]

    def test_something_else_entirely(self) -> None:
        with pytest.raises(ConfigError, match="expected a settings file"):
            load(Path("/dev/zero"), {})

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_not_readable(self, write: Callable[[str, int], Path]) -> None:
        with pytest.raises(ConfigError, match="not readable for this user"):
            load(write("", 0o000), {})

    def test_a_name_that_no_file_can_have(self) -> None:
        with pytest.raises(ConfigError, match="not readable"):
            load(Path("a\0b"), {})


class TestFind:
    def test_the_chosen_one_comes_first_even_when_it_does_not_exist(self) -> None:
        assert find(Path("none.yaml"), {"MESHAI_CONFIG": "other.yaml"}) == Path("none.yaml")

    def test_then_the_environments(self) -> None:
        assert find(None, {"MESHAI_CONFIG": "other.yaml"}) == Path("other.yaml")

    def test_then_the_working_folders_then_the_users(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
        user = tmp_path / "user" / "meshai" / "config.yaml"
        user.parent.mkdir(parents=True)
        user.touch()
        assert find(None, {}) == user
        (tmp_path / "config.yaml").touch()
        assert find(None, {}) == Path("config.yaml")


def test_data_is_kept_in_the_services_folder_or_the_users() -> None:
    assert data_dir({"STATE_DIRECTORY": "/var/lib/meshai:/var/lib/other"}) == Path("/var/lib/meshai")
    assert data_dir({}).name == "meshai"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Config().radio.address = "tcp:x"  # type: ignore[misc]
