"""Every option and argument of every command of both programs, with values made to hurt: one line, a code, no trace."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from relay_agent import commands as agent_commands
from relay_agent.config import CONFIG_VARIABLE, KEYS
from relaytui.cli import demo as demo_module
from relaytui.cli import serve as serve_module
from relaytui.cli.group import cli
from relaytui.cli.taught import TAUGHT
from relaytui.client.endpoint import clean_url
from relaytui.shell.program import run
from relaytui.wire.errors import Exit, RelayError

CODES = {*map(int, Exit), 130, 141}
NASTY = {
    "empty": "",
    "blank": "  ",
    "nul": "a\0b",
    "newline": "a\nb",
    "escape": "\x1b]0;owned\x07\x1b[2J",
    "huge number": "1" + "0" * 30,
    "digits": "9" * 5_000,
    "nan": "nan",
    "inf": "inf",
    "negative": "-1",
    "a fraction": "1.5",
    "surrogate": "\udcff\udc80",
    "long": "a" * 300,
    "very long": "a" * 100_000,
    "long path": "/" + "a/" * 4_000,
    "upwards": "../..",
    "nobody's home": "~nosuchuser/x",
    "option": "--help-me",
    "other script": "٣",
    "bracket": "http://[",
    "dots": "http://a..b",
    "bad port": "http://h:99999",
    "port 0": "http://h:0",
    "user": "http://u:p@h",
    "none": "None",
}
GOOD = {
    "run_id": "run-1",
    "role": "operator",
    "commander_url": "https://relay.example.org",
    "image": "image",
    "node": "node",
    "file": "/nowhere/file",
    "artifact_id": "1",
    "artifact_ids": "1",
}
"""What a command needs to come as far as the value under test; the rest stays away."""
GROUPS: dict[str, click.Command] = {"relay-tui": cli, "relay-agent": agent_commands.cli}


def below(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the group, and of the groups in it."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from below(command, *path, name)


def parameters() -> Iterator[tuple[str, tuple[str, ...], click.Parameter]]:
    """(program, command, parameter) of everything that takes a value."""
    paths: list[tuple[str, tuple[str, ...], click.Command]] = [
        *(("relay-tui", path, command) for path, command in below(cli)),
        *(("relay-agent", (name,), command) for name, command in agent_commands.cli.commands.items()),
        *((program, (), group) for program, group in GROUPS.items()),
    ]
    for program, path, command in paths:
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False) and not getattr(parameter, "is_eager", False):
                yield program, path, parameter


ALL = list(parameters())


def arguments(path: tuple[str, ...], parameter: click.Parameter, value: str) -> list[str]:
    """The command line on which `parameter` is `value`, and everything else that is needed is good."""
    command = functools.reduce(lambda at, name: at.get_command(click.Context(at), name), path, cli) if path else cli  # type: ignore[attr-defined, arg-type, return-value]
    if parameter not in command.params:  # one of the agent's
        command = next((each for each in agent_commands.cli.commands.values() if parameter in each.params), command)
    line = list(path)
    told = {"image": {"template_id"}, "node": {"gpu"}}
    for other in command.params:
        if other is parameter or other.name not in GOOD or parameter.name in told.get(other.name or "", ()):
            continue
        if isinstance(other, click.Option) and (other.required or path == ("print-lium-command",)):
            line.append(f"{other.opts[0]}={GOOD[other.name]}")
    if isinstance(parameter, click.Option):
        line.append(f"{parameter.opts[0]}={value}")
    needed = [other for other in command.params if isinstance(other, click.Argument)]
    if needed:
        line.append("--")
        line += [value if other is parameter else GOOD[other.name or ""] for other in needed]
    return line


@pytest.fixture
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty place below which `../..` leads nowhere else; what would serve or train says so and ends."""
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    for name in list(os.environ):
        if name not in ("HOME", "XDG_STATE_HOME", "SSL_CERT_FILE") and not name.startswith("PYTEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("RELAY_TOKEN", "t" * 20)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    @contextlib.contextmanager
    def no_stage(*_: object) -> Iterator[None]:
        raise RelayError("stub", "it would train now")
        yield

    async def no_commander(self: object) -> None:
        raise RelayError("stub", "it would serve now")

    monkeypatch.setattr(demo_module, "stage", no_stage)
    monkeypatch.setattr("relaytui.commander.server.Commander.start", no_commander)
    monkeypatch.setattr("relaytui.commander.listening.listen", lambda *_: socket.socket())
    monkeypatch.setattr(serve_module, "_take_descriptors", lambda: None)


def refuse(*_: object, **__: object) -> list[object]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def judge(program: str, line: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    before = time.monotonic()
    code = run(program, GROUPS[program], line)
    out, err = capsys.readouterr()
    assert time.monotonic() - before < 10, "it hangs"
    assert code in CODES, (code, err)
    if code:
        assert len(err.splitlines()) == 1 or (program == "relay-agent" and not err and out), err
        assert len(err) < 1_500
        assert not err or err.startswith(f"{program}: ")
    assert not re.search(r"[?!]\.(\s|$)", err), "two ends of one sentence"
    assert "Traceback" not in err + out
    assert "\x1b" not in err + out
    assert "\0" not in err + out
    return code


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("program", "path", "parameter"), ALL, ids=[f"{p} {' '.join(c)} {x.name}" for p, c, x in ALL])
def test_a_value_made_to_hurt_is_one_line_and_a_code(
    program: str, path: tuple[str, ...], parameter: click.Parameter, capsys: pytest.CaptureFixture[str]
) -> None:
    for what, value in NASTY.items():
        line = arguments(path, parameter, value)
        if path == ("demo",):
            line.insert(1, "--headless")
        code = judge(program, line, capsys)
        if what in ("empty", "nul") and parameter.name != "why":
            assert code == Exit.USAGE, (what, line)


VARIABLES = [
    *(("relay-tui", ("status",), name) for name in ("RELAY_COMMANDER_STATE",)),
    *(("relay-tui", ("status", "--connect", "h:1"), name) for name in ("RELAY_TOKEN", "RELAY_SHARED_SECRET")),
    *(
        ("relay-tui", ("serve", "--state", "new"), name)
        for name in (
            "RELAY_HOST", "PORT", "RELAY_LEASE_SECONDS", "RELAY_SHARED_SECRET", "RELAY_PUBLIC_HOSTS", "RELAY_TLS_PROXY",
            "RELAY_L1_ROOT", "RELAY_CKPT_INTERVAL", "RELAY_CKPT_KEEP_LAST_N", "RELAY_HF_SYNC_INTERVAL", "RELAY_HF_REPO",
            "RELAY_HF_PUSH_ON_IMPROVE", "RELAY_ARTIFACT_QUOTA", "RELAY_ARTIFACT_RUN_QUOTA", "RELAY_ARTIFACT_RESERVE",
            "RELAY_ARTIFACT_KEEP_LAST_N", "RELAY_TELEMETRY_DAYS", "RELAY_TELEMETRY_RUN_BYTES", "RELAY_TELEMETRY_BYTES",
        )
    ),
    *(("relay-agent", ("doctor", "--json"), name) for name in (CONFIG_VARIABLE, *(key.name for key in KEYS))),
    *(("relay-agent", ("doctor",), name) for name in ("RELAY_AGENT_STATE", "RELAY_L1_ROOT", "HOSTNAME")),
]  # fmt: skip
EMPTY_IS_A_SLIP = {
    "RELAY_COMMANDER_STATE",
    "RELAY_TOKEN",
    CONFIG_VARIABLE,
    "RELAY_L1_ROOT",
    "RELAY_AGENT_STATE",
    "RUN_ID",
}


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("program", "line", "name"), VARIABLES, ids=[f"{c[0]} {name}" for _, c, name in VARIABLES])
def test_a_variable_made_to_hurt_is_one_line_and_a_code(
    program: str,
    line: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for what, value in NASTY.items():
        if "\0" in value:
            continue  # no environment holds it
        if name != "RELAY_TOKEN" and "--connect" in line:
            monkeypatch.delenv("RELAY_TOKEN", raising=False)
        monkeypatch.setenv(name, value)
        code = judge(program, list(line), capsys)
        if what in ("empty", "blank") and name in EMPTY_IS_A_SLIP and line[0] != "serve" and (what, name) != BLANK_NAME:
            assert code == Exit.USAGE, what
    assert not Path("new").exists(), "what failed left a folder"


BLANK_NAME = ("blank", "RELAY_COMMANDER_STATE")
"""Two blanks are an odd name for a folder, and one all the same."""


def test_a_name_that_no_host_can_have_is_no_commander_that_did_not_prove_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("relay-tui", cli, ["status", "--connect", "http://a..b"]) == Exit.USAGE
    assert "should name a host" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("number", ["1_0", "٣٠", "0100", "0x10"])
def test_a_number_that_can_be_read_in_two_ways_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["serve", "--state", "new", "--port", number], ["serve", "--state", "new", "--lease-seconds", number],
        ["log", "run-1", "--epoch", number], ["events", "--limit", number], ["artifacts", "verify", number],
    ):  # fmt: skip
        assert run("relay-tui", cli, line) == Exit.USAGE, line
        assert "is not a plain" in capsys.readouterr().err, line


SLIPS = ("http://u:sekret@127.0.0.1:8400", "u:sekret@h", "http://h/?token=sekret", "http://h/sekret", "http://h#sekret")


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("address", SLIPS)
def test_what_may_be_a_secret_in_an_address_is_not_said_again(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, name in (
        (["runs", "--connect", address], ""), (["serve", "--state", "new", "--host", address], ""),
        (["serve", "--state", "new"], "RELAY_HOST"), (["serve", "--state", "new"], "RELAY_PUBLIC_HOSTS"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            if name:
                patch.setenv(name, address)
            assert run("relay-tui", cli, line) == Exit.USAGE, line
        assert "sekret" not in "".join(capsys.readouterr()), line
    with pytest.raises(RelayError) as refused:
        clean_url(address)
    assert "sekret" not in str(refused.value)
    monkeypatch.setenv("COMMANDER_URL", address)
    assert run("relay-agent", agent_commands.cli, ["doctor"]) == Exit.USAGE
    assert "sekret" not in "".join(capsys.readouterr())


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--connect", "h:1", "serve"], "--connect means nothing to serve"),
        (["--connect", "h:1", "stop"], "--connect means nothing to stop"),
        (["serve", "--connect", "h:1"], "--connect"),
        (["--port", "9", "serve"], "--port before serve"),
        (["--theme", "x", "runs"], "--theme before runs"),
        (["--state", "x", "demo"], "asks no commander"),
        (["demo", "--json"], "--json goes with --headless"),
        (["demo", "--seconds", "9"], "--seconds goes with --headless"),
        (["drain", "run-1", "--yes"], "--yes needs --expected-epoch"),
        (["cancel", "run-1", "--yes"], "--yes needs --expected-epoch"),
        (["demo", "--headless", "--theme", "relay-light"], "--theme is for the dashboard"),
        (["save", "run-1", "--yes"], "--yes"),
    ],
)
def test_what_would_be_left_unheard_is_refused(line: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("relay-tui", cli, line) == Exit.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "line", "words"),
    [
        ("relay-tui", ["statu"], "No such command 'statu'. Did you mean 'status'? see `relay-tui --help`"),
        ("relay-tui", ["runs", "--jsn"], "No such option '--jsn'. Did you mean '--json'? see `relay-tui runs --help`"),
        ("relay-tui", ["qqq"], "No such command 'qqq'. see `relay-tui --help`"),
        (
            "relay-tui",
            ["checkpoints", "run-1"],
            "No such command 'checkpoints'. `relay-tui runs RUN_ID` lists those of a run. see `relay-tui --help`",
        ),
        ("relay-tui", ["logs"], "No such command 'logs'. Did you mean 'log'? see `relay-tui --help`"),
        (
            "relay-tui",
            ["ps"],
            "No such command 'ps'. `relay-tui runs` and `relay-tui workers` list what there is. see `relay-tui --help`",
        ),
        ("relay-agent", ["doctr"], "No such command 'doctr'. Did you mean 'doctor'? see `relay-agent --help`"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    program: str, line: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(program, GROUPS[program], line) == Exit.USAGE
    assert capsys.readouterr().err == f"{program}: {words}\n"


@pytest.mark.parametrize("name", [" ".join(path) for path, _ in below(cli)])
def test_help_teaches_with_an_example_and_exit_codes_in_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("relay-tui", cli, [*name.split(), "--help"]) == Exit.OK
    words = capsys.readouterr().out
    assert "Example" in words
    assert f"relay-tui {name}" in words.partition("Example")[2]
    assert "Exit codes" in words
    assert "9007199254740992" not in words, "no bound that nobody comes near"
    assert ("--json" in words) == (name not in ("stop", "token")), "what prints data prints it for programs too"
    assert max(map(len, words.splitlines())) <= 80


def test_what_asks_a_commander_says_that_it_may_have_no_such_run() -> None:
    """`relay-tui runs nope` ends with 1, which its help did not name."""
    for name, taught in TAUGHT.items():
        assert 1 in taught.codes or 77 not in taught.codes, name


def test_exit_codes_are_all_told_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("relay-tui", cli, ["--help"]) == Exit.OK
    words = capsys.readouterr().out
    assert max(map(len, words.splitlines())) <= 80
    assert {int(line.split()[0]) for line in words.partition("Exit codes:")[2].splitlines() if line.strip()} <= CODES


def test_help_of_a_command_shows_only_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("serve", "stop", "token", "backup", "restore"):
        assert run("relay-tui", cli, [name, "--help"]) == Exit.OK
        words = capsys.readouterr().out
        assert "--state" in words
        assert "--connect URL" not in words


def test_the_agents_help_teaches_with_examples_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("relay-agent", agent_commands.cli, ["--help"]) == Exit.OK
    words = capsys.readouterr().out.partition("Examples:")[2].partition("Set in")[0]
    shown = [line.strip().split("  ")[0].split()[1:] for line in words.splitlines() if line.strip()]
    assert {each[0] for each in shown if each} == {"doctor", "example", "--config"}
