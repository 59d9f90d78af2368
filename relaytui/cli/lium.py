"""`relay-tui print-lium-command`: how to start an agent on a Lium pod, as commands that work as they are.

Lium takes `--env` only with `--image` and keeps such values with the pod's template; a value in argv is in the
process list. So the variables travel as a file: written here with mode 600, copied by `lium scp`, read on the pod.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

import click
import orjson

from relaytui.cli.options import json_option, usage
from relaytui.cli.serve import weak
from relaytui.shell.arguments import RUN_ID, URL, Checked, Whole, Words
from relaytui.wire.ids import is_id

REMOTE_ENV = "/root/relay.env"
SECRETS = ("RELAY_SHARED_SECRET", "HF_TOKEN")


class PodName(Checked):
    """A worker's name that `lium` takes for this pod and no other: `all` and row numbers mean other pods to it."""

    name = "name"

    def check(self, text: str) -> str:
        if not is_id(text):
            raise ValueError("should be a name: letters, digits, dots, dashes and underscores, 128 at most")
        if text.isdigit() or text.lower() == "all":
            raise ValueError("should be a name: to lium this one means other pods")
        return text


class Name(Words):
    """Handed on to `lium`, which would take a leading dash for an option."""

    def check(self, text: str) -> str:
        if text.startswith("-"):
            raise ValueError("should not begin with a dash")
        return str(super().check(text))


class Matching(Checked):
    """Text of one pattern; `should` says which."""

    name = "text"

    def __init__(self, pattern: str, should: str) -> None:
        self._pattern = re.compile(pattern)
        self._should = should

    def check(self, text: str) -> str:
        if not self._pattern.fullmatch(text):
            raise ValueError(f"should be {self._should}")
        return text


class VolumeSpec(Matching):
    def check(self, text: str) -> str:
        spec = super().check(text)
        return spec if ":" in spec else f"id:{spec}"


NAME = Name(most=256)
VOLUME = VolumeSpec(
    r"(id:)?[A-Za-z0-9][A-Za-z0-9._-]*|new:name=[A-Za-z0-9._-]+(,desc=[^,=\x00-\x1f\x7f-\x9f]{1,200})?",
    "a volume: id:HUID, or new:name=NAME",
)
TTL = Matching(r"[0-9]{0,4}[1-9][0-9]{0,4}[mhd]", "a time, such as 90m, 6h or 2d")
POD_PATH = Matching(r"(/[A-Za-z0-9][A-Za-z0-9._-]{0,250}){1,15}", "the path of a folder on the pod, such as /workspace")
HUB_REPO = Matching(r"([A-Za-z0-9][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}", "a repository, OWNER/NAME")


@dataclass(frozen=True)
class Step:
    why: str
    command: str


@click.command(name="print-lium-command")
@click.option(
    "--commander-url",
    type=URL,
    required=True,
    help="How the pod reaches this commander, e.g. https://relay.example.org",
)
@click.option("--run-id", type=RUN_ID, required=True, help="The run to train.")
@click.option("--mode", type=click.Choice(["sft", "rl"]), default="sft", show_default=True)
@click.option(
    "--pod-name", type=PodName(), default="relay-pod", show_default=True, help="Name of the pod, and of the worker."
)
@click.option("--template-id", type=NAME, help="Lium template that holds your trainer and relay-agent.")
@click.option("--image", type=NAME, help="Docker image instead of a template.")
@click.option("--node", type=NAME, help="Node to rent (id or huid from `lium ls`).")
@click.option("--gpu", type=NAME, help="Kind of GPU to look for instead of naming a node, e.g. H100.")
@click.option("--count", type=Whole(1, 64), help="How many GPUs, with --gpu.")
@click.option("--volume", type=VOLUME, help="`id:HUID`, a volume's HUID, or `new:name=NAME[,desc=WORDS]`.")
@click.option(
    "--l1-root",
    type=POD_PATH,
    default="/workspace",
    show_default=True,
    help="Where the template mounts the volume on the pod; runs and checkpoints go there.",
)
@click.option(
    "--command",
    type=Words(),
    help="What starts your trainer on the pod (TRAIN_CMD); bash runs it there. E.g."
    """ 'exec python3 train.py --output_dir "$RELAY_OUTPUT_DIR" "$@"'.""",
)
@click.option("--hf-repo", type=HUB_REPO, help="Hub repository for checkpoints, `owner/name`.")
@click.option("--ttl", type=TTL, default="24h", show_default=True, help="The pod removes itself after this long.")
@json_option
def print_lium_command(as_json: bool, **options: str | int | None) -> None:
    """Print the commands that rent a Lium pod and start an agent there; run them in a shell that has the secrets."""
    steps = lium_steps(**options)  # type: ignore[arg-type]
    if as_json:
        click.echo(
            orjson.dumps({"steps": [{"why": s.why, "command": s.command} for s in steps]}, option=orjson.OPT_INDENT_2)
        )
    else:
        click.echo(cleared(str(options["pod_name"])))
        click.echo("\n".join(f"# {step.why}\n{step.command}\n" for step in steps))
    # What cannot be printed needs no advice: the data comes first.
    if said := weak(os.environ.get("RELAY_SHARED_SECRET", "").strip()):
        click.echo(said, err=True)
    if said := unreachable(str(options["commander_url"])):
        click.echo(said, err=True)
    if options["command"] is None:
        own = f"SLIME_{str(options['mode']).upper()}_CMD"
        click.echo(
            f"no --command: Relay's own small trainer runs there, unless the image sets TRAIN_CMD or {own}", err=True
        )


def unreachable(url: str) -> str:
    """What to say of an address that means the machine it is used on; empty of any other."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
        own = address.is_loopback or address.is_unspecified
    except ValueError:
        own = host == "localhost" or host.endswith(".localhost")
    if not own:
        return ""
    return f"{url} means the pod itself there: it needs a tunnel to this commander, or another --commander-url"


def local_file(pod_name: str) -> str:
    """Where the variables are until they are copied to the pod."""
    return f"{pod_name}.env"


def cleared(pod_name: str) -> str:
    """For all steps in one shell: the file goes where one of them fails, too. One that somebody pastes this into has
    traps of its own, and goes on after what fails."""
    gone = shlex.quote(f"rm -f -- {shlex.quote(local_file(pod_name))}")
    return f"case $- in *i*) ;; *) trap {gone} EXIT ;; esac"


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
    l1_root: str,
    command: str | None,
    hf_repo: str | None,
    ttl: str,
) -> list[Step]:
    """The steps, each one shell command. Values are quoted; secrets are named, never written out."""
    if (template_id is None) == (image is None):
        raise usage("name either --template-id or --image", "a pod is made of exactly one of them")
    if (node is None) == (gpu is None):
        raise usage("name either --node or --gpu", "Lium needs a node, or a kind of GPU to look for")
    if count is not None and gpu is None:
        raise usage("--count goes with --gpu", "with --node the node says how many it has")

    up = ["lium", "up"]
    up += [node] if node else ["--gpu", str(gpu), *(["--count", str(count)] if count else [])]
    up += ["--template_id", template_id] if template_id else ["--image", str(image)]
    up += ["--name", pod_name, "--ttl", ttl]
    if volume:
        up += ["--volume", volume]
    up += ["--yes", "--json"]

    variables = {
        "COMMANDER_URL": commander_url,
        "RUN_ID": run_id,
        "WORKER_ID": pod_name,
        "MODE": mode,
        "RELAY_L1_ROOT": l1_root,
        "TRAIN_CMD": command or "",
        "HF_REPO": hf_repo or "",
        "HF_DRY_RUN": "false" if hf_repo else "",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value]
    if command:
        lines.append(f"unset SLIME_{mode.upper()}_CMD")  # an image's own would come before it
    local = local_file(pod_name)
    needed = SECRETS if hf_repo else SECRETS[:1]
    # printf is the shell's own word: what it prints is in no process list, and %q quotes whatever the secret holds.
    secrets = [f'printf "export {name}=%q\\n" "${{{name}:?set it in this shell first}}"' for name in needed]
    write = "\n".join(
        ["(", "umask 077", "{", *(f"printf '%s\\n' {shlex.quote(line)}" for line in lines), *secrets, "}"]
    )
    write = f"{write} > {shlex.quote(local)}\n)"
    start = f"set -a; . {REMOTE_ENV}; exec relay-agent"
    return [
        Step("the agent's variables; secrets come from this shell's environment and stay out of argv", write),
        Step("rent the pod; it removes itself after the ttl", shlex.join(up)),
        Step("copy the variables to it", shlex.join(["lium", "scp", pod_name, f"./{local}", REMOTE_ENV])),
        Step("start the agent in the background", shlex.join(["lium", "exec", pod_name, "--detach", start])),
        Step("the copy here is not needed any more", shlex.join(["rm", "-f", "--", local])),
    ]
