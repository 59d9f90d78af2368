"""`relay-tui`: the dashboard, and the same commander from the shell. Stdout is data, stderr is words."""

from __future__ import annotations

import importlib
from typing import Any

import click

from relaytui import __version__
from relaytui.cli.options import NO_TARGET, Given, Target, target_options, usage
from relaytui.cli.taught import CODES, teach
from relaytui.shell.arguments import WORDS, Whole, shown
from relaytui.shell.loading import loading

COMMANDS = {
    # name: (module, attribute, one line of help). Loaded only when called, so that --help and --version stay quick.
    "serve": ("relaytui.cli.serve", "serve", "Run the commander without a screen."),
    "status": ("relaytui.cli.show", "status", "Is a commander running, and how is everything?"),
    "runs": ("relaytui.cli.show", "runs", "List runs; with RUN_ID, one run's attempts and checkpoints."),
    "workers": ("relaytui.cli.show", "workers", "List workers."),
    "events": ("relaytui.cli.show", "events", "Who did what to what, when; with RUN_ID, of one run."),
    "log": ("relaytui.cli.log", "log", "What a run's trainer printed."),
    "force-acquire": ("relaytui.cli.act", "force_acquire", "Take a run away from its holder."),
    "drain": ("relaytui.cli.act", "drain", "Let a run save, publish and release."),
    "cancel": ("relaytui.cli.act", "cancel", "End a run: save, publish, not queued again but by requeue."),
    "save": ("relaytui.cli.act", "save", "Ask for a checkpoint of a run now."),
    "sync": ("relaytui.cli.act", "sync", "Bring a run's newest checkpoint to the Hub now."),
    "requeue": ("relaytui.cli.act", "requeue", "Queue a run that has ended again."),
    "artifacts": ("relaytui.cli.artifacts", "artifacts", "What is stored of runs: list, fetch, verify, attach, …"),
    "stop": ("relaytui.cli.stop", "stop", "Stop the commander of the state folder; runs train on."),
    "backup": ("relaytui.cli.backup", "backup", "Copy the commander's state into one file."),
    "restore": ("relaytui.cli.backup", "restore", "Put a backup in the place of the commander's state."),
    "token": ("relaytui.cli.token", "token", "Print the token that an agent or a remote client needs."),
    "print-lium-command": ("relaytui.cli.lium", "print_lium_command", "Print how to start an agent on a Lium pod."),
    "demo": ("relaytui.cli.demo", "demo", "Real training on this machine: three agents, one of them killed."),
}

INSTEAD = {
    "attempts": "`relay-tui runs RUN_ID` lists those of a run",
    "checkpoints": "`relay-tui runs RUN_ID` lists those of a run",
    "steps": "`relay-tui runs` says how far each run is",
    "leases": "`relay-tui runs` says who holds what, and for how long still",
    "queue": "`relay-tui runs` lists queued runs, too",
    "jobs": "`relay-tui runs` lists runs",
    "agents": "`relay-tui workers` lists agents",
    "pods": "`relay-tui workers` lists agents",
    "ps": "`relay-tui runs` and `relay-tui workers` list what there is",
    "ls": "`relay-tui runs` and `relay-tui workers` list what there is",
    "list": "`relay-tui runs` and `relay-tui workers` list what there is",
    "history": "`relay-tui events` lists who did what to what",
}
"""What people type for what a command of another name says."""

EPILOG = "\b\nExit codes:\n" + "".join(f"  {code:<4} {words}\n" for code, words in CODES.items())


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        with loading():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        teach(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, 1)
            hint = INSTEAD.get(name) or (f"Did you mean {near[0]!r}?" if near else "")
            ctx.fail(f"No such command {shown(name)}. {hint}".rstrip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, _, words) in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True, epilog=EPILOG)
@click.version_option(__version__, prog_name="relay-tui", message="%(prog)s %(version)s")
@target_options
@click.option("--port", type=Whole(0, 65535), help="Port of a commander started here. [env PORT, 8080]")
@click.option("--theme", type=WORDS, metavar="NAME", help="Theme of the dashboard; ctrl+p lists them.")
@click.pass_context
def cli(ctx: click.Context, /, target: Target | None, **dashboard: Any) -> None:
    """Watch and steer training runs on pods that vanish.

    Without a command this is the dashboard: it attaches to the commander of the state folder, or starts one.
    """
    if target is not None:
        from relaytui.cli.dashboard import open_dashboard

        ctx.exit(open_dashboard(target, **dashboard))
    for name, value in dashboard.items():
        if value is not None:
            raise usage(
                f"--{name} before {ctx.invoked_subcommand} is for the dashboard, which is not started",
                "leave it out, or put it after the command that takes it",
            )
    if ctx.invoked_subcommand in NO_TARGET and ctx.obj != Given():
        raise usage(f"{ctx.invoked_subcommand} asks no commander", "leave out --state and --connect")
