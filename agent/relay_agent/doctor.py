"""`relay-agent doctor`: is everything there that a training needs? Looks, and leaves nothing behind."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay_agent import assumed, contradictions
from relay_agent.checkpoints.looked import places
from relay_agent.checkpoints.place import refuse_place
from relay_agent.config import Settings, load, secrets_of
from relay_agent.lease.lease import STOP_PART
from relay_agent.preempt.clues import Clues
from relay_agent.preempt.said import describe
from relay_agent.secret_words import learn, of, scrub
from relay_agent.trainer.command import exec_trouble, find_launch, pod_environment, refuse_too_large
from relay_agent.trainer.foreseen import TODO, missing
from relay_agent.volume.volume import probe
from relay_agent.watchdog import spying
from relaytui.wire.codec import encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import SHORT_SECRET
from relaytui.wire.text import clean, counted

if TYPE_CHECKING:
    from relay_agent.link.contact import Whoami
    from relay_agent.sending.examined import Word

MAX_SKEW = 5.0
LITTLE = 1e9
"""Bytes on the volume with less than which few checkpoints fit."""
_BARE = re.compile(r"\$\{?RELAY_RESUME_ARGS")


class Level(StrEnum):
    OK = "ok"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    what: str
    level: Level
    why: str
    todo: str = ""
    exit_code: int = 0

    def line(self) -> str:
        return f"{self.level:<4}  " + " — ".join(part for part in (self.what, self.why, self.todo) if part)


def _ok(what: str, why: str) -> Check:
    return Check(what, Level.OK, why)


def _warn(what: str, why: str, todo: str) -> Check:
    return Check(what, Level.WARN, why, todo)


def _fail(what: str, error: RelayError) -> Check:
    return Check(what, Level.FAIL, error.message, error.hint, error.exit_code or Exit.FAILED)


async def examine(config: Path | None = None) -> list[Check]:
    try:
        settings = load(config=config)
        first = _ok("configuration", f"run {settings.run_id} ({settings.mode}), from {settings.source}")
    except RelayError as error:
        first = _fail("configuration", error)
        if error.code != "no_commander":
            return [first]
        settings = load(config=config, needs_url=False)  # there is more to look at on this pod
    learn(secrets_of(settings))
    learn(of(os.environ))
    checks = [
        first,
        *_assumed(settings),
        *_together(settings),
        _launcher(settings),
        *_words(settings),
        _place(settings),
    ]
    checks += [*_volume(settings), _state(settings)]
    checks += [_preemption(settings), _stacks()]
    checks.extend([check async for check in _commander(settings)])
    return checks + [check async for check in _hub(settings)]


def print_checks(checks: list[Check], as_json: bool) -> int:
    """The exit code: that of the first check that failed."""
    failed = next((check.exit_code for check in checks if check.level is Level.FAIL), 0)
    if as_json:
        rows = [{**_cleaned(check), "level": check.level.value.lower()} for check in checks]
        click.echo(encode({"ok": failed == 0, "exit_code": failed, "checks": rows}).decode())
    else:
        for check in checks:
            click.echo(clean(scrub(check.line())))
    return failed


def _cleaned(check: Check) -> dict[str, object]:
    """What came from the environment may hold anything, and JSON has no lone surrogates."""
    return {name: clean(scrub(value)) if isinstance(value, str) else value for name, value in asdict(check).items()}


def _assumed(settings: Settings) -> Iterator[Check]:
    for remark in assumed.remarks(settings, os.environ):
        yield _warn("settings", *remark)


def _together(settings: Settings) -> Iterator[Check]:
    for each in contradictions.found(settings):
        yield _warn("settings", each.why, each.todo)


def _launcher(settings: Settings) -> Check:
    try:
        launch = find_launch(settings)
        refuse_too_large(launch, pod_environment(os.environ) | {"HF_TOKEN": settings.hf_token})
    except RelayError as error:
        return _fail("launcher", error)
    if trouble := exec_trouble(launch, os.environ):
        hint = "its first line should be such as #!/usr/bin/env bash, and that program should be on PATH"
        return _fail("launcher", RelayError("launcher_not_startable", trouble, hint, exit_code=Exit.USAGE))
    if example := assumed.example_trainer(launch):
        return _warn("launcher", *example)
    if len(launch.argv) == 1:
        return _ok("launcher", launch.argv[0])
    untried = f"{launch.name} will be run by bash in {_here()}; it was not tried here"
    if settings.train_cmd and launch.name != "TRAIN_CMD":
        untried += f"; TRAIN_CMD is ignored, as {launch.name} comes before it"
    if gone := missing(launch.argv[-1]):
        why = f"{untried}, and {gone.words}"
        if gone.certain:
            return _fail("launcher", RelayError("command_not_startable", why, TODO, exit_code=Exit.USAGE))
        return _warn("launcher", why, TODO)
    return _ok("launcher", untried)


def _words(settings: Settings) -> Iterator[Check]:
    """A path with a space in it falls apart in a bare `$RELAY_RESUME_ARGS`."""
    command = settings.train_cmd + settings.slime_sft_cmd + settings.slime_rl_cmd
    root = str(settings.l1_root)
    if shlex.quote(root) != root and _BARE.search(command) and "eval" not in command:
        why = f"a shell splits $RELAY_RESUME_ARGS at what is special in RELAY_L1_ROOT ({_short(settings.l1_root)})"
        yield _warn("resume", why, 'write "$@" instead of $RELAY_RESUME_ARGS')


def _place(settings: Settings) -> Check:
    """Where checkpoints are looked for, and whether the command plainly does not know."""
    unseen = None
    try:
        refuse_place(settings)
        with suppress(RelayError):  # said of the launcher
            unseen = assumed.saves_unseen(settings, find_launch(settings))
    except RelayError as error:
        return _fail("checkpoints", error)
    return _warn("checkpoints", *unseen) if unseen else _ok("checkpoints", places(settings))


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "a folder that does not exist any more"


def _volume(settings: Settings) -> list[Check]:
    root = settings.l1_root
    try:
        _usable(root)
        probes = probe(root)
    except RelayError as error:
        return [_fail("volume", error)]
    except OSError as error:
        refused = RelayError(
            "volume_unusable",
            f"{root} cannot be written: {error.strerror or error}",
            "mount it read-write for the user the agent runs as, with space left on it",
            exit_code=Exit.USAGE,
        )
        return [_fail("volume", refused)]
    found = os.statvfs(root)
    checks = [room(root, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)]
    if not _mounted(root):
        checks.append(
            _warn(
                "mount",
                f"{root} is on the pod's own disk: checkpoints there are lost when the pod goes",
                "mount a volume there unless this machine keeps its disk",
            )
        )
    for each in probes:
        if each.ok:
            continue
        if each.needed:
            lacks = RelayError(
                "volume_unsafe",
                f"{root} cannot do this: {each.name} ({each.detail})",
                "use a volume with a POSIX file system",
                exit_code=Exit.USAGE,
            )
            checks.append(_fail("volume", lacks))
        else:
            checks.append(
                _warn(
                    "volume", f"{root} cannot do this: {each.name} ({each.detail})", "nothing: Relay works without it"
                )
            )
    return checks


def room(root: Path, free: float, total: float) -> Check:
    """Of a volume that takes writes, by bytes. Some tell neither."""
    if not total:
        return _ok("volume", f"{root} takes writes; how much is free on it it does not tell")
    if free >= LITTLE:
        return _ok("volume", f"{root} takes writes, {_size(free)} free")
    why = f"{root} takes writes, and has {_size(free)} free of {_size(total)}"
    return _warn("volume", why, "make room on it, or mount a larger one: checkpoints wait until there is some")


def _size(count: float) -> str:
    if count >= LITTLE:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.{0 if count >= 1e7 else 1}f} MB"


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _usable(root: Path) -> None:
    what = ""
    try:
        if not root.is_absolute():
            what = "is not an absolute path"
        elif not root.exists():
            what = "does not exist"
        elif not root.is_dir():
            what = "is not a folder"
    except OSError as error:
        what = f"cannot be reached: {error.strerror}"
    if what:
        raise RelayError(
            "volume_missing",
            f"RELAY_L1_ROOT {_short(root)} {what}",
            "mount the volume there, or set RELAY_L1_ROOT to where it is mounted",
            exit_code=Exit.USAGE,
        )


def _mounted(path: Path) -> bool:
    """Whether it, or a folder above it but the root, is a mount of its own."""
    path = path.resolve()
    return any(os.path.ismount(folder) for folder in (path, *path.parents) if folder != folder.parent)


def _state(settings: Settings) -> Check:
    folder = settings.agent_state
    with suppress(OSError):  # a name too long, no permission on the way
        above = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return _ok("pod state", f"{folder}")
    return _warn(
        "pod state", f"{_short(folder)} cannot be written", "set RELAY_AGENT_STATE to a folder on the pod's own disk"
    )


def _preemption(settings: Settings) -> Check:
    words, todo = describe(settings, Clues.here())
    return _warn("preemption", words, todo) if todo else _ok("preemption", words)


def _stacks() -> Check:
    words, todo = spying.trouble(pod_environment(os.environ))
    return _warn("stacks", words, todo) if words else _ok("stacks", "py-spy shows what a trainer that hangs is doing")


async def _hub(settings: Settings) -> AsyncIterator[Check]:
    from relay_agent.hub.examine import examined

    if (word := await examined(settings)) is not None:
        yield _said("hub", word)


def _said(what: str, word: Word) -> Check:
    level = {"ok": Level.OK, "warn": Level.WARN, "fail": Level.FAIL}[word.level]
    return Check(what, level, word.why, word.todo, Exit.USAGE if word.level == "fail" else 0)


async def _commander(settings: Settings) -> AsyncIterator[Check]:
    from relay_agent.artifacts.examine import examined as store_examined
    from relay_agent.lease.standing import standing
    from relay_agent.link.contact import Contact

    if not settings.shared_secret:
        missing = RelayError(
            "no_secret",
            "RELAY_SHARED_SECRET is not set",
            "set it to the secret the commander was started with, or what `relay-tui token worker` prints",
            exit_code=Exit.USAGE,
        )
        yield _fail("token", missing)
        return
    if (length := len(settings.shared_secret)) < SHORT_SECRET:
        yield _warn(
            "secret",
            f"RELAY_SHARED_SECRET has {counted(length, 'character')}, and whoever reaches the commander may guess it",
            "start the commander without it and give pods what `relay-tui token worker` prints, or set 32 random "
            "characters on both",
        )
    if not settings.commander_url:
        return  # said already
    contact = Contact(settings.commander_url, settings.shared_secret)
    try:
        async with contact.session() as session:
            health = await contact.health(session)
            yield _ok("commander", f"{settings.commander_url} answers and proved who it is (version {health.version})")
            before = time.time()
            who = await contact.whoami(session, settings.run_id)
            after = time.time()
    except RelayError as error:
        what = "commander" if error.exit_code == Exit.UNAVAILABLE else "token"
        if error.exit_code == Exit.UNAVAILABLE:
            error = RelayError(
                error.code, f"{settings.commander_url}: {error.message}", error.hint, exit_code=error.exit_code
            )
        yield _fail(what, error)
        return
    yield _ok("token", f"lets this worker in as {who.role}")
    if who.run is not None:
        yield _said("run", standing(settings, who.run))
    for check in lease_checks(settings, who):
        yield check
    if (word := store_examined(settings, who.artifacts)) is not None:
        yield _said("artifacts", word)
    skew = who.now - (before + after) / 2
    if abs(skew) > MAX_SKEW:
        yield _warn(
            "clock",
            f"the commander's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this pod's",
            "set both clocks by NTP; leases do not depend on them, but the times shown do",
        )
    else:
        yield _ok("clock", f"within {abs(skew):.1f} s of the commander's")
    ours = _version()
    if health.version and health.version.split(".")[:2] != ours.split(".")[:2]:
        yield _warn(
            "version", f"the commander is {health.version}, this agent {ours}", "install the same version on both"
        )


def lease_checks(settings: Settings, who: Whoami) -> Iterator[Check]:
    """Whether what is to be done at the end of a lease of this commander's can be done."""
    from relay_agent.attempt.tenure import shortened, too_short

    if settings.on_lease_loss != "stop" or not who.lease_seconds:  # 0: one that does not say
        return
    if (short := too_short(who.lease_seconds)) is not None:
        yield _fail("lease", short)
    elif words := shortened(who.lease_seconds, settings.stop_grace):
        least = math.ceil(settings.stop_grace / STOP_PART)
        yield _warn(
            "lease", words, f"start the commander with --lease-seconds {least} or more to leave the trainer all of them"
        )


def _version() -> str:
    import relaytui

    return relaytui.__version__
