"""`relay-tui print-lium-command`: how to start an agent on a Lium pod, as commands that work as they are.

Lium takes `--env` only with `--image` and keeps such values with the pod's template; a value in argv is in the
process list. So the variables travel as a file: written here with mode 600, copied by `lium scp`, read on the pod.
"""

from __future__ import annotations

import re
import shlex
import urllib.parse
from dataclasses import dataclass

import click
import orjson

from relaytui.cli.options import json_option
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.ids import is_id

REMOTE_ENV = "/root/relay.env"
SECRETS = ("RELAY_SHARED_SECRET", "HF_TOKEN")


@dataclass(frozen=True)
class Step:
    why: str
    command: str


@click.command(name="print-lium-command")
@click.option(
    "--commander-url", required=True, help="How the pod reaches this commander, e.g. https://relay.example.org"
)
@click.option("--run-id", required=True, help="The run to train.")
@click.option("--mode", type=click.Choice(["sft", "rl"]), default="sft", show_default=True)
@click.option("--pod-name", default="relay-pod", show_default=True, help="Name of the pod, and of the worker.")
@click.option("--template-id", help="Lium template that holds your trainer and relay-agent.")
@click.option("--image", help="Docker image instead of a template.")
@click.option("--node", help="Node to rent (id or huid from `lium ls`).")
@click.option("--gpu", help="Kind of GPU to look for instead of naming a node, e.g. H100.")
@click.option("--count", type=click.IntRange(1, 64), help="How many GPUs, with --gpu.")
@click.option("--volume", help="`id:HUID`, a volume's HUID, or `new:name=NAME`; mounted at /mnt.")
@click.option("--hf-repo", default="", help="Hub repository for checkpoints.")
@click.option("--ttl", default="24h", show_default=True, help="The pod removes itself after this long.")
@json_option
def print_lium_command(as_json: bool, **options: str | int | None) -> None:
    """Print the commands that rent a Lium pod and start an agent there; run them in a shell that has the secrets.

    \b
    Example:
      relay-tui print-lium-command --commander-url https://relay.example.org --run-id my-run \\
          --template-id TEMPLATE --gpu H100 --volume id:VOLUME | bash -e
    """
    steps = lium_steps(**options)  # type: ignore[arg-type]
    if as_json:
        click.echo(
            orjson.dumps({"steps": [{"why": s.why, "command": s.command} for s in steps]}, option=orjson.OPT_INDENT_2)
        )
        return
    for step in steps:
        click.echo(f"# {step.why}\n{step.command}\n")


def lium_steps(
    *,
    commander_url: str,
    run_id: str,
    mode: str,
    pod_name: str,
    template_id: str | None,
    image: str | None,
    node: str | None,
    gpu: str | None,
    count: int | None,
    volume: str | None,
    hf_repo: str,
    ttl: str,
) -> list[Step]:
    """The steps, each one shell command. Values are quoted; secrets are named, never written out."""
    _check(commander_url=commander_url, run_id=run_id, pod_name=pod_name, ttl=ttl, volume=volume)
    if (template_id is None) == (image is None):
        raise _usage("name either --template-id or --image", "a pod is made of exactly one of them")
    if (node is None) == (gpu is None):
        raise _usage("name either --node or --gpu", "Lium needs a node, or a kind of GPU to look for")
    if count is not None and gpu is None:
        raise _usage("--count goes with --gpu", "with --node the node says how many it has")

    up = ["lium", "up"]
    up += [node] if node else ["--gpu", str(gpu), *(["--count", str(count)] if count else [])]
    up += ["--template_id", template_id] if template_id else ["--image", str(image)]
    up += ["--name", pod_name, "--ttl", ttl]
    if volume:
        up += ["--volume", volume if ":" in volume else f"id:{volume}"]
    up += ["--yes", "--json"]

    variables = {
        "COMMANDER_URL": commander_url,
        "RUN_ID": run_id,
        "WORKER_ID": pod_name,
        "MODE": mode,
        "HF_REPO": hf_repo,
        "HF_DRY_RUN": "false" if hf_repo else "true",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value]
    local = f"{pod_name}.env"
    needed = SECRETS if hf_repo else SECRETS[:1]
    # printf is the shell's own word: what it prints is in no process list, and %q quotes whatever the secret holds.
    secrets = [f'printf "export {name}=%q\\n" "${{{name}:?set it in this shell first}}"' for name in needed]
    write = "\n".join(
        ["(", "umask 077", "{", *(f"printf '%s\\n' {shlex.quote(line)}" for line in lines), *secrets, "}"]
    )
    write += f" > {shlex.quote(local)}\n)"
    start = f"set -a; . {REMOTE_ENV}; exec relay-agent"
    return [
        Step("the agent's variables; secrets come from this shell's environment and stay out of argv", write),
        Step("rent the pod; it removes itself after the ttl", shlex.join(up)),
        Step("copy the variables to it", shlex.join(["lium", "scp", pod_name, f"./{local}", REMOTE_ENV])),
        Step("start the agent", shlex.join(["lium", "exec", pod_name, "--detach", start])),
        Step("the copy here is not needed any more", shlex.join(["rm", "-f", "--", local])),
    ]


def _check(*, commander_url: str, run_id: str, pod_name: str, ttl: str, volume: str | None) -> None:
    url = urllib.parse.urlsplit(commander_url)
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.password:
        raise _usage(
            f"--commander-url {commander_url!r} is not a plain http(s) URL", "such as https://relay.example.org"
        )
    for option, value in (("--run-id", run_id), ("--pod-name", pod_name)):
        if not is_id(value):
            raise _usage(f"{option} {value!r} is not a name", "letters, digits, dots, dashes, underscores; 128 at most")
    if not re.fullmatch(r"[0-9]+[mhd]", ttl):
        raise _usage(f"--ttl {ttl!r} is not a time", "such as 90m, 6h or 2d")
    if volume is not None and not re.fullmatch(r"(id:)?[A-Za-z0-9._-]+|new:name=[A-Za-z0-9._-]+(,desc=.*)?", volume):
        raise _usage(f"--volume {volume!r} is not a volume", "id:HUID, or new:name=NAME")


def _usage(message: str, hint: str) -> RelayError:
    return RelayError("usage", message, hint, exit_code=Exit.USAGE)
