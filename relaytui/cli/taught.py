"""What `--help` of each command teaches beyond its options: how one uses it, and what its exit code says."""

from __future__ import annotations

from typing import NamedTuple

import click

CODES = {
    0: "done",
    1: "not found, or failed for a reason that has no code of its own",
    2: "arguments, environment or configuration are wrong",
    69: "no commander answers, or its port is taken",
    74: "the state folder or stdout cannot be used",
    75: "an order was refused, or the run changed meanwhile",
    77: "wrong or missing token, or a commander that did not prove who it is",
    130: "interrupted, or the answer to a question was no",
    141: "whoever read stdout went away",
}
"""Every one there is; any command may say 2, 74, 130 and 141."""


class Taught(NamedTuple):
    examples: tuple[str, ...]
    codes: tuple[int, ...]


_LOOKS = (0, 1, 69, 77)
_ACTS = (0, 1, 2, 69, 75, 77, 130)
_FOLDER = (0, 2, 74)
_FILES = (0, 1, 2, 69, 74, 77)

TAUGHT = {
    "serve": Taught(("relay-tui serve", "relay-tui serve --port 0 --json"), (0, 2, 69, 74)),
    "status": Taught(("relay-tui status", "relay-tui status --json | jq .runs"), _LOOKS),
    "runs": Taught(("relay-tui runs", "relay-tui runs my-run", "relay-tui runs --json | jq '.runs[].run_id'"), _LOOKS),
    "workers": Taught(("relay-tui workers", "relay-tui --connect https://relay.example.org workers"), _LOOKS),
    "events": Taught(("relay-tui events my-run", "relay-tui events --after 1200 --json"), _LOOKS),
    "log": Taught(
        ("relay-tui log my-run --lines 1000", "relay-tui log my-run --epoch 2 --times | grep -i error"), _LOOKS
    ),
    "force-acquire": Taught(
        (
            "relay-tui force-acquire my-run --why 'its pod hangs'",
            "relay-tui force-acquire my-run --pod-gone",
            "relay-tui force-acquire my-run --expected-epoch 3 --yes",
        ),
        _ACTS,
    ),
    "drain": Taught(("relay-tui drain my-run", "relay-tui drain my-run --expected-epoch 3 --yes"), _ACTS),
    "cancel": Taught(
        ("relay-tui cancel my-run --why 'the loss is nan'", "relay-tui cancel my-run --expected-epoch 3 --yes"), _ACTS
    ),
    "save": Taught(("relay-tui save my-run",), _ACTS),
    "sync": Taught(("relay-tui sync my-run", "relay-tui sync my-run --wait 30 --json"), _ACTS),
    "requeue": Taught(("relay-tui requeue my-run", "relay-tui requeue my-run --expected-epoch 3 --yes"), _ACTS),
    "artifacts": Taught(("relay-tui artifacts list my-run", "relay-tui artifacts fetch --help"), (0, 2)),
    "artifacts list": Taught(
        ("relay-tui artifacts list", "relay-tui artifacts list my-run --json | jq '.artifacts[].id'"), _LOOKS
    ),
    "artifacts fetch": Taught(
        ("relay-tui artifacts fetch 12 --extract step-500", "relay-tui artifacts fetch 13 --to report.json"), _FILES
    ),
    "artifacts verify": Taught(("relay-tui artifacts verify 12 13",), (0, 1, 69, 77)),
    "artifacts delete": Taught(
        ("relay-tui artifacts delete 12 --why 'superseded'", "relay-tui artifacts delete 12 --yes"), (0, 1, 69, 77, 130)
    ),
    "artifacts attach": Taught(
        ("relay-tui artifacts attach my-run report.json", "relay-tui artifacts attach my-run out/a.txt --name a.txt"),
        _FILES,
    ),
    "artifacts extract": Taught(("relay-tui artifacts extract my-run-step_500.tar.zst --to step-500",), (0, 1, 2, 74)),
    "stop": Taught(("relay-tui stop",), (0, 1, 69)),
    "backup": Taught(("relay-tui backup", "relay-tui backup --to /mnt/other/relay-$(date +%F).db --json"), _FOLDER),
    "restore": Taught(("relay-tui stop", "relay-tui restore FILE", "relay-tui serve"), (*_FOLDER, 130)),
    "token": Taught(('export RELAY_SHARED_SECRET="$(relay-tui token worker)"',), _FOLDER),
    "print-lium-command": Taught(
        (
            "relay-tui print-lium-command --run-id my-run \\",
            "  --commander-url https://relay.example.org --template-id TEMPLATE \\",
            "  --gpu H100 --volume id:VOLUME \\",
            """  --command 'exec python3 train.py --output_dir "$RELAY_OUTPUT_DIR" "$@"' \\""",
            "  | bash -e",
        ),
        (0, 2),
    ),
    "demo": Taught(("relay-tui demo", "relay-tui demo --headless --seconds 60 --json"), (0, 2, 130)),
}


def teach(name: str, command: click.Command) -> None:
    examples, codes = TAUGHT[name]
    shown = "".join(f"  {line}\n" for line in examples)
    lines = "".join(f"  {code:<4} {CODES[code]}\n" for code in codes)
    title = "Example" if sum(not line.startswith(" ") for line in examples) == 1 else "Examples"
    command.epilog = f"\b\n{title}:\n{shown}\n\b\nExit codes (all: relay-tui --help):\n{lines}"
