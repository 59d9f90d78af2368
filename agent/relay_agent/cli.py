"""`relay-agent`: the entrypoint of a pod. Heavy modules load only where they are needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

import relaytui
from relaytui.wire.errors import Exit, RelayError

EPILOG = """\b
Set in the environment, or in run.yaml (environment wins):
  COMMANDER_URL         where the commander listens, http(s)://host[:port]
  RELAY_SHARED_SECRET   what lets this worker in; `relay-tui token worker` prints it
  RUN_ID  MODE          the run to train; sft or rl
  RELAY_L1_ROOT         where the volume is mounted (/mnt/relay)
  RELAY_RUN_CONFIG      path of run.yaml; run.example.yaml explains every key
  SLIME_SFT_CMD         a trainer of your own instead of launchers/launch_sft.sh
\b
Exit codes:
  the trainer's own code, 128 + n when signal n ended it, and
  1    the trainer ended early with 0, or something failed that has no code of its own
  2    configuration, launcher or volume cannot be used
  69   no commander answers (doctor only; a training waits for it)
  74   the volume failed before the trainer started
  75   the lease was refused or lost: another agent trains this run, or it has ended
  77   wrong secret, or what listens there did not prove that it is our commander
"""


@click.group(invoke_without_command=True, epilog=EPILOG)
@click.version_option(relaytui.__version__, prog_name="relay-agent", message="%(prog)s %(version)s")
@click.option("--config", type=click.Path(path_type=Path), help="run.yaml. [env RELAY_RUN_CONFIG]")
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> int:
    """Train a run on this pod.

    Acquires the run's lease, resumes it from its newest whole checkpoint, starts the trainer, publishes what it saves
    and reports to the commander. Training outlives the commander, the network and the laptop. SIGTERM stops it: what
    the trainer saves on the way is published, and the run is free for the next pod.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = config
        return 0
    import asyncio

    from relay_agent.config import load
    from relay_agent.process import hide_secrets, settle_in
    from relay_agent.runner import run

    settle_in()
    settings = load(config=config)
    hide_secrets()
    return asyncio.run(run(settings))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def doctor(config: Path | None, as_json: bool) -> int:
    """Check configuration, launcher, volume, commander, token and clock, and say what is wrong.

    Changes nothing. The exit code is 0, or that of the first check that failed.
    """
    import asyncio

    from relay_agent.doctor import examine, print_checks

    checks = asyncio.run(examine(config))
    return print_checks(checks, as_json)


def main() -> None:
    """Entry point. What a person can mend is one line on stderr and an exit code."""
    sys.exit(start())


def start(**extra: Any) -> int:
    _fill_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a locale without UTF-8 must not turn a name into a traceback
    try:
        result = cli.main(prog_name="relay-agent", standalone_mode=False, **extra)
    except RelayError as error:
        click.echo(f"relay-agent: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        if sys.stderr is not None:
            sys.stderr.close()
        return int(Exit.OK)
    return result if isinstance(result, int) else int(Exit.OK)


def _fill_streams() -> None:
    """Descriptors 0 to 2 are open afterwards: a socket that got the number of a closed stderr would be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(null, True)
