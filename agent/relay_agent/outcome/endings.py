"""What an exit code, the last lines and the kernel's count of OOM kills say about how a trainer ended.

Exit codes alone say little: torchrun, DeepSpeed and accelerate exit with 1 for anything, a Python wrapper makes 247 of
signal 9, and 0 is also the code of a trainer that saved and left, or that had nothing to do. So the words count first,
where they are ones that a trainer ends with; then signals, its own and those that a wrapper names.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from relaytui.wire.text import clean

KEPT = 300
"""Lines of the end that are looked at: the ranks of a job all say that they fail, and a wrapper sums it up."""
KEPT_OF_A_LINE = 500


class Again(StrEnum):
    """Whether what ended so is worth another try."""

    NEVER = "never"  # it would end so again
    AT_ONCE = "retry"
    LATER = "retry with back-off"  # what was in the way may be gone by then
    TWICE = "retry at most 2"  # with back-off; reported at a line that has nothing to do with it, it may loop for ever


class Ending(NamedTuple):
    name: str
    words: str
    """For people: what became of the trainer."""
    again: Again


def _table(*rows: tuple[str, str, Again]) -> dict[str, Ending]:
    return {name: Ending(name, words, again) for name, words, again in rows}


ENDINGS = _table(
    ("completed", "it reached its last step", Again.NEVER),
    ("no_step", "it ended well, and nothing was seen of it", Again.NEVER),
    ("finished_early", "it ended well before its last step", Again.AT_ONCE),
    ("zero_steps", "it ended well without a step of its own", Again.NEVER),
    ("background", "it ended well, and what it left behind trained on", Again.NEVER),
    ("unpublished", "it ended well, and what it saved could not be published", Again.NEVER),
    ("preempted", "its pod was taken away", Again.NEVER),
    ("cut_off", "it was cut off from the commander", Again.NEVER),
    ("drained", "it was asked to stop", Again.NEVER),
    ("cancelled", "it was cancelled", Again.NEVER),
    ("superseded", "another attempt took over", Again.NEVER),
    ("not_started", "it could not be started", Again.NEVER),
    ("stalled", "it made no step any more", Again.AT_ONCE),
    ("diverged", "its loss went bad", Again.AT_ONCE),
    ("spoilt", "its loss went bad, and that ends the run", Again.NEVER),
    ("oom_killed", "killed for want of host memory", Again.LATER),
    ("out_of_memory", "out of host memory", Again.LATER),
    ("cuda_oom", "out of GPU memory", Again.TWICE),
    ("device_assert", "a device-side assert", Again.TWICE),
    ("cuda_error", "the GPU failed", Again.LATER),
    ("nccl_timeout", "the ranks waited for each other until NCCL gave up", Again.LATER),
    ("nccl_error", "NCCL failed", Again.LATER),
    ("bus_error", "a bus error (is /dev/shm full?)", Again.LATER),
    ("disk_full", "the disk is full", Again.LATER),
    ("import_error", "a module is missing or does not import", Again.NEVER),
    ("syntax_error", "its code does not parse", Again.NEVER),
    ("missing_file", "a file that it needs is not there", Again.NEVER),
    ("no_access", "it may not read what it needs", Again.NEVER),
    ("usage_error", "it does not take its arguments or configuration", Again.NEVER),
    ("not_found", "its command is not there or cannot be run", Again.NEVER),
    ("no_job", "its script started nothing", Again.NEVER),
    ("segfault", "a segmentation fault", Again.LATER),
    ("aborted", "it aborted", Again.LATER),
    ("killed", "killed by somebody else, or for want of memory that nothing here counted", Again.LATER),
    ("terminated", "somebody else stopped it", Again.AT_ONCE),
    ("interrupted", "interrupted by somebody else", Again.AT_ONCE),
    ("crash", "it failed", Again.LATER),
)
"""By name."""

STOPPED = frozenset(
    {"completed", "no_step", "preempted", "cut_off", "drained", "cancelled", "superseded", "not_started"}
)
"""No failings of a trainer: what happens to the run then is not a question of retries."""
CAN_BE_SET = tuple(name for name in ENDINGS if name not in STOPPED)
"""In RETRY_ON and NO_RETRY_ON."""

_BY_SIGNAL = {
    signal.SIGKILL: "killed",
    signal.SIGTERM: "terminated",
    signal.SIGINT: "interrupted",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus_error",
    signal.SIGSEGV: "segfault",
}
_USUAL = (6, 7, 9, 11, 15)
"""Signals that trainers die of: 255 is -1, and no hang-up."""
_BY_CODE = {126: "not_found", 127: "not_found", 81: "zero_steps", 82: "no_job"}
"""81 and 82 are the codes of the launchers for slime."""

WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("cuda_oom", r"(?:CUDA|HIP|XPU|MPS backend) out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
        ("cuda_oom", r"RESOURCE_EXHAUSTED: Out of memory|cuda runtime error \(2\) : out of memory"),
        ("cuda_oom", r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|\btorch\.(?:cuda\.)?OutOfMemoryError\b"),
        ("device_assert", r"device-side assert triggered|Assertion `.{1,300}` failed\.?\s*$"),
        ("bus_error", r"killed by signal: Bus error|insufficient shared memory \(shm\)|\bBus error\b"),
        ("bus_error", r"(?:/dev/shm|</?torch_).{0,200}No space left on device|No space left on device.{0,9}/dev/shm"),
        ("oom_killed", r"killed by signal: Killed|low on memory|Out of memory: Killed process|\boom[-_]kill"),
        ("oom_killed", r"ray\.exceptions\.OutOfMemoryError"),
        ("disk_full", r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]"),
        ("disk_full", r"PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+"),
        ("out_of_memory", r"^(?:\S+: )?(?:\w+\.)*_?(?:Array)?MemoryError\b|std::bad_alloc|Cannot allocate memory"),
        ("out_of_memory", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
        ("nccl_timeout", r"[Ww]atchdog caught collective operation timeout|collective operation timeout: WorkNCCL"),
        ("nccl_timeout", r"Heartbeat monitor timed out|Timed out waiting \d+ ?ms for (?:recv|send) operation"),
        ("nccl_timeout", r"DistStoreError: Timed out after \d+ seconds waiting for clients"),
        (
            "nccl_error",
            r"\bnccl(?:Internal|System|Remote|UnhandledCuda|InvalidUsage)Error\b|\bNCCL error\b",
        ),
        ("nccl_error", r"NCCL communicator was aborted"),
        ("cuda_error", r"(?:CUDA|HIP|cuDNN) error: |uncorrectable ECC error|Xid \(PCI|GPU has fallen off the bus"),
        ("cuda_error", r"No (?:CUDA|HIP) GPUs are available|Found no NVIDIA driver on your system"),
    )
)
"""Last words that tell the cause, the more telling ones first: one rank's assert is another one's NCCL abort."""

_PERMANENT: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("import_error", r"(?:ModuleNotFound|Import)Error\b|No module named "),
        ("syntax_error", r"(?:Syntax|Indentation|Tab)Error\b"),
        (
            "no_access",
            r"GatedRepoError\b|RepositoryNotFoundError\b|(?:401|403) Client Error",
        ),
        ("no_access", r"\bUsageError: api_key not configured"),
        ("missing_file", r"FileNotFoundError\b|can't open file .{1,300}No such file"),
        ("missing_file", r"is not a local folder and is not a valid model identifier"),
        ("usage_error", r"(?:hydra|omegaconf|yaml)\.[\w.]*(?:Error|Exception)\b|Could not override '"),
    )
)
"""What an exception says that comes again however often it is tried."""

_PREFIX = re.compile(
    r"^(?:\x1b\[[\d;]*m|\[?(?:rank|default|RANK )\d+\]?:?\s*|\([\w.:]{1,100} pid=[^()]{1,100}\)\s*"
    r"|\d{1,3}(?:\.\d{1,3}){3}: )+"
)
"""What torchrun, Ray and the DeepSpeed launcher put before a line."""
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit))(?:: |:?$)")
_WRAPPER = re.compile(r"ChildFailedError|CalledProcessError|SystemExit|SignalException|RayTaskError|Elastic\w*Error")
_SECOND = re.compile(r"DistBackendError|DistNetworkError|BrokenPipeError|[Cc]onnection (?:closed|reset) by peer")
"""What the other ranks say once one is gone."""
_USAGE = re.compile(r"^usage: |^Usage: |: error: |^Error: (?:No such option|Missing|Invalid value|Got unexpected)")
_INNER = re.compile(
    r"(?:exitcode\s*[:=]|return code\s*[:=]|exit code:?|exited with code)\s*(?P<code>-?\d{1,3})\b"
    r"|<Signals\.(?P<named>SIG[A-Z]+)|Signal (?P<number>\d{1,2}) \(SIG"
)
"""How a wrapper says how its ranks ended."""


class Told(NamedTuple):
    ending: Ending
    said: str
    """The line that told it, else the last words; may be empty."""


def tell(code: int, lines: Sequence[str], *, oom: bool = False, stepped: bool = False) -> Told:
    """How a trainer ended that exited with `code` (as a shell gives it, or as Python does) and not 0.

    `lines`: the last it printed. `oom`: the kernel killed something of it, or of its pod, for want of memory meanwhile.
    `stepped`: it made steps; then a module or file that is missing is not missing always.
    """
    lines = [_bare(line) for line in lines[-KEPT:]]
    last = next((line for line in reversed(lines) if line.strip()), "")
    raised = _raised(lines)
    if code in _BY_CODE and not stepped:
        return Told(ENDINGS[_BY_CODE[code]], last)
    if code == 2 and not stepped and _USAGE.search(last):
        return Told(ENDINGS["usage_error"], last)
    by = signal_of(code) or _inner_signal(lines)
    if oom and by == signal.SIGKILL:
        return Told(ENDINGS["oom_killed"], raised or last)
    for name, pattern in WORDS:
        said = next((line for line in reversed(lines) if pattern.search(line)), None)
        if said is not None:
            return Told(ENDINGS[name], said)
    if not stepped and by is None:
        permanent = _permanent(code, lines, raised)
        if permanent is not None:
            return permanent
    if oom:
        return Told(ENDINGS["oom_killed"], raised or last)
    name = _BY_SIGNAL.get(by, "crash") if by is not None else "crash"
    return Told(ENDINGS[name], raised or last)


def signal_of(code: int) -> signal.Signals | None:
    """-9, 137 (128 + 9) and 247 (256 - 9, what becomes of sys.exit(-9)) are all SIGKILL; None: it ended by itself."""
    number = -code if code < 0 else 256 - code if 256 - code in _USUAL else code - 128
    return signal.Signals(number) if 0 < number < 32 else None


def _bare(line: str) -> str:
    return _PREFIX.sub("", clean(line[:KEPT_OF_A_LINE], KEPT_OF_A_LINE))


def _raised(lines: Sequence[str]) -> str:
    """The exception that it ended with; what a wrapper or another rank made of it only where there is no other."""
    found = [line for line in lines if _EXCEPTION.match(line)]
    first_hand = [line for line in found if not _WRAPPER.search(line)]
    own = [line for line in first_hand if not _SECOND.search(line)]
    return (own or first_hand or found or [""])[-1]


def _permanent(code: int, lines: Sequence[str], raised: str) -> Told | None:
    said = raised or next((line for line in reversed(lines) if line.strip()), "")
    for name, pattern in _PERMANENT:
        if pattern.search(said):
            return Told(ENDINGS[name], said)
    if code == 2:  # argparse, click and their like
        usage = next((line for line in reversed(lines) if _USAGE.search(line)), None)
        if usage is not None:
            return Told(ENDINGS["usage_error"], usage)
    return None


def _inner_signal(lines: Sequence[str]) -> signal.Signals | None:
    """Of the rank that failed, by its wrapper's word. The others get SIGTERM from the wrapper then."""
    found: list[signal.Signals] = []
    for line in lines:
        for match in _INNER.finditer(line):
            number = match["code"] or match["number"]
            by = signal_of(-int(match["number"])) if match["number"] else signal_of(int(number)) if number else None
            if match["named"]:
                by = next((each for each in signal.Signals if each.name == match["named"]), None)
            if by is not None:
                found.append(by)
    return next((by for by in reversed(found) if by is not signal.SIGTERM), found[-1] if found else None)
