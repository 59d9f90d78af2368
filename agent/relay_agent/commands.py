"""The commands of `relay-agent`. Heavy modules load only where they are needed."""

from __future__ import annotations

import os
from pathlib import Path

import click

import relaytui
from relaytui.shell.arguments import PATH
from relaytui.shell.loading import loading
from relaytui.wire.errors import RelayError

EPILOG = """\b
Examples:
  relay-agent doctor              is all there that a training needs?
  relay-agent                     train the run that RUN_ID names
  relay-agent example > run.yaml  begin a run.yaml of your own
  relay-agent --config run.yaml   train with it
\b
Set in the environment, or in run.yaml (environment wins):
  COMMANDER_URL         where the commander listens, http(s)://host[:port]
  RELAY_SHARED_SECRET   what lets this worker in; `relay-tui token worker` prints it
  RUN_ID  MODE          the run to train; sft or rl
  WORKER_ID             a name for this pod, in lists and history (HOSTNAME)
  RELAY_L1_ROOT         where the volume is mounted (/mnt/relay)
  RELAY_RUN_CONFIG      path of run.yaml; `relay-agent example` explains every key
  TRAIN_CMD             a trainer of your own (SLIME_SFT_CMD, SLIME_RL_CMD: of one mode)
  HF_REPO  HF_TOKEN     where checkpoints are kept on the Hugging Face Hub; HF_DRY_RUN=false sends them
  ARTIFACTS             final, every or best: which go to the commander's artifact store
\b
Exit codes:
  the trainer's own code, 128 + n when signal n ended it, and
  1    the trainer ended early with 0, or something failed that has no code of its own
  2    configuration, launcher or volume cannot be used
  69   no commander answers (doctor only; a training waits for it)
  74   the volume failed before the trainer started, or stdout cannot be written (doctor)
  75   the lease was refused or lost: another agent trains this run, or it has ended
  77   wrong secret, or what listens there did not prove that it is our commander
  130  interrupted before anything was begun (143: told to stop by SIGTERM)
  141  whoever read stdout went away (doctor)
"""


@click.group(invoke_without_command=True, epilog=EPILOG)
@click.version_option(relaytui.__version__, prog_name="relay-agent", message="%(prog)s %(version)s")
@click.option("--config", type=PATH, help="run.yaml. [env RELAY_RUN_CONFIG]")
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
    with loading():
        import asyncio

        from relay_agent import secret_words
        from relay_agent.assumed import first_lines
        from relay_agent.config import load, secrets_of
        from relay_agent.process import hide_secrets, say, settle_in, tell_time
        from relay_agent.runner import run
        from relaytui.wire.clock import SystemClock

    settle_in()
    settings = load(config=config)
    secret_words.learn(secrets_of(settings))
    secret_words.learn(secret_words.of(os.environ))
    hide_secrets()
    tell_time(SystemClock())
    for line in first_lines(settings, os.environ):
        say(line)
    try:
        return asyncio.run(run(settings))
    except RelayError as error:
        raise as_told(error) from None


@cli.command(short_help="Check all that a training needs, and say what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def doctor(config: Path | None, as_json: bool) -> int:
    """Check configuration, launcher, volume, commander, token and clock, and say what is wrong.

    Changes nothing. The exit code is 0, or that of the first check that failed.
    """
    with loading():
        import asyncio

        from relay_agent.doctor import examine, print_checks

    checks = asyncio.run(examine(config))
    return print_checks(checks, as_json)


@cli.command(short_help="Print a run.yaml that explains every key.")
def example() -> None:
    """Print a run.yaml that explains every key.

    `relay-agent example > run.yaml` begins one of your own; RELAY_RUN_CONFIG names it.
    """
    package = Path(__file__).resolve().parent
    name = "run.example.yaml"  # in an installed package, or in `agent/` of a checkout
    found = next(path for path in (package / name, package.parent / name) if path.is_file())
    click.echo(found.read_text(encoding="utf-8"), nl=False)


def as_told(error: RelayError) -> RelayError:
    """Without what is secret, for it may repeat what a trainer or the network said."""
    from relay_agent.secret_words import scrub

    return RelayError(
        error.code, scrub(error.message), scrub(error.hint), exit_code=error.exit_code, status=error.status
    )
