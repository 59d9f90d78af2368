"""The judge: sees the wire, the volume and the trainers from outside, and believes none of Relay's own records."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from relay_agent.checkpoints.unfinished import UNFINISHED
from tests.faults.sim import books
from tests.faults.sim.loop import Process
from tests.faults.sim.pod import PodHost
from tests.faults.sim.trainer import FILES, state_at

if TYPE_CHECKING:
    from tests.faults.sim.net import End
    from tests.faults.sim.trainer import SimTrainer
    from tests.faults.sim.world import World

NAME = re.compile(r"step_[0-9]{8,}(?:\.e[0-9]+(?:\.[0-9]+)?)?\Z")
CLAIM = re.compile(r"([0-9]{8,})\.json\Z")
MARGIN = 0.98
RESIDUE = 2.0
"""Seconds after a whole pod was frozen beyond its lease until its guardian must have acted."""


def _files(root: str) -> dict[str, bytes]:
    """What lies in a checkpoint, but for what Relay and the trainer's mark add."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = f"{folder}/{name}"
            if name not in ("manifest.json", "COMPLETE", UNFINISHED) and os.path.isfile(path):  # noqa: PTH113 - fast
                found[path[len(root) + 1 :]] = _bytes_of(path)
    return found


def _bytes_of(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - fast
        return file.read()


class Violation(Exception):  # noqa: N818 - it says what was found
    pass


@dataclass
class Saw:
    """A trainer, as somebody standing beside it sees it."""

    uid: int
    epoch: int
    host: PodHost
    base: str | None
    begun: float
    ended: float | None = None
    first: int = 0
    last: int = 0
    stop_reason: str = ""


@dataclass
class Commit:
    name: str
    epoch: int
    step: int
    uid: int
    at: float


@dataclass
class Held:
    """What is known on the wire of one grant. Times are true times."""

    epoch: int
    incarnation: str
    agent: Process
    granted: float
    safe_until: float
    known_until: float  # by what reached the agent
    released: bool = False
    overridden: bool = False
    renewed: bool = False  # an answer to a renewal has reached the agent
    stopped: bool = False  # an operator ordered something


@dataclass
class _Asked:
    kind: str
    sent: float
    epoch: int
    request_id: str = ""


@dataclass
class Stream:
    """Reports of one epoch's stream as they were sent, by whom, and what became of them."""

    sent: dict[int, bytes] = field(default_factory=dict)
    by: dict[int, Process] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    """Told to be lost on the pod's disk."""
    acked: int = 0

    def send(self, number: int, raw: bytes, process: Process) -> bool:
        """Whether the number means what it meant. One that never got out of an agent that is dead is free: no disk
        took its report, or none kept it, and who comes after asks the commander first how far it is."""
        free = number not in self.arrived and self.by.get(number) is not process
        if free or number not in self.sent:
            self.sent[number], self.by[number] = raw, process
        return self.sent[number] == raw


class Observer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        self.checks: Counter[str] = Counter()
        self.steps = 0
        self.trainers: dict[int, Saw] = {}
        self.whole: dict[tuple[int, int], dict[str, str]] = {}  # (uid, step) → sha256 by file
        self.line: list[Commit] = []
        self.passed: list[Commit] = []  # off its end by claims since which nothing was published
        self.committed: dict[str, Commit] = {}
        self.claims: dict[int, float] = {}
        self.held: dict[int, Held] = {}
        self.streams: dict[tuple[int, str], Stream] = {}
        self.printed: dict[int, int] = {}
        self.restored = False
        self._unheard: set[int] = set()  # epochs of which the commander has not heard since it was
        self.spool_failed = False
        self._incarnations: dict[Any, str] = {}
        self._asked: dict[tuple[Any, int], _Asked] = {}
        self._first_asked: dict[tuple[str, str], float] = {}

    def fail(self, rule: str, words: str) -> None:
        self.violations.append(f"{rule}: {words}")
        self.world.log(None, f"VIOLATION {rule}: {words}")

    def check(self, rule: str, holds: bool, words: str) -> None:
        self.checks[rule] += 1
        if not holds:
            self.fail(rule, words)

    @property
    def now(self) -> float:
        return self.world.loop.now

    # -- trainers ------------------------------------------------------------------------------------------------

    def trainer_starts(self, trainer: SimTrainer) -> int:
        uid = len(self.trainers) + 1
        host = trainer.process.host
        assert isinstance(host, PodHost)
        base = trainer.resume.name if trainer.resume else None
        tip = self.line[-1].name if self.line else None
        self.check("resume", base == tip, f"epoch {trainer.epoch} begins from {base}, the newest of its line is {tip}")
        for other in self.trainers.values():
            if other.ended is None and other.host.up:
                self._beside(other, trainer.epoch)
        held = self.held.get(trainer.epoch)
        self.check(
            "confirmed", held is None or held.renewed, f"epoch {trainer.epoch} trains before it was renewed once"
        )
        self.trainers[uid] = Saw(uid, trainer.epoch, host, base, self.now)
        self.world.log(trainer.process, f"trainer {uid} of epoch {trainer.epoch} begins from {base}")
        return uid

    def _beside(self, other: Saw, epoch: int) -> None:
        """A trainer starts while another one lives: only where the other's time ran out, or somebody said so."""
        held = self.held.get(other.epoch)
        frozen = other.host.frozen or self.now - other.host.thawed_at <= RESIDUE
        ran_out = held is None or held.overridden or held.safe_until <= self.now
        excused = ran_out and (self.world.plan.on_lease_loss == "continue" or frozen)
        excused |= held is not None and held.overridden
        self.check(
            "one trainer", excused, f"the trainer of epoch {epoch} begins while that of epoch {other.epoch} lives"
        )

    def promised(self, trainer: SimTrainer, until: float) -> None:
        """A guardian is told by when its trainer is dead: never later than anybody else may have the run, where that is
        to end it. Else it is only the end of what an order to stop gives it."""
        held = self.held.get(trainer.epoch)
        self.check(
            "dead in time",
            held is None or self.world.plan.on_lease_loss != "stop" or until <= held.safe_until + 0.001,
            f"the trainer of epoch {trainer.epoch} is to be dead by {until:.2f}, its lease ends before",
        )

    def resumed_step(self, trainer: SimTrainer, folder: Path | None) -> int:
        if folder is None:
            return 0
        commit = self.committed.get(folder.name)
        if commit is None:
            self.fail("resume", f"epoch {trainer.epoch} begins from {folder}, which nobody published")
            return 0
        self._verify(commit, str(folder))
        self.trainers[trainer.uid].first = self.trainers[trainer.uid].last = commit.step
        return commit.step

    def trainer_ends(self, trainer: SimTrainer) -> None:
        saw = self.trainers[trainer.uid]
        if saw.ended is None:
            saw.ended = self.now
            self.world.log(trainer.process, f"trainer {saw.uid} of epoch {saw.epoch} ends at step {saw.last}")

    def stopping(self, trainer: SimTrainer, why: str) -> None:
        """Its guardian stops it; on an agent's order only for a reason that can be seen from outside."""
        self.world.log(trainer.process, f"is stopped ({why})")
        host, held, plan = trainer.process.host, self.held.get(trainer.epoch), self.world.plan
        assert isinstance(host, PodHost)
        if why != "order":
            self.check("no needless stop", why == "orphan" or plan.on_lease_loss == "stop", f"{why} under no such rule")
            return
        reasons = (
            host.told_to_stop,
            held is None or held.stopped or held.overridden or held.released,
            any(epoch > trainer.epoch for epoch in (*self.claims, *self.held)),
            plan.on_lease_loss == "stop" and held is not None and held.known_until - plan.grace - 2.5 <= self.now,
            self.restored,
        )
        right = any(reasons) or self._granted_untold(trainer.epoch)
        self.check("no needless stop", right, f"the trainer of epoch {trainer.epoch} was stopped for nothing")

    def _granted_untold(self, epoch: int) -> bool:
        """Whether the books have a later one: granted by a commander that died before it could say so."""
        with self.world.commander.books() as db:
            (highest,) = db.execute("SELECT coalesce(max(epoch), 0) FROM attempts").fetchone()
        return bool(highest > epoch)

    def made_step(self, trainer: SimTrainer) -> None:
        self.steps += 1
        self.trainers[trainer.uid].last = trainer.step
        self.printed[trainer.epoch] = self.printed.get(trainer.epoch, 0) + 1

    def saved(self, trainer: SimTrainer, content: dict[str, bytes]) -> None:
        self.whole[trainer.uid, trainer.step] = {
            name: hashlib.sha256(data).hexdigest() for name, data in content.items()
        }

    # -- the volume ----------------------------------------------------------------------------------------------

    def moved(self, process: Process, source: str, target: str, *, linked: bool) -> None:
        parent, _, name = target.rpartition("/")
        above, _, folder = parent.rpartition("/")
        before, _, old = source.rpartition("/")
        ckpt = self.world.ckpt
        if linked and folder == "claims" and (match := CLAIM.match(name)):
            self._claimed(int(match[1]), Path(target))
        elif parent == ckpt and NAME.match(name):
            self._published(name, target)
        elif name == "manifest.json" and above == ckpt and NAME.match(folder):
            self._published(folder, parent)
        elif before == ckpt and NAME.match(old):
            self._removed(old, folder)

    def unlinked(self, manifest: str) -> None:
        """Where folders are not renamed in one step, a checkpoint ends with its manifest."""
        above, _, folder = manifest.removesuffix("/manifest.json").rpartition("/")
        if above == self.world.ckpt:
            self._removed(folder, "nowhere")

    def _claimed(self, epoch: int, path: Path) -> None:
        self.check("epochs grow", epoch > max(self.claims, default=0), f"epoch {epoch} is claimed after {self.claims}")
        base = orjson.loads(path.read_bytes())["base"]
        self.claims[epoch] = self.now
        if self.passed and base == self.passed[-1].name:
            # Who passed over it saved nothing and has left no history: the commander may know it to be the newest.
            self.line += self.passed
            self.passed = []
        names = [commit.name for commit in self.line]
        granted = self.held[epoch].granted if epoch in self.held else self.now
        keep = names.index(base) + 1 if base in names else 0
        self.check("resume", base is None or keep > 0, f"epoch {epoch} claims on {base}, which is not on the line")
        for commit in self.line[keep:]:
            self.check(
                "resume", commit.at >= granted - 0.001, f"epoch {epoch} claims on {base} and passes over {commit.name}"
            )
        self.passed = self.line[keep:] + self.passed
        del self.line[keep:]
        self.world.log(None, f"epoch {epoch} claims the run, from {base}")

    def _published(self, name: str, path: str) -> None:
        manifest = orjson.loads(_bytes_of(f"{path}/manifest.json"))
        uid = int(_bytes_of(f"{path}/trainer.txt"))
        commit = Commit(name, manifest["epoch"], manifest["step"], uid, self.now)
        self.committed[commit.name] = commit
        highest = max(self.claims, default=0)
        self.check(
            "one line",
            commit.epoch == highest,
            f"{commit.name} of epoch {commit.epoch} is published after epoch {highest} claimed the run",
        )
        self._verify(commit, path)
        saw = self.trainers[uid]
        before = self.line[-1] if self.line else None
        follows = before is None or before.uid == uid or before.name == saw.base
        self.check("one history", follows, f"{commit.name} of trainer {uid} does not follow from {before}")
        self.line.append(commit)
        self.passed = []
        self.world.log(None, f"{commit.name} of epoch {commit.epoch} is published")

    def _removed(self, name: str, where: str) -> None:
        self.passed = [commit for commit in self.passed if commit.name != name]
        at = [commit.name for commit in self.line]
        if name in at:
            kept = [each for each in at if each != name]
            self.check("two are kept", len(kept) >= 2, f"{name} goes to {where}, and only {kept} stay")
            self.check("newest is kept", name != at[-1], f"{name}, the newest, goes to {where}")
            del self.line[at.index(name)]

    def _verify(self, commit: Commit, path: str) -> None:
        expected = self.whole.get((commit.uid, commit.step))
        there = _files(path)
        found = {name: hashlib.sha256(data).hexdigest() for name, data in there.items()}
        self.check("whole", found == expected, f"{commit.name} is not what trainer {commit.uid} saved: {sorted(found)}")
        state = state_at(self.world.plan.run_id, commit.step).encode()
        same = all(there[name].startswith(state) for name in FILES if name in there)
        self.check("same bytes", same, f"{commit.name} is not what an undisturbed run would have saved")

    # -- the wire ------------------------------------------------------------------------------------------------

    def heard(self, end: End, data: bytes) -> None:
        """A frame as it leaves one side."""
        message = orjson.loads(data)
        kind = message["type"]
        if isinstance(end.process.host, PodHost):
            self._from_agent(end, kind, message, data)
        elif kind in ("granted", "renewed"):
            self._answered(end.peer, kind, message)
        elif kind == "ack":
            stream = self.streams.setdefault((message["epoch"], message["stream"]), Stream())
            stream.acked = max(stream.acked, message["seq"])
        elif kind == "problem" and message["code"] == "internal" and "disk is full" not in message["message"]:
            self.fail("internal", f"the commander failed at something: {message}")

    def taken(self, end: End, data: bytes) -> None:
        """A frame as it reaches the other side."""
        if not self.restored and not isinstance(end.process.host, PodHost) and data.startswith(b'{"type":"reports"'):
            message = orjson.loads(data)
            stream = self.streams[message["epoch"], message["stream"]]
            stream.arrived.update(range(message["first_seq"], message["first_seq"] + len(message["reports"])))
        if isinstance(end.process.host, PodHost) and (b'"type":"renewed"' in data or b'"type":"granted"' in data):
            message = orjson.loads(data)
            asked, held = self._asked.get((end, message["request"])), self.held.get(message["epoch"])
            if asked is not None and held is not None:
                held.renewed |= message["type"] == "renewed"
                safe = asked.sent + MARGIN * message["lease_seconds"] / end.process.host.rate
                held.known_until = max(held.known_until, safe)

    def _from_agent(self, end: End, kind: str, message: dict[str, Any], data: bytes) -> None:
        if kind == "hello":
            self._incarnations[end] = message["incarnation"]
        elif kind in ("acquire", "renew", "register"):
            asked = _Asked(kind, self.now, message.get("epoch", 0), message.get("request_id", ""))
            if kind == "acquire":
                key = self._incarnations[end], asked.request_id
                asked.sent = self._first_asked.setdefault(key, self.now)
            self._asked[end, message["request"]] = asked
        elif kind == "reports":
            stream = self.streams.setdefault((message["epoch"], message["stream"]), Stream())
            for number, report in enumerate(message["reports"], message["first_seq"]):
                raw = orjson.dumps(report)
                self.checks["one meaning a number"] += 1
                if not stream.send(number, raw, end.process) and not self._unstored(message, number, end.process):
                    words = f"report {number} of epoch {message['epoch']} ({message['stream']}) was another one before"
                    self.fail("one meaning a number", words)
                if report["type"] == "ended" and message["epoch"] in self.held:
                    self._released(message["epoch"])

        elif kind == "skip":
            stream = self.streams.setdefault((message["epoch"], message["stream"]), Stream())
            stream.given_up.update(range(message["first_seq"], message["last_seq"] + 1))

    def _unstored(self, message: dict[str, Any], number: int, process: Process) -> bool:
        """Whether the report that had its number came from an agent that is dead, and into no book: a commander that
        froze drops what waits in a connection once the next agent has taken that over."""
        epoch, name = message["epoch"], message["stream"]
        stream = self.streams[epoch, name]
        if stream.by[number] is process:
            return False
        with self.world.commander.books() as db:
            table = "main.streams" if name == "state" else "lines.streams"
            (last,) = db.execute(f"SELECT coalesce(max(last_seq), 0) FROM {table} WHERE epoch = ?", (epoch,)).fetchone()
        stream.arrived.discard(number)
        index = number - message["first_seq"]
        return bool(last < number) and stream.send(number, orjson.dumps(message["reports"][index]), process)

    def _lives(self, epoch: int) -> bool:
        """Whether a trainer of that epoch does."""
        return any(saw.epoch == epoch and saw.ended is None and saw.host.up for saw in self.trainers.values())

    def _dead(self, held: Held) -> bool:
        return not held.agent.host.up or not (held.agent.alive or self._lives(held.epoch))

    def _released(self, epoch: int) -> None:
        self.held[epoch].released = True
        if self._lives(epoch):
            self.fail("ended is dead", f"epoch {epoch} says that it has ended, and its trainer lives")

    def _answered(self, end: End, kind: str, message: dict[str, Any]) -> None:
        asked = self._asked.get((end, message["request"]))
        if asked is None:
            self.fail("answers", f"an answer to nothing: {message}")
            return
        safe = asked.sent + MARGIN * message["lease_seconds"] / end.process.host.rate
        epoch, incarnation = message["epoch"], self._incarnations[end]
        if kind == "granted" and epoch not in self.held:
            self.check(
                "epochs grow",
                epoch > max(self.held, default=0),
                f"epoch {epoch} is granted after {max(self.held, default=0)}",
            )
            self.checks["one holder"] += len(self.held)
            for other in self.held.values():
                free = other.released or other.overridden or other.incarnation == incarnation
                if not free and other.safe_until > self.now:
                    words = f"epoch {epoch} is granted, {other.epoch} is safe for {other.safe_until - self.now:.2f} s"
                    self.fail("one holder", words)
                if other.incarnation == incarnation and not other.released:
                    self._released(other.epoch)  # who asks anew has given up what it, or a dead agent it follows, held
            self.held[epoch] = Held(epoch, incarnation, end.process, self.now, safe, safe)
            self.world.log(end.process, f"epoch {epoch} is granted")
        elif epoch in self.held:
            # Books that were restored may know nothing of one that has ended since, or died, or has not come yet; the
            # volume fences who comes back.
            later = [
                held
                for held in self.held.values()
                if held.epoch > epoch and held.granted < asked.sent
                and not (self.restored and (held.epoch in self._unheard or held.released or self._dead(held)))
            ]  # fmt: skip
            self.check("one holder", not later, f"epoch {epoch} is renewed although {later} was granted before")
            self._unheard.discard(epoch)
            self.held[epoch].agent = end.process  # who took its trainer over, maybe
            self.held[epoch].safe_until = max(self.held[epoch].safe_until, safe)

    def judge_books(self) -> None:
        """While they lie still."""
        with self.world.commander.books() as db:
            books.judge_acks(self, db)

    def judge_end(self) -> None:
        with self.world.commander.books() as db:
            books.judge_acks(self, db)
            books.judge_telemetry(self, db)
            books.judge_events(self, db)
        for commit in self.line:
            self._verify(commit, f"{self.world.ckpt}/{commit.name}")
        if self.world.finished:
            tip = self.line[-1].step if self.line else 0
            self.check("the end is saved", tip == self.world.plan.total, f"completed, and the newest is step {tip}")
            worked = self.steps >= self.world.plan.total
            self.check("throughput", worked, f"{self.steps} steps of {self.world.plan.total}")

    # -- what the world does -------------------------------------------------------------------------------------

    def restore(self) -> None:
        """The commander goes back: what it forgot never arrived, and it refuses reports of a lease that it does not
        know until that is registered again."""
        self.restored = True
        self._unheard = set(self.held)
        for stream in self.streams.values():
            stream.arrived.clear()

    def overridden(self, epoch: int) -> None:
        """An operator said that the pods of all up to this epoch are gone, true or not."""
        for held in self.held.values():
            if held.epoch <= epoch:
                held.overridden = True

    def ordered(self, epoch: int) -> None:
        for held in self.held.values():
            if held.epoch <= epoch:
                held.stopped = True
