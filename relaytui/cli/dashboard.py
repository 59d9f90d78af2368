"""`relay-tui` without a command: the dashboard, over a commander that runs already or is started here."""

from __future__ import annotations

import contextlib
import gc
import locale
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relaytui.cli.options import Target
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.files import append_plain

if TYPE_CHECKING:
    from relaytui.commander.embedded import EmbeddedCommander
    from relaytui.dashboard.app import DashboardResult
    from relaytui.dashboard.session import Opened, Source

LEAVE_SECONDS = 10.0
"""How long a commander that is started, here or elsewhere, may take to answer."""


def open_dashboard(target: Target, *, port: int | None, theme: str | None) -> int:
    """Attach to the commander meant, or start one in a thread of its own, and show it. Returns the exit code."""
    check_terminal()
    check_theme(theme)
    embedded: list[EmbeddedCommander] = []
    gc.disable()  # until the first frame next to nothing is garbage, and looking for it takes a twentieth of the time
    try:
        result = show(lambda: _find_or_start(target, port, embedded), theme=theme, program=target.program)
    finally:
        gc.enable()
        for commander in embedded:
            commander.stop()
    if result.reason == "leave":
        leave_running(target, embedded[0].url)
    return exit_code(result)


def check_terminal() -> None:
    """RelayError where there is no terminal, or one that cannot show what the dashboard draws."""
    # The screen is drawn on stderr: elsewhere it would be a black terminal and a file full of escapes.
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            continue
        raise RelayError(
            "no_terminal",
            f"the dashboard needs a terminal: {name} is none",
            "without one use `relay-tui serve` for the commander, and `relay-tui status` or `runs` to look",
            exit_code=Exit.USAGE,
        )
    encoding = sys.stdout.encoding or locale.getpreferredencoding(do_setlocale=False)
    if encoding.lower().replace("-", "") != "utf8":
        raise RelayError(
            "no_utf8",
            f"this terminal's locale is not UTF-8 but {encoding}",
            "start it as `LC_ALL=C.UTF-8 relay-tui`, or use `relay-tui status` and `runs`",
            exit_code=Exit.USAGE,
        )


def check_theme(theme: str | None) -> None:
    """RelayError where no theme is called so."""
    if theme is not None:
        from relaytui.dashboard.themes import refuse_unknown

        refuse_unknown(theme)


def show(source: Source, *, theme: str | None = None, program: str | None = None) -> DashboardResult:
    """`program`: how hints on the screen call `relay-tui`; None in the demo, which has none to give."""
    from relaytui.dashboard.launch import run_dashboard

    return run_dashboard(source, theme=theme, program=program)


def exit_code(result: DashboardResult) -> int:
    """What the shell is told; what went wrong is said now that the terminal is back."""
    if result.error is not None:
        raise result.error
    if result.message:
        click.echo(f"relay-tui: {result.message}", err=True)
    if result.signal is not None:
        return 128 + result.signal
    return int(Exit.FAILED if result.reason in ("crash", "failed") else Exit.OK)


def _find_or_start(target: Target, port: int | None, embedded: list[EmbeddedCommander]) -> Opened:
    """Called when the first frame is out: what was made for it stays, and is looked through no more."""
    gc.freeze()
    gc.enable()
    import asyncio

    from relaytui.cli.session import endpoint_of
    from relaytui.client.discover import local_endpoint
    from relaytui.dashboard.session import Opened

    try:
        return Opened(asyncio.run(endpoint_of(target)))
    except RelayError as error:
        if error.code != "no_commander":
            raise
    from relaytui.cli.serve import exposed, weak
    from relaytui.commander.embedded import EmbeddedCommander
    from relaytui.commander.settings import CommanderSettings

    settings = CommanderSettings.from_env(os.environ, state=target.state, port=port)
    commander = EmbeddedCommander(settings)
    try:
        commander.start()
    except RelayError as error:
        found = _just_started(target) if error.code == "held" else None
        if found is None:
            raise
        return found
    embedded.append(commander)
    endpoint = local_endpoint(target.state)
    assert endpoint is not None, "a commander that started has said where it is"
    warnings = filter(None, (weak(settings.shared_secret), exposed(settings, endpoint.url)))
    return Opened(endpoint, embedded=True, trouble=lambda: commander.trouble, warning=target.typed("; ".join(warnings)))


def _just_started(target: Target) -> Opened | None:
    """The commander that was being started elsewhere while one was looked for: it soon says where it is."""
    import asyncio

    from relaytui.cli.session import endpoint_of
    from relaytui.cli.stop import until
    from relaytui.dashboard.session import Opened

    found: list[Opened] = []

    def there() -> bool:
        with contextlib.suppress(RelayError):
            found.append(Opened(asyncio.run(endpoint_of(target))))
        return bool(found)

    return found[0] if until(there, LEAVE_SECONDS) else None


def leave_running(target: Target, url: str) -> None:
    """Hand over to a commander without a screen. A restart is harmless: leases hold, agents connect again."""
    from relaytui.cli.stop import until

    state = target.state
    program = shutil.which("relay-tui") or sys.argv[0]
    port = url.rpartition(":")[2]
    log = state / "serve.log"
    with append_plain(log) as output:
        process = subprocess.Popen(
            [program, "--state", str(state), "serve", "--port", port],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if not until(lambda: _serves(state, process.pid) or process.poll() is not None, LEAVE_SECONDS) or process.poll():
        raise RelayError(
            "not_left",
            "the commander could not be left running",
            f"{log} says why; start it with `relay-tui serve`",
            exit_code=Exit.UNAVAILABLE,
        )
    click.echo(f"the commander goes on at {url} as process {process.pid}; `{target.program}` attaches to it", err=True)


def _serves(state: Path, pid: int) -> bool:
    from relaytui.client.discover import read_address

    address = read_address(state)
    return address is not None and address.pid == pid
