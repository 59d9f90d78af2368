"""`relay-tui demo`: a commander, three agents and two runs on this machine; one agent is killed on the way."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import signal
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaytui.cli.dashboard import check_terminal, check_theme, exit_code, show
from relaytui.cli.fleet import Fleet
from relaytui.cli.options import json_option, usage
from relaytui.cli.output import Column, number, print_json, print_table
from relaytui.client.api import CommanderClient
from relaytui.client.discover import local_endpoint
from relaytui.client.endpoint import Endpoint
from relaytui.shell.arguments import PATH, WORDS, Seconds, Whole
from relaytui.shell.interrupt import INTERRUPTED
from relaytui.shell.program import putting_away
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.numbers import Number
from relaytui.wire.rows import AttemptRow, RunRow

if TYPE_CHECKING:
    from relaytui.cli.director import Director

HEADLESS_STEPS, LIVE_STEPS = 240, 900
SECONDS = 60.0
LEASE_SECONDS = 6.0
"""Short, so that the killed agent's run is free again while one watches."""
KEEP_LAST = 4
TELL_EVERY = 10.0
"""Seconds between two lines on how far it is, where there is no screen."""
REPORT_COLUMNS = (*map(Column, ("RUN", "STATUS", "STEP", "LOSS", "VERIFIED")), Column("ATTEMPTS", least=20))
SFT, RL = "demo-sft", "demo-rl"
TIME_OVER, QUIT, ALL_ENDED = "the time was over", "you quit", "both runs had ended"
VICTIM, OTHER, SPARE = "pod-a", "pod-b", "pod-c"


@click.command()
@click.option("--headless", is_flag=True, help="No dashboard: run for --seconds, then print a report.")
@click.option("--seconds", type=Seconds(5, 3600), help="With --headless. [60]")
@click.option("--steps", type=Whole(40, 100_000), help="Steps of each run. [240; 900 in the dashboard]")
@click.option("--folder", type=PATH, help="Keep everything in this new folder, for a look.")
@click.option("--theme", type=WORDS, metavar="NAME", help="Theme of the dashboard; ctrl+p lists them.")
@json_option
def demo(
    headless: bool, seconds: float | None, steps: int | None, folder: Path | None, theme: str | None, as_json: bool
) -> int:
    """Real training on this machine, live: two runs, three agents, one of them killed with SIGKILL.

    Pod A trains a small character model, pod B tunes one by reward, pod C waits. When pod A is killed its lease runs
    out, pod C acquires the run and goes on from its newest checkpoint. Everything is in a folder that is removed at
    the end, unless --folder names one. What happened is printed at the end.
    """
    if not headless:
        if seconds is not None or as_json:
            raise usage(f"--{'json' if as_json else 'seconds'} goes with --headless", "in the dashboard q ends it")
        try:
            check_terminal()
        except RelayError as error:
            error.hint = "use `relay-tui demo --headless --json`, or `relay-tui serve` for a commander of your own"
            raise
        check_theme(theme)
    elif theme is not None:
        raise usage("--theme is for the dashboard", "leave it out, or --headless")
    with putting_away(), stage(folder, steps or (HEADLESS_STEPS if headless else LIVE_STEPS), headless) as staged:
        root, endpoint, fleet = staged
        if headless:
            code = asyncio.run(_headless(root, endpoint, fleet, seconds or SECONDS, as_json))
        else:
            code = _live(root, endpoint, fleet, theme)
    if folder is not None:
        click.echo(
            f"kept in {root}; look at it with: relay-tui --state {shlex.quote(str(root / 'commander'))}", err=True
        )
    return code


@contextlib.contextmanager
def stage(folder: Path | None, steps: int, stamped: bool = False) -> Iterator[tuple[Path, Endpoint, Fleet]]:
    """Commander and pods, running; all of it gone afterwards. `stamped`: each line ends with when it was printed."""
    from relaytui.commander.embedded import EmbeddedCommander
    from relaytui.commander.settings import CommanderSettings

    with contextlib.ExitStack() as stack:
        root = _folder(folder, stack)
        volume = root / "volume"
        volume.mkdir()
        secret = secrets.token_hex(32)
        settings = CommanderSettings.from_env(
            {"RELAY_SHARED_SECRET": secret, "RELAY_L1_ROOT": str(volume), "RELAY_CKPT_KEEP_LAST_N": str(KEEP_LAST)},
            state=root / "commander",
            port=0,
            lease_seconds=LEASE_SECONDS,
        )
        commander = EmbeddedCommander(settings)
        url = commander.start()
        stack.callback(commander.stop)
        endpoint = local_endpoint(root / "commander")
        assert endpoint is not None, "a commander that started has said where it is"
        fleet = Fleet(
            root / "pods",
            {
                "COMMANDER_URL": url,
                "RELAY_SHARED_SECRET": secret,
                "RELAY_L1_ROOT": str(volume),
                "RELAY_STAMP": "1" if stamped else "",
                "CHAR_LM_STEPS": str(steps),
                "CHAR_LM_SAVE_EVERY": str(max(10, steps // 20)),
                "CHAR_LM_STEP_SECONDS": "0.1",
            },
        )
        stack.callback(fleet.stop)
        fleet.start(VICTIM, SFT, "sft")
        fleet.start(OTHER, RL, "rl")
        yield root, endpoint, fleet


def _folder(named: Path | None, stack: contextlib.ExitStack) -> Path:
    if named is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-demo-")))
    try:
        named.mkdir(parents=True, exist_ok=True)
        used = any(named.iterdir())
    except OSError as error:
        raise RelayError(
            "folder", f"{named}: {error.strerror}", "name another --folder", exit_code=Exit.USAGE
        ) from None
    if used:
        raise RelayError(
            "folder",
            f"{named} is not empty",
            "name a new --folder: an old demo's runs have ended",
            exit_code=Exit.USAGE,
        )
    return named.resolve()


def director_of(root: Path, endpoint: Endpoint, fleet: Fleet) -> Director:
    from relay_agent.checkpoints.manifest import verify
    from relaytui.cli.director import Director, Plan

    return Director(endpoint, fleet, root / "volume", Plan(VICTIM, SFT, "sft", SPARE, runs=2), verify)


async def _headless(root: Path, endpoint: Endpoint, fleet: Fleet, seconds: float, as_json: bool) -> int:
    director = director_of(root, endpoint, fleet)
    when = f"once {SFT} is {director.plan.kill_at * 100:.0f} % of its way and has two checkpoints"
    click.echo(f"training for up to {seconds:g} s; {VICTIM} is killed {when}, if that is within the time", err=True)
    acting = asyncio.create_task(director.run(seconds))
    telling = asyncio.create_task(_tell(director))
    interrupted = await _cut_short(acting)
    telling.cancel()
    if not interrupted:
        reporting = asyncio.create_task(_report(director))
        interrupted = await _cut_short(reporting)
    else:
        click.echo("interrupted; this is how far it got, and the pods are stopped", err=True)
        reporting = asyncio.create_task(_report(director, "it was interrupted"))
        await _cut_short(reporting)
    if not reporting.cancelled():
        report = reporting.result()
        if as_json:
            print_json(report)
        else:
            _print_report(report)
    return INTERRUPTED if interrupted else int(Exit.OK)


async def _tell(director: Director) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(TELL_EVERY)
        click.echo(f"so far: {so_far(director.runs, director.killed_at_step)}", err=True)


def so_far(runs: Mapping[str, RunRow], killed_at_step: int | None) -> str:
    """In one line."""
    told = []
    for run_id, run in sorted(runs.items()):
        step = f", step {run.step}" + (f" of {run.total}" if run.total is not None else "") if run.step else ""
        told.append(f"{run_id} {run.status.value}{step}")
    if killed_at_step is not None:
        told.append(f"{VICTIM} was killed at step {killed_at_step}")
    return "; ".join(told) or "no run has begun"


async def _cut_short(task: asyncio.Task[Any]) -> bool:
    """Whether a signal ended it; else it has ended by itself. Its own error is raised."""
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def _live(root: Path, endpoint: Endpoint, fleet: Fleet, theme: str | None) -> int:
    """The dashboard in this thread, the director in another: it is one more client of the commander."""
    from relaytui.cli.director import Directing
    from relaytui.dashboard.session import Opened

    director = director_of(root, endpoint, fleet)
    directing = Directing(director)
    try:
        result = show(Opened(endpoint, remark=over), theme=theme)
    finally:
        directing.stop(5)
    if result.reason == "quit":
        _print_report(asyncio.run(_report(director, QUIT)))
    click.echo("stopping the demo's pods", err=True)
    code = exit_code(result)
    directing.check()
    return code


def over(runs: Mapping[str, RunRow]) -> str:
    """That all there is to see was shown, once it was; empty before, and again where a run is queued anew."""
    if not {SFT, RL} <= runs.keys() or not all(run.status.ended for run in runs.values()):
        return ""
    ended = ", ".join(f"{run_id} {runs[run_id].status.value}" for run_id in (SFT, RL))
    return f"the demo is over: {ended}; q prints a summary"


async def _report(director: Director, ended: str = TIME_OVER) -> dict[str, Any]:
    """The demo's JSON object; see docs/demo.md for its fields."""
    async with CommanderClient(director.endpoint) as client:
        runs: list[dict[str, Any]] = []
        tried: list[AttemptRow] = []
        for row in sorted((await client.runs()).runs, key=lambda run: run.run_id):
            detail = await client.run(row.run_id)
            if row.run_id == SFT:
                tried = detail.attempts
            seen = director.verified.setdefault(row.run_id, set())
            for checkpoint in detail.checkpoints:
                if checkpoint.pruned_at is None and checkpoint.name not in seen:
                    await asyncio.to_thread(director.check, row.run_id, checkpoint.name)
            runs.append(
                {
                    "run_id": row.run_id,
                    "mode": row.mode,
                    "status": detail.run.status.value,
                    "step": detail.run.step,
                    "total": detail.run.total,
                    "first_loss": detail.run.first_loss,
                    "last_loss": detail.run.loss,
                    "reward": detail.run.reward,
                    "checkpoints_published": detail.run.published,
                    "checkpoints_verified": len(seen),
                    "attempts": [
                        {
                            "epoch": attempt.epoch,
                            "worker": attempt.worker,
                            "started_step": attempt.started_step,
                            "last_step": attempt.last_step,
                            "outcome": attempt.outcome.value if attempt.outcome else None,
                        }
                        for attempt in detail.attempts
                    ],
                }
            )
        kinds: Counter[str] = Counter()
        after = 0
        while page := (await client.events(after=after, limit=1000)).events:
            kinds.update(event.kind for event in page)
            after = page[-1].id
    killed = director.killed_at_step
    return {
        "runs": runs,
        "events": dict(sorted(kinds.items())),
        "latency_ms": _percentiles(director.latencies),
        "killed": None if killed is None else {"worker": VICTIM, "run_id": SFT, "at_step": killed},
        "left_out": left_out(killed, tried, ALL_ENDED if director.finished else ended),
        "torn": director.torn,
    }


def left_out(killed_at_step: int | None, tried: Sequence[AttemptRow], ended: str = TIME_OVER) -> list[str]:
    """What the demo is for and did not come to. `tried`: the attempts at the victim's run."""
    last: AttemptRow | None = None  # of the victim
    taken_up = False
    for attempt in sorted(tried, key=lambda row: row.epoch):
        if attempt.worker == VICTIM:
            last, taken_up = attempt, False
        taken_up = taken_up or attempt.worker == SPARE
    over = last is not None and last.outcome is not None
    not_taken_up = f"{SFT} was not taken up again by {SPARE}"
    if killed_at_step is not None:
        return (
            [] if taken_up else [f"{not_taken_up}: {ended} before {'it was granted' if over else 'its lease ran out'}"]
        )
    why = f"{ended} before {SFT} was 30 % of its way and had two checkpoints on it"
    if last is not None and last.outcome is not None:  # somebody drained it, or took the run
        why = f"it had {SFT} no more ({last.outcome} at step {last.last_step})"
    return [f"{VICTIM} was not killed: {why}", *([] if taken_up else [not_taken_up])]


def _percentiles(seconds: list[float]) -> dict[str, float | int | None]:
    if len(seconds) < 2:
        return {"p50": None, "p99": None, "lines": len(seconds)}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(cuts[49] * 1000, 3), "p99": round(cuts[98] * 1000, 3), "lines": len(seconds)}


def _print_report(report: dict[str, Any]) -> None:
    def cells(run: dict[str, Any]) -> tuple[str, ...]:
        first: Number | None = run["first_loss"]
        last: Number | None = run["last_loss"]
        attempts = ", ".join(
            f"{a['worker']} {a['started_step']}→{a['last_step']} {a['outcome'] or 'going on'}" for a in run["attempts"]
        )
        checks = f"{run['checkpoints_verified']}/{run['checkpoints_published']}"
        return (
            run["run_id"],
            run["status"],
            f"{run['step']}/{run['total']}",
            f"{number(first)} → {number(last)}",
            checks,
            attempts,
        )

    print_table(REPORT_COLUMNS, [cells(run) for run in report["runs"]])
    latency = report["latency_ms"]
    click.echo()
    if latency["p50"] is not None:
        click.echo(f"a printed line reached a subscriber in {latency['p50']} ms (p50), {latency['p99']} ms (p99)")
    if (killed := report["killed"]) is not None:
        click.echo(f"{killed['worker']} was killed at step {killed['at_step']} of {killed['run_id']}")
    for line in report["left_out"]:
        click.echo(line)
    for line in report["torn"]:
        click.echo(f"NOT WHOLE: {line}")
