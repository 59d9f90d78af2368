"""`python -m tests.bench`: measures, prints a table or one JSON object; a missed goal is said, not an error."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relaytui.wire.errors import RelayError
from tests.bench import (
    artifact,
    cancel,
    clean,
    elsewhere,
    etcd,
    flood,
    hub,
    ingest,
    line,
    memory,
    paint,
    publish,
    reading,
    renew,
    restart,
    spool,
    takeover,
)
from tests.bench.children import BenchError
from tests.bench.rounds import Bench, Setting, Skipped, machine_state
from tests.bench.rows import Row, as_object, as_table

MODULES = (
    line, reading, ingest, clean, renew, etcd, restart, paint, memory, spool, takeover, elsewhere, cancel, flood,
    publish, artifact, hub,
)  # fmt: skip
BENCHES = {module.BENCH.name: module.BENCH for module in MODULES}
ROUNDS = 5

DESCRIPTION = "Measures Relay's speed and size beside yardsticks, in minutes. Loopback only; it ends all it starts."
EPILOG = """\
benches and their rows:
{benches}

Each figure is the median over the rounds, beside a yardstick that does the same job with nothing of Relay in it and was
measured in the same round; `ratio` is the median of figure / yardstick. Compare ratios between machines, never absolute
figures. A missed goal is said in its row and the exit code is 0 all the same; it is 1 when a bench broke.
"""


def parser() -> argparse.ArgumentParser:
    benches = "\n".join(
        f"  {bench.name:8} {bench.about}\n  {'':8} {', '.join(bench.rows)}" for bench in BENCHES.values()
    )
    made = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=DESCRIPTION,
        epilog=EPILOG.format(benches=benches),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help='print one object, {"rows": […]}, instead of the table')
    made.add_argument("--only", nargs="+", metavar="NAME", type=known, help="only these benches or rows")
    made.add_argument("--rounds", type=positive, default=ROUNDS, metavar="N", help="per bench (default %(default)s)")
    made.add_argument(
        "--folder", type=Path, metavar="DIR", help="scratch, on the disk to be measured (default: system's)"
    )
    return made


def known(name: str) -> str:
    names = [name for bench in BENCHES.values() for name in (bench.name, *bench.rows)]
    if name not in names:
        raise argparse.ArgumentTypeError(f"{name!r} is neither a bench nor a row ({', '.join(dict.fromkeys(names))})")
    return name


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    chosen = options.only or list(BENCHES)
    benches = [bench for bench in BENCHES.values() if {bench.name, *bench.rows} & set(chosen)]
    rows, broken = measure(benches, options.rounds, options.folder, chosen)
    rows = [row for row in rows if row.name in chosen or row.name.partition(".")[0] in chosen]
    if rows or not broken:
        print(json.dumps(as_object(rows), ensure_ascii=False) if options.json else as_table(rows))
    for message in broken:
        say(message)
    return 1 if broken else 0


def measure(
    benches: Sequence[Bench], rounds: int, parent: Path | None, chosen: Sequence[str]
) -> tuple[list[Row], list[str]]:
    """Rows of all benches that could be run, and one line for each that broke."""
    rows: list[Row] = []
    broken: list[str] = []
    root = Path(tempfile.mkdtemp(prefix="relay-bench-", dir=parent))
    try:
        for bench in benches:
            say(f"{bench.name}: {bench.about} ({machine_state()})")
            folder = root / bench.name
            folder.mkdir()
            wanted = frozenset() if bench.name in chosen else frozenset(chosen)
            try:
                rows += bench.run(Setting(rounds, folder, lambda words: say(f"  {words}"), wanted))
            except Skipped as why:
                say(f"  skipped: {why}")
            except (BenchError, RelayError, OSError) as error:
                broken.append(f"{bench.name} broke: {error}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return rows, broken


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def interruptible(arguments: Sequence[str] | None = None) -> int:
    """`main`, and on Ctrl-C or SIGTERM everything that was started is ended before this process is."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return main(arguments)
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(interruptible())
