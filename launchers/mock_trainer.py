#!/usr/bin/env python3
"""A trainer that misbehaves on demand, for testing what watches trainers. It learns nothing.

It counts steps, prints a line for each, saves into $RELAY_CKPT_STAGING_ROOT/step_<N>/ (COMPLETE last) and resumes its
count from $RELAY_RESUME_FROM. On SIGTERM it saves and exits 143; where $RELAY_SAVE_FILE appears it saves and goes
on. Try:

  mock_trainer.py --steps 20 --step-seconds 0.1 --save-every 5     a well-behaved one
  mock_trainer.py --crash-at 12 --exit-code 7                      fails in step 12
  mock_trainer.py --crash-at 12 --exit-code -9                     dies of SIGKILL in step 12
  mock_trainer.py --crash-at 12 --crash-once /tmp/x --last-words 'CUDA out of memory'     the same once, and why
  mock_trainer.py --hang-at 5 --ignore-sigterm                     must be killed
  mock_trainer.py --hang-at 5 --chatter --only-epochs 1            prints, makes no step; the next attempt is well
  mock_trainer.py --hang-at 12 --hang-in evaluating --hang-until /tmp/x     in its evaluation, until that file is there
  mock_trainer.py --bad-checkpoint symlink --bad-at 10             the checkpoint of step 10 points at /etc
  mock_trainer.py --children 3 --daemons                           leaves processes that escaped its session
  mock_trainer.py --print-bytes 10000000                           ten megabytes of garbage on standard output
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

EXIT_CANNOT_RESUME = 3
BAD = {
    "torn": "half of it, no COMPLETE, then death by SIGKILL",
    "truncated": "marked whole, but cut short; its own resume refuses it (exit 3)",
    "empty": "a folder with nothing but COMPLETE",
    "symlink": "its data is a link to /etc/passwd",
    "fifo": "its data is a FIFO that blocks whoever opens it",
}

HANGS = {
    "training": (),
    "loading": ("Loading checkpoint shards:  12%|#         | 1/8 [00:01<00:07]",),
    "evaluating": ("***** Running Evaluation *****", "  3%|          | 1/32 [00:01<00:40]"),
    "saving": ("saving checkpoint to out",),
}
"""What it says before it hangs there; in saving it has half a checkpoint, too."""


def options() -> argparse.Namespace:
    bad = "\n".join(f"  {kind:<10} {what}" for kind, what in BAD.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"kinds of --bad-checkpoint:\n{bad}\n\nexit codes: 0 done, 3 cannot resume, 143 SIGTERM, or --exit-code",
    )
    add = parser.add_argument
    add("--steps", type=int, default=20, help="last step (20)")
    add("--step-seconds", type=float, default=0.05, help="time for one step (0.05)")
    add("--save-every", type=int, default=5, help="steps between checkpoints (5); 0: never")
    add("--total", default=None, metavar="N|unknown", help="total printed in step lines; unknown: none (--steps)")
    add("--size", type=int, default=4096, metavar="BYTES", help="data in a checkpoint (4096)")
    add("--no-marker", action="store_true", help="never write COMPLETE: whole only once it settled")
    add("--crash-at", type=int, metavar="STEP", help="exit with --exit-code in this step, unsaved")
    add("--exit-code", type=int, default=1, metavar="CODE", help="of --crash-at (1); -N: die by signal N")
    add("--crash-once", metavar="FILE", help="--crash-at only where FILE is not there yet; it is made then")
    add("--last-words", default="", metavar="TEXT", help="what it says on standard error before --crash-at")
    add("--hang-at", type=int, metavar="STEP", help="say and do nothing any more from this step on")
    add("--hang-in", choices=tuple(HANGS), default="training", help="what it does, and says, when --hang-at comes")
    add("--hang-until", metavar="FILE", help="it hangs no longer once this file is there")
    add("--chatter", action="store_true", help="print a health check again and again while it hangs")
    add("--last-waits-for", metavar="FILE", help="the last step is made only once this file is there")
    add("--nan-at", type=int, metavar="STEP", help="the loss is nan from this step on")
    add("--diverge-at", type=int, metavar="STEP", help="the loss is five times as high from this step on")
    add("--only-epochs", type=int, metavar="N", help="it hangs, crashes or goes bad in attempts of epochs up to N only")
    add("--ignore-sigterm", action="store_true", help="only SIGKILL stops it")
    add("--bad-checkpoint", choices=tuple(BAD), metavar="KIND", help="one checkpoint goes wrong, see below")
    add("--bad-at", type=int, metavar="STEP", help="which one: the first at or after this step (the first)")
    add("--children", type=int, default=0, metavar="N", help="start N processes that never end by themselves")
    add("--daemons", action="store_true", help="these leave the session and lose their parent")
    add(
        "--print-bytes",
        type=int,
        default=0,
        metavar="N",
        help="first print N bytes: NUL, escapes, no UTF-8, no newline",
    )
    return parser.parse_args()


def well(chosen: argparse.Namespace) -> None:
    """In this attempt nothing goes wrong that --only-epochs covers."""
    chosen.hang_at = chosen.crash_at = chosen.nan_at = chosen.diverge_at = None


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def resume(folder: Path) -> int:
    """The step to go on from; ValueError where the folder is not what `save` wrote."""
    state = json.loads((folder / "state.json").read_text(encoding="ascii"))
    size = (folder / "data.bin").stat().st_size
    if size != state["size"]:
        raise ValueError(f"data.bin has {size} bytes, not {state['size']}")
    return int(state["step"])


def save(step: int, size: int, *, marker: bool, bad: str | None) -> None:
    root = os.environ.get("RELAY_CKPT_STAGING_ROOT")
    if not root:
        return
    folder = Path(root) / f"step_{step}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    data = (f"step {step} ".encode() * (size // 6 + 1))[:size]
    if bad is None or bad in ("torn", "truncated"):
        (folder / "data.bin").write_bytes(data if bad is None else data[: size // 2])
    if bad == "torn":
        os.kill(os.getpid(), signal.SIGKILL)
    if bad == "symlink":
        (folder / "data.bin").symlink_to("/etc/passwd")
    if bad == "fifo":
        os.mkfifo(folder / "data.bin")
    if bad != "empty":
        (folder / "state.json").write_text(json.dumps({"step": step, "size": size}), encoding="ascii")
    if marker or bad:
        (folder / "COMPLETE").touch()


def asked_to_save() -> bool:
    """Whether $RELAY_SAVE_FILE is there; it is not any more then."""
    try:
        Path(os.environ.get("RELAY_SAVE_FILE", "")).unlink()
    except OSError:
        return False
    return True


def start_children(count: int, daemons: bool) -> None:
    for _ in range(count):
        if os.fork():
            continue
        if daemons:
            os.setsid()
            if os.fork():
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(3600)


def torture(count: int) -> None:
    """Bytes that hurt whoever decodes, splits or shows them, without a single newline, then one."""
    pattern = (
        b"\x00\xff\xfe\xc3\x28\xed\xa0\x80\x1b[2J\x1b]0;title\x07\r\xe2\x80\xae\x08loss nan step -1/0 " + b"x" * 4000
    )
    out = sys.stdout.buffer
    while count > 0:
        count -= out.write(pattern[:count])
    out.write(b"\n")
    out.flush()


def hang(chosen: argparse.Namespace, step: int, asked: list[int]) -> None:
    """Until it is told to stop, or --hang-until says so; then it is well for good."""
    for line in HANGS[chosen.hang_in]:
        say(line)
    half = Path(os.environ.get("RELAY_CKPT_STAGING_ROOT") or os.devnull) / f"step_{step}"
    if chosen.hang_in == "saving" and half.parent.is_dir():
        half.mkdir(exist_ok=True)
        (half / "data.bin").write_bytes(b"half of it")
    while not asked and not (chosen.hang_until and Path(chosen.hang_until).exists()):
        if chosen.chatter:
            say("INFO: 127.0.0.1:8265 - GET /health HTTP/1.1 200 OK")
        time.sleep(0.02)
    well(chosen)


def main() -> int:
    chosen = options()
    if chosen.only_epochs is not None and int(os.environ.get("RELAY_EPOCH") or 1) > chosen.only_epochs:
        well(chosen)
    asked: list[int] = []
    ignore = signal.SIG_IGN if chosen.ignore_sigterm else lambda number, _frame: asked.append(number)
    signal.signal(signal.SIGTERM, ignore)
    step = 0
    if resume_from := os.environ.get("RELAY_RESUME_FROM"):
        try:
            step = resume(Path(resume_from))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"cannot resume from {resume_from}: {error}", file=sys.stderr)
            return EXIT_CANNOT_RESUME
        say(f"resumed at step {step}")
    start_children(chosen.children, chosen.daemons)
    if chosen.print_bytes:
        torture(chosen.print_bytes)
    total = "" if chosen.total == "unknown" else f"/{chosen.total or chosen.steps}"
    bad = chosen.bad_checkpoint
    while step < chosen.steps:
        step += 1
        if step == chosen.crash_at and not (chosen.crash_once and Path(chosen.crash_once).exists()):
            if chosen.crash_once:
                Path(chosen.crash_once).touch()
            if chosen.last_words:
                print(chosen.last_words, file=sys.stderr, flush=True)
            if chosen.exit_code < 0:
                os.kill(os.getpid(), -chosen.exit_code)
            return int(chosen.exit_code)
        if chosen.hang_at is not None and step >= chosen.hang_at:
            hang(chosen, step, asked)
        while chosen.last_waits_for and step == chosen.steps and not asked and not Path(chosen.last_waits_for).exists():
            time.sleep(0.02)
        until = time.monotonic() + chosen.step_seconds
        while not asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
        loss = 3 / (1 + step / 50)
        if chosen.diverge_at is not None and step >= chosen.diverge_at:
            loss *= 5
        if chosen.nan_at is not None and step >= chosen.nan_at:
            loss = float("nan")
        say(f"step {step}{total} loss {loss:.4f} lr 0.0100")
        due = bool(chosen.save_every) and (step % chosen.save_every == 0 or step == chosen.steps)
        due = asked_to_save() or due
        if due or asked:
            wrong = bad if bad and step >= (chosen.bad_at or 0) else None
            save(step, chosen.size, marker=not chosen.no_marker, bad=wrong)
            bad = None if wrong else bad
        if asked:
            return 143
    return 0


if __name__ == "__main__":
    sys.exit(main())
