#!/usr/bin/env python3
"""A character model that really learns, in nothing but the Python standard library.

Two modes. `sft`: it learns to predict the next character of the English text that ships with Python
(`pydoc_data.topics`); the loss falls. `rl`: it writes text and is rewarded for every character that ends a group of
three which is common in that text (REINFORCE with a baseline); the reward rises.

It is deterministic: same Python, same options, same weights, however often it was killed and resumed on the way.

Checkpoints go to $RELAY_CKPT_STAGING_ROOT/step_<N>/, each renamed into place with an empty file COMPLETE in it. With
RELAY_RESUME_FROM it goes on from there, or says why it cannot and exits 3. SIGTERM: it finishes the step, saves and
exits 143. Where $RELAY_SAVE_FILE appears, it takes that away, saves and goes on. The final weights are
$RELAY_OUTPUT_DIR/final.bin.
"""

from __future__ import annotations

# This runs on the pod's own python3, 3.9 or newer: no zip(strict=), no newer syntax.
# ruff: noqa: B905
import argparse
import json
import math
import os
import shutil
import signal
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

from char_model import CONTEXT, SHAPES, Model, Random, corpus, pack, unpack, zeros

BATCH = 64  # characters learned from in a step, in either mode
EPISODE = 16  # characters written for one reward
COMMON = 1500  # groups of three characters that are rewarded
DISCOUNT = 0.6
FORMAT = 1
EXIT_NO_TEXT = 2
EXIT_CANNOT_RESUME = 3


class ResumeError(Exception):
    """The folder to resume from does not hold what this trainer saved."""


class Trainer:
    """Everything that a checkpoint holds: model, generator, place in the data, step."""

    def __init__(self, mode: str, seed: int, text: list[int]) -> None:
        self.mode = mode
        self.text = text
        self.rng = Random(seed)
        self.model = Model(self.rng)
        self.step = 0
        self.position = self.rng.below(len(text))
        self.baseline = 0.0
        self.last: dict[str, float] = {}
        self.common: set[tuple[int, ...]] = set()
        if mode == "rl":
            # By count, then by the letters themselves: the same set in every Python.
            counted = Counter(zip(text, text[1:], text[2:]))
            ranked = sorted(counted, key=lambda group: (-counted[group], group))
            self.common = set(ranked[:COMMON])

    def advance(self, rate: float) -> dict[str, float]:
        """One step; what it measured."""
        self.last = self._sft(rate) if self.mode == "sft" else self._rl(rate)
        self.step += 1
        return self.last

    def _sft(self, rate: float) -> dict[str, float]:
        grads = zeros()
        loss = 0.0
        for _ in range(BATCH):
            context, target = self._window()
            passed = self.model.forward(context)
            loss -= math.log(max(passed[2][target], 1e-300))
            self.model.backward(grads, context, passed, target, 1 / BATCH)
        self.model.update(grads, rate)
        return {"loss": loss / BATCH}

    def _rl(self, rate: float) -> dict[str, float]:
        grads = zeros()
        rewards = returns = 0.0
        for _ in range(BATCH // EPISODE):
            context, _ = self._window()
            steps = []
            for _ in range(EPISODE):
                passed = self.model.forward(context)
                choice = self.rng.pick(passed[2])
                reward = 1.0 if (context[-2], context[-1], choice) in self.common else 0.0
                steps.append((context, passed, choice, reward))
                context = [*context[1:], choice]
            value = 0.0
            for context, passed, choice, reward in reversed(steps):
                value = (1 - DISCOUNT) * reward + DISCOUNT * value
                rewards += reward
                returns += value
                self.model.backward(grads, context, passed, choice, (value - self.baseline) / BATCH)
        self.model.update(grads, rate)
        self.baseline += 0.1 * (returns / BATCH - self.baseline)
        # The objective that is minimised: what is missing to a full discounted reward.
        return {"reward": rewards / BATCH, "loss": 1 - returns / BATCH}

    def _window(self) -> tuple[list[int], int]:
        """CONTEXT characters and the one after them. A fixed long stride visits all of the text, well mixed."""
        self.position = (self.position + 104_729) % (len(self.text) - CONTEXT)
        window = self.text[self.position : self.position + CONTEXT + 1]
        return window[:CONTEXT], window[CONTEXT]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write everything into `folder`, which must not exist: first beside it, then renamed, marked whole."""
        private = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(private, ignore_errors=True)
        private.mkdir(parents=True)
        blobs = {"weights.bin": pack(self.model.weights), "adam.bin": pack(self.model.first) + pack(self.model.second)}
        for name, data in blobs.items():
            (private / name).write_bytes(data)
        state = {
            "format": FORMAT,
            "mode": self.mode,
            "shapes": SHAPES,
            "step": self.step,
            "position": self.position,
            "rng": self.rng.state,
            "baseline": self.baseline.hex(),
            "updates": self.model.updates,
            "last": self.last,
            "text": fingerprint(self.text),
            "crc32": {name: zlib.crc32(data) for name, data in blobs.items()},
        }
        (private / "trainer.json").write_text(json.dumps(state, indent=1) + "\n", encoding="ascii")
        (private / "COMPLETE").touch()
        private.rename(folder)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote; ResumeError where anything is missing, cut short or from another trainer."""
        try:
            state = json.loads((folder / "trainer.json").read_text(encoding="ascii"))
            blobs = {name: (folder / name).read_bytes() for name in ("weights.bin", "adam.bin")}
            if state["format"] != FORMAT or state["mode"] != self.mode:
                raise ResumeError(f"it is of mode {state['mode']!r}, format {state['format']!r}")
            for name, data in blobs.items():
                if zlib.crc32(data) != state["crc32"][name]:
                    raise ResumeError(f"{name} is damaged")
            if [list(shape) for shape in SHAPES] != state["shapes"] or state["text"] != fingerprint(self.text):
                raise ResumeError("it was saved with another model or another Python's text")
            self.model.weights = unpack(blobs["weights.bin"])
            half = len(blobs["adam.bin"]) // 2
            self.model.first = unpack(blobs["adam.bin"][:half])
            self.model.second = unpack(blobs["adam.bin"][half:])
            self.model.updates = int(state["updates"])
            self.rng.state = int(state["rng"])
            self.position = int(state["position"])
            self.baseline = float.fromhex(state["baseline"])
            self.last = {str(name): float(value) for name, value in state["last"].items()}
            self.step = int(state["step"])
        except OSError as error:
            raise ResumeError(f"{error.strerror}: {error.filename}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResumeError(f"it does not read ({type(error).__name__}: {error})") from None


def fingerprint(text: list[int]) -> int:
    return zlib.crc32(bytes(text))


class Voice:
    """Prints lines as they come. A reader that went away does not stop the training."""

    def __init__(self) -> None:
        self.stamp = os.environ.get("RELAY_STAMP") == "1"

    def say(self, line: str) -> None:
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w", encoding="ascii")  # noqa: SIM115, PTH123 - for the rest of the process

    def step(self, trainer: Trainer, steps: int, rate: float) -> None:
        measured = " ".join(f"{name} {value:.4f}" for name, value in trainer.last.items())
        stamp = f" t={time.time():.6f}" if self.stamp else ""
        self.say(f"step {trainer.step}/{steps} {measured} lr {rate:.4f}{stamp}")


class Stop:
    """Remembers the signal that asks to save and leave."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked)

    def _asked(self, number: int, _frame: object) -> None:
        self.signal = number

    def sleep_until(self, moment: float) -> None:
        """Sleep, but not for long after a signal: it must not cost the pod's last seconds."""
        while not self.signal and (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))


def asked_to_save(file: str) -> bool:
    """Whether somebody wants a checkpoint now. Taken away first: a wish that comes while saving counts anew."""
    try:
        os.unlink(file)  # noqa: PTH108
    except OSError:
        return False  # none, as almost always
    return True


def options() -> argparse.Namespace:
    env = os.environ.get
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 last step reached, 2 usage, 3 cannot resume, 143 saved on SIGTERM (130: SIGINT)",
    )
    parser.add_argument("--mode", choices=("sft", "rl"), default=env("RELAY_TRAIN_MODE") or "sft")
    parser.add_argument("--steps", type=int, default=env("CHAR_LM_STEPS") or "400", help="last step (400)")
    parser.add_argument("--seed", type=int, default=env("CHAR_LM_SEED") or "1", help="of the first weights (1)")
    parser.add_argument(
        "--save-every", type=int, default=env("CHAR_LM_SAVE_EVERY") or "50", help="steps between checkpoints (50)"
    )
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=env("CHAR_LM_STEP_SECONDS") or "0",
        help="shortest time for one step, to go slower than this machine can (0)",
    )
    chosen = parser.parse_args()
    if chosen.mode not in ("sft", "rl"):
        parser.error(f"RELAY_TRAIN_MODE={chosen.mode} is neither sft nor rl")
    if chosen.steps < 1 or chosen.save_every < 1 or not 0 <= chosen.step_seconds < 3600:
        parser.error("--steps and --save-every start at 1, --step-seconds at 0")
    return chosen


def main() -> int:
    chosen = options()
    stop = Stop()
    voice = Voice()
    try:
        text = corpus()
    except ImportError:
        print("this python3 lacks pydoc_data, whose text is learned; install its whole library", file=sys.stderr)
        return EXIT_NO_TEXT
    trainer = Trainer(chosen.mode, chosen.seed, text)
    resume_from = os.environ.get("RELAY_RESUME_FROM", "")
    staging = os.environ.get("RELAY_CKPT_STAGING_ROOT", "")
    save_file = os.environ.get("RELAY_SAVE_FILE", "")
    interval = float(os.environ.get("RELAY_CKPT_INTERVAL") or "inf")
    saved = -1
    if resume_from:
        try:
            trainer.load(Path(resume_from))
        except ResumeError as error:
            print(f"cannot resume from {resume_from}: {error}; not starting from step 0 instead", file=sys.stderr)
            return EXIT_CANNOT_RESUME
        saved = trainer.step
        voice.say(f"resumed from {resume_from} at step {trainer.step}")
    if not staging:
        voice.say("RELAY_CKPT_STAGING_ROOT is not set: nothing will be saved on the way")

    saved_at = time.monotonic()

    def save() -> None:
        nonlocal saved, saved_at
        saved_at = time.monotonic()
        if staging and saved != trainer.step:
            target = Path(staging) / f"step_{trainer.step:08d}"
            if target.exists():  # an earlier try at this step, in a folder used by hand
                shutil.rmtree(target)
            trainer.save(target)
            saved = trainer.step
            voice.say(f"saved step {saved}; it writes: {trainer.model.sample(saved)}")

    def rate(step: int) -> float:
        """Learning rate, falling to a tenth."""
        first = 0.04 if chosen.mode == "sft" else 0.01
        return first * (1 - 0.9 * min(step, int(chosen.steps)) / int(chosen.steps))

    if trainer.step >= chosen.steps:
        voice.step(trainer, chosen.steps, rate(trainer.step - 1))
    while trainer.step < chosen.steps:
        begun = time.monotonic()
        used = rate(trainer.step)
        trainer.advance(used)
        stop.sleep_until(begun + chosen.step_seconds)
        voice.step(trainer, chosen.steps, used)
        if stop.signal and trainer.step < chosen.steps:
            save()
            return 128 + stop.signal
        due = trainer.step % chosen.save_every == 0 or time.monotonic() - saved_at >= interval
        if asked_to_save(save_file) or due:
            save()
    save()
    output = os.environ.get("RELAY_OUTPUT_DIR", "")
    if output:
        Path(output).mkdir(parents=True, exist_ok=True)
        temporary = Path(output) / f".final.{os.getpid()}.tmp"
        temporary.write_bytes(pack(trainer.model.weights))
        temporary.replace(Path(output) / "final.bin")
    return 0


if __name__ == "__main__":
    sys.exit(main())
