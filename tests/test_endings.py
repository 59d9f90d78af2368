"""How a trainer ended, told from its exit code, its last lines and the kernel's count of OOM kills."""

from __future__ import annotations

import signal

import pytest

from relay_agent.outcome.endings import CAN_BE_SET, ENDINGS, KEPT, STOPPED, Again, signal_of, tell
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Ended, given_back, judge
from relay_agent.output.progress import Progress

STEPS = [f"step {n}/100 loss 1.5" for n in range(1, 40)]


def traceback(*last: str, ranks: tuple[str, ...] = ("",)) -> list[str]:
    lines = ["Traceback (most recent call last):", '  File "/x/train.py", line 7, in <module>', "    main()", *last]
    return [rank + line for rank in ranks for line in lines]


def torchrun(exitcode: str, words: str = "To enable traceback see: https://pytorch.org/docs") -> list[str]:
    """What torchrun prints when a rank fails, whichever way; it exits with 1."""
    return [
        f"E0301 10:00:09.123 77 torch/api.py:984] failed (exitcode: {exitcode}) local_rank: 0 (pid: 5121) of py",
        *traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
        "============================================================",
        "train.py FAILED",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 0 (local_rank: 0)",
        f"  exitcode  : {exitcode} (pid: 5121)",
        f"  traceback : {words}",
        "============================================================",
    ]


CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
)
ASSERT = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1255: indexSelectSmallIndex: block: [0,0,0], thread: [0,0,0]"
    " Assertion `srcIndex < srcSelectDimSize` failed."
)
WATCHDOG = (
    "[rank1]:[E301 10:30:00.123 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600026 milliseconds"
)
TERMINATE = "terminate called after throwing an instance of 'c10::DistBackendError'"
RAY_OOM = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    " Memory on the node (IP: 10.0.0.7) was 60.9GB / 64.0GB (0.95)"
)
RAY = "(MegatronTrainRayActor pid=5121, ip=10.0.0.7) "
SHM = (
    "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's"
    " workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    ("code", "lines", "name"),
    [
        # by signal, in each form that it comes in
        (137, STEPS, "killed"),
        (-9, STEPS, "killed"),
        (247, STEPS, "killed"),
        (143, STEPS, "terminated"),
        (-15, STEPS, "terminated"),
        (241, STEPS, "terminated"),
        (134, STEPS, "aborted"),
        (-6, STEPS, "aborted"),
        (250, STEPS, "aborted"),
        (135, STEPS, "bus_error"),
        (-7, STEPS, "bus_error"),
        (139, STEPS, "segfault"),
        (-11, STEPS, "segfault"),
        (130, STEPS, "interrupted"),
        (136, STEPS, "crash"),
        (1, STEPS, "crash"),
        (7, [], "crash"),
        (255, [], "crash"),
        (200, ["nothing of this"], "crash"),
        # the GPU
        (1, [*STEPS, *traceback(CUDA_OOM)], "cuda_oom"),
        (1, traceback("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB"), "cuda_oom"),
        (1, traceback("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "cuda_oom"),
        (1, ["jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying"], "cuda_oom"),
        (1, [*traceback(CUDA_OOM, ranks=("[rank0]: ",)), *torchrun("1")], "cuda_oom"),
        (1, [RAY + line for line in traceback(CUDA_OOM)], "cuda_oom"),
        (1, [*[ASSERT] * 40, *traceback("RuntimeError: CUDA error: device-side assert triggered")], "device_assert"),
        (134, [*[ASSERT] * 40, WATCHDOG, TERMINATE], "device_assert"),
        (1, traceback("RuntimeError: CUDA error: unspecified launch failure"), "cuda_error"),
        (1, traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered"), "cuda_error"),
        (134, [*STEPS, WATCHDOG, TERMINATE], "nccl_timeout"),
        (1, [*STEPS, WATCHDOG, TERMINATE, *torchrun("-6", "Signal 6 (SIGABRT) received by PID 5121")], "nccl_timeout"),
        (1, traceback("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691"), "nccl_error"),
        (1, ["RuntimeError: ncclSystemError: System call (e.g. socket, malloc) or external library"], "nccl_error"),
        (1, traceback("RuntimeError: [../gloo/] Timed out waiting 1800000ms for recv operation"), "nccl_timeout"),
        # memory and disks of the host
        (1, traceback("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed."), "oom_killed"),
        (1, [RAY + RAY_OOM], "oom_killed"),
        (1, traceback("MemoryError"), "out_of_memory"),
        (1, traceback("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 TiB"), "out_of_memory"),
        (134, ["terminate called after throwing an instance of 'std::bad_alloc'"], "out_of_memory"),
        (1, traceback("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (1, traceback(SHM), "bus_error"),
        (1, ["RuntimeError: unable to write to file </torch_77_0>: No space left on device (28)"], "bus_error"),
        (1, traceback("OSError: [Errno 28] No space left on device: '/dev/shm/x'"), "bus_error"),
        (1, traceback("OSError: [Errno 28] No space left on device"), "disk_full"),
        (1, traceback("OSError: [Errno 122] Disk quota exceeded: 'out/model.pt'"), "disk_full"),
        (134, ["what():  [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0", TERMINATE], "disk_full"),
        # what comes again however often it is tried
        (1, traceback("ModuleNotFoundError: No module named 'flash_attn'"), "import_error"),
        (1, traceback("ImportError: libcudart.so.12: cannot open shared object file"), "import_error"),
        (1, ["/usr/bin/python3: No module named accelerate.commands"], "import_error"),
        (1, ['  File "train.py", line 3', "    def f(:", "          ^", "SyntaxError: invalid syntax"], "syntax_error"),
        (1, traceback("FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'"), "missing_file"),
        (2, ["python3: can't open file '/x/train.py': [Errno 2] No such file or directory"], "missing_file"),
        (1, traceback("OSError: me/model is not a local folder and is not a valid model identifier"), "missing_file"),
        (1, traceback("huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access"), "no_access"),
        (2, ["usage: train.py [-h] --data DATA", "train.py: error: unrecognized arguments: --steps"], "usage_error"),
        (2, ["train.py: error: unrecognized arguments: --if 'CUDA out of memory'"], "usage_error"),
        (2, ["Usage: train [OPTIONS]", "Error: No such option: --lr"], "usage_error"),
        (1, traceback("omegaconf.errors.ConfigKeyError: Key 'lr' is not in struct"), "usage_error"),
        (127, ["bash: line 1: accelerate: command not found"], "not_found"),
        (126, ["bash: line 1: ./train.sh: Permission denied"], "not_found"),
        (81, ["nothing was trained"], "zero_steps"),
        (82, [], "no_job"),
        (1, [*traceback("ImportError: libnccl.so.2", ranks=("[rank0]: ",)), *torchrun("1")], "import_error"),
        (1, [*traceback("FileNotFoundError: x"), *traceback("subprocess.CalledProcessError: 1")], "missing_file"),
        # a wrapper's 1 is not how its ranks ended
        (1, [*STEPS, *torchrun("-9", "Signal 9 (SIGKILL) received by PID 5121")], "killed"),
        (1, [*STEPS, *torchrun("-11", "Signal 11 (SIGSEGV) received by PID 5121")], "segfault"),
        (1, [*STEPS, *torchrun("-7", "Signal 7 (SIGBUS) received by PID 5121")], "bus_error"),
        (1, ["10.0.0.7: [launch.py:325:sigkill_handler] ['python'] exits with return code = -9"], "killed"),
        (1, traceback("subprocess.CalledProcessError: Command '['t']' died with <Signals.SIGKILL: 9>."), "killed"),
        (1, ["(exitcode: -15) of 1", "(exitcode: -11) of 0", "(exitcode: -15) of 2"], "segfault"),
        (1, [*STEPS, *torchrun("1")], "crash"),
        # what only mentions such words
        (1, ["WARNING ImportError: flash_attn not there, going on", *STEPS, *traceback("ValueError: x")], "crash"),
        (1, [*STEPS, "step 40 loss 1 text: the bus erred and the disk was full of space", "bye"], "crash"),
        (137, traceback("ModuleNotFoundError: No module named 'x'"), "killed"),
    ],
)  # fmt: skip
def test_an_ending_has_a_name(code: int, lines: list[str], name: str) -> None:
    assert tell(code, lines).ending.name == name


@pytest.mark.parametrize(
    ("last", "name"),
    [
        ("torch.OutOfMemoryError: Tried to allocate more than 16 GiB", "cuda_oom"),
        ("RuntimeError: HIP error: device-side assert triggered", "device_assert"),
        ("RuntimeError: HIP error: an illegal memory access was encountered", "cuda_error"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuda_error"),
        ("RuntimeError: No CUDA GPUs are available", "cuda_error"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check", "cuda_error"),
        ("RuntimeError: NCCL communicator was aborted on rank 1.", "nccl_error"),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.", "nccl_timeout"),
        ("wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login()", "no_access"),
        ("Error: No such option: --foo", "usage_error"),
    ],
)
@pytest.mark.parametrize("ranks", [(), ("[rank0]: ",)])
def test_what_gpus_and_libraries_say_when_they_cannot_go_on(last: str, name: str, ranks: tuple[str, ...]) -> None:
    code = 2 if name == "usage_error" else 1
    assert tell(code, traceback(last, ranks=ranks) if ranks else traceback(last)).ending.name == name


@pytest.mark.parametrize(
    ("code", "lines", "name"),
    [
        (137, STEPS, "oom_killed"),
        (247, STEPS, "oom_killed"),
        (1, STEPS, "oom_killed"),
        (1, [*STEPS, *torchrun("-9")], "oom_killed"),
        (137, [*STEPS, *traceback("ConnectionResetError: [Errno 104] Connection reset by peer")], "oom_killed"),
        # The count may be about something else of the pod: what the trainer says of itself is nearer.
        (1, traceback(CUDA_OOM), "cuda_oom"),
        (1, traceback("ModuleNotFoundError: No module named 'x'"), "import_error"),
        (139, STEPS, "oom_killed"),
    ],
)
def test_the_kernels_count_of_oom_kills_counts(code: int, lines: list[str], name: str) -> None:
    assert tell(code, lines, oom=True).ending.name == name


@pytest.mark.parametrize("last", ["FileNotFoundError: shard 7", "ImportError: cannot import name 'x'"])
def test_what_is_missing_after_many_steps_may_be_there_again(last: str) -> None:
    told = tell(1, [*STEPS, *traceback(last)], stepped=True)
    assert (told.ending.name, told.said) == ("crash", last)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ""),
        (["", "bye", "  "], "bye"),
        ([*traceback("ValueError: bad"), *torchrun("1")], "ValueError: bad"),
        (
            [*traceback("KeyError: 'a'", ranks=("[rank0]: ",)), *traceback("BrokenPipeError", ranks=("[rank1]: ",))],
            "KeyError: 'a'",
        ),
        ([RAY + line for line in traceback("AssertionError: no rollout")], "AssertionError: no rollout"),
        (["\x1b[31m10.0.0.7: ValueError: red"], "ValueError: red"),
        (torchrun("1"), "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
    ],
)  # fmt: skip
def test_the_words_that_people_need_are_the_trainers_own(lines: list[str], said: str) -> None:
    assert tell(1, lines).said.strip() == said


def test_a_code_is_a_signal_in_three_forms() -> None:
    for number in (6, 7, 9, 11, 15):
        assert signal_of(-number) is signal_of(128 + number) is signal_of(256 - number) is signal.Signals(number)
    assert [signal_of(code) for code in (0, 1, 127, 128, 192, 200, 255, 10**9, -99)] == [None] * 9


def test_whatever_it_prints_there_is_an_ending() -> None:
    """Only the last lines count, and no line is too long or too strange."""
    hostile = [
        "\x00" * 5000,
        "Error" * 2000,
        "a." * 4000 + "Error: x",
        "exitcode: -999999999999",
        "Signal 99 (SIG",
        "(",
    ]
    assert tell(1, hostile * 60).ending.name == "crash"
    assert tell(1, [traceback(CUDA_OOM)[-1], *["x"] * KEPT]).ending.name == "crash"
    assert tell(10**9, []).ending.name == tell(-(10**9), []).ending.name == "crash"


def test_what_can_be_set_is_what_a_trainer_can_do() -> None:
    assert not STOPPED & set(CAN_BE_SET)
    assert {name for name, ending in ENDINGS.items() if ending.again is Again.TWICE} == {"cuda_oom", "device_assert"}
    permanent = {name for name in CAN_BE_SET if ENDINGS[name].again is Again.NEVER}
    assert {"import_error", "syntax_error", "missing_file", "usage_error", "zero_steps", "not_found"} <= permanent
    assert all(name == ending.name and ending.words for name, ending in ENDINGS.items())


def seen(*lines: str, start: int = 0, total: int | None = None) -> Progress:
    progress = Progress(start, total)
    for n, line in enumerate(lines):
        progress.see(line, float(n))
    return progress


@pytest.mark.parametrize(
    ("progress", "newest", "prints", "outcome", "ending", "words"),
    [
        (seen("step 10/10 loss 1"), None, True, "completed", "completed", "reached step 10 of 10"),
        (seen("step 4/10 loss 1"), None, True, "failed", "finished_early", "exited 0 at step 4 of 10"),
        # saved on somebody's SIGTERM and left with 0
        (seen("step 14/200 loss 1", start=10), 14, True, "failed", "finished_early", "exited 0 at step 14 of 200"),
        # a resume that had nothing to do, or did nothing
        (seen(start=19), None, True, "failed", "zero_steps", "where it resumed: it ran nothing"),
        (seen(start=19), None, False, "completed", "zero_steps", "exited 0 without a step after step 19"),
        (seen(start=19, total=100), None, False, "failed", "zero_steps", "at step 19 of 100, where it resumed"),
        (seen(start=100, total=100), None, True, "completed", "zero_steps", "reached step 100 of 100"),
        (seen(start=19), 29, True, "completed", "completed", "reached step 29"),
        # a beginning of which nothing was seen: trained in words that nobody here knows, or nothing done
        (seen(), None, False, "completed", "no_step", "exited 0 without a step seen, and no checkpoint came of it"),
        (seen(), 10, False, "completed", "completed", "reached step 10"),
        (seen(total=10), None, False, "failed", "finished_early", "exited 0 at step 0 of 10"),
    ],
)
def test_exit_0_is_not_finished(
    progress: Progress, newest: int | None, prints: bool, outcome: str, ending: str, words: str
) -> None:
    verdict = judge(Ended(0, Stop(), progress, newest, "", prints=prints))
    assert (verdict.outcome, verdict.ending) == (outcome, ending)
    assert words in verdict.message


def test_who_completed_the_run_before_has_nothing_left_to_do_where_it_did() -> None:
    """A run that is queued again, for its last upload, say."""
    verdict = judge(Ended(0, Stop(), seen(start=19), None, "", prints=True, completed=19))
    assert (verdict.outcome, verdict.ending, verdict.step) == ("completed", "zero_steps", 19)
    assert verdict.message == "exited 0 without a step after step 19, where it resumed and the run was completed before"
    for start, completed, total in ((19, 18, None), (19, -1, None), (19, 19, 100)):
        verdict = judge(Ended(0, Stop(), seen(start=start, total=total), None, "", prints=True, completed=completed))
        assert (verdict.outcome, verdict.ending) == ("failed", "zero_steps"), "more is wanted of it by now"


@pytest.mark.parametrize(
    ("progress", "newest", "before", "completed", "outcome"),
    [
        (seen(start=100), None, 120, -1, "failed"),
        (seen(start=100), 100, 120, -1, "failed"),  # it saved what it had begun with once more
        (seen(start=100), 100, 100, -1, "completed"),
        (seen(start=100), None, 120, 100, "completed"),  # this command had come to its end from there
        (seen(start=100), 110, 120, -1, "completed"),  # in words that nobody here knows
        (seen("step 101 loss 1", start=100), None, 120, -1, "completed"),
        (seen(start=0), None, 120, -1, "completed"),
    ],
)
def test_a_resume_that_makes_no_step_is_no_end_where_an_attempt_before_it_had_come_further(
    progress: Progress, newest: int | None, before: int, completed: int, outcome: str
) -> None:
    """It was completed, the steps after its checkpoint lost for good."""
    verdict = judge(Ended(0, Stop(), progress, newest, "", before=before, completed=completed))
    assert verdict.outcome == outcome
    if outcome == "failed":
        assert verdict.ending == "zero_steps"
        assert "without a step after step 100, where it resumed, and the run had come to step 120" in verdict.message
        assert "TARGET_STEPS" in verdict.message


@pytest.mark.parametrize(
    ("progress", "newest", "left", "trained_on", "ending"),
    [
        (seen("step 3/9 loss 1"), None, 1, True, "background"),
        (seen("step 3 loss 1"), 3, 1, True, "background"),
        (seen(), None, 1, False, "background"),
        (seen("step 3 loss 1"), None, 1, False, "completed"),  # what shows its curves, say
        (seen("step 9/9 loss 1"), 9, 1, True, "completed"),
        (seen(), 3, 1, False, "completed"),
        (seen(), None, 0, False, "no_step"),
    ],
)
def test_a_command_that_trains_in_the_background_is_not_over_by_its_exit(
    progress: Progress, newest: int | None, left: int, trained_on: bool, ending: str
) -> None:
    verdict = judge(Ended(0, Stop(), progress, newest, left=left, trained_on=trained_on))
    assert verdict.ending == ending
    assert (verdict.outcome, verdict.exit_code) == (("failed", 1) if ending == "background" else ("completed", 0))


def test_every_ending_names_the_steps_that_are_lost_in_the_same_words() -> None:
    stop, progress = Stop(), seen("step 31/40 loss 1", "step 35/40 loss 1", start=20)
    lost = "; its newest checkpoint is of step 30; steps 31-35 are in none"
    hint = "; if that was all there was to do, TARGET_STEPS: 35 says so"
    assert judge(Ended(0, stop, progress, 30, "")).message == f"exited 0 at step 35 of 40{lost}{hint}"
    assert judge(Ended(0, stop, progress, 30, "", "1 checkpoint could not be published", kept=True)).message == (
        f"exited 0 at step 35 of 40, and 1 checkpoint could not be published{hint}"
    ), "it may be kept for the next attempt"
    assert judge(Ended(1, stop, progress, 30, "")).message.endswith(lost)
    stop.again("stalled in training for 3 h", "stalled")
    assert judge(Ended(0, stop, progress, 30, "")).message == f"stalled in training for 3 h{lost}"
    assert judge(Ended(0, stop, progress, 35, "")).message == "stalled in training for 3 h"
    assert judge(Ended(0, stop, progress, None, "", "1 checkpoint could not be published")).message == (
        "stalled in training for 3 h, but 1 checkpoint could not be published"
        "; its newest checkpoint is of step 20; steps 21-35 are in none, unless the next attempt finds them whole"
    )


@pytest.mark.parametrize("ending", ["diverged", "spoilt"])
def test_of_steps_whose_loss_was_bad_none_is_called_lost(ending: str) -> None:
    """Where it goes on from then is said with what is wrong."""
    stop = Stop()
    stop.again("the loss is diverging since step 9: going back to step_00000005", ending, healthy=ending == "diverged")
    assert judge(Ended(143, stop, seen("step 35/40 loss 9"), 30, "")).message == stop.message


@pytest.mark.parametrize(
    ("why", "outcome", "ending"),
    [
        (Why.SIGNAL, "preempted", "preempted"),
        (Why.CUT_OFF, "preempted", "cut_off"),
        (Why.DRAIN, "drained", "drained"),
        (Why.CANCEL, "cancelled", "cancelled"),
        (Why.LOST, "superseded", "superseded"),
    ],
)
def test_who_was_told_to_stop_has_not_failed(why: Why, outcome: str, ending: str) -> None:
    stop = Stop()
    stop.again("stalled in training", "stalled")
    stalled = judge(Ended(137, stop, seen(*STEPS), None, ""))
    killed, lost = "; the trainer did not stop, and was killed", "steps 1-39 are in no checkpoint"
    cost = f"{killed}; {lost}"
    assert (stalled.outcome, stalled.ending, stalled.message) == ("crashed", "stalled", f"stalled in training{cost}")
    if why is Why.LOST:  # its successor knows what it saved, and where it starts
        cost = f"{killed}; {lost}, unless it saved them: the next attempt publishes what is whole"
    stop.ask(why, "enough")
    verdict = judge(Ended(137, stop, seen(*STEPS), None, ""))
    then = {
        Why.CANCEL: "",
        Why.LOST: "",
    }.get(why, "; the next attempt starts at the beginning, step 0")
    assert (verdict.outcome, verdict.ending, verdict.message) == (outcome, ending, f"enough{cost}{then}")


AT_35 = (
    "its newest checkpoint is of step 30; steps 31-35 are in none, as SIGTERM ended it before it saved;"
    " the next attempt starts at step 30"
)


@pytest.mark.parametrize(
    ("code", "progress", "newest", "words"),
    [
        (0, seen("step 40/90 loss 1"), 40, "its newest checkpoint is of step 40"),
        (
            143,
            seen("step 40/90 loss 1"),
            39,
            "its newest checkpoint is of step 39",
        ),  # it counts from 0, or was at the next one
        (0, seen(), None, ""),  # whoever prints no steps and saves elsewhere
        (
            137,
            seen("step 40/90 loss 1"),
            40,
            "the trainer did not stop, and was killed; its newest checkpoint is of step 40",
        ),
        (
            143,
            seen("step 35/90 loss 1"),
            30,
            AT_35,
        ),
        (
            0,
            seen("step 31/90 loss 1", start=30),
            None,
            "its newest checkpoint is of step 30; step 31 is in none; the next attempt starts at step 30",
        ),
        (
            143,
            seen(),
            None,
            "nothing was saved; the next attempt starts at the beginning, step 0",
        ),
        (0, seen("step 5/90 loss 1", start=30), None, ""),  # its counter restarts: nobody can tell
    ],
)
def test_a_stop_says_what_it_cost(code: int, progress: Progress, newest: int | None, words: str) -> None:
    stop = Stop()
    stop.ask(Why.DRAIN, "drained by root")
    verdict = judge(Ended(code, stop, progress, newest, ""))
    assert verdict.message == "; ".join(filter(None, ("drained by root", words)))


LAST = seen("step 29/30 loss 1", "step 30/30 loss 1")


@pytest.mark.parametrize("why", [Why.SIGNAL, Why.CUT_OFF, Why.DRAIN, Why.CANCEL])
def test_whoever_reached_its_last_step_saved_it_and_left_by_itself_is_completed_whatever_was_asked(why: Why) -> None:
    stop = Stop()
    stop.ask(why, "enough")
    verdict = judge(Ended(0, stop, LAST, 30, ""))
    assert (verdict.outcome, verdict.ending, verdict.exit_code) == ("completed", "completed", 0)
    assert (
        verdict.message
        == "reached step 30 of 30, saved it and exited 0 by itself, before the stop that was asked for (enough)"
    )
    assert given_back("the agent was gone", judge(Ended(0, Stop(), LAST, 30, "")), 0).outcome == "completed"


@pytest.mark.parametrize(
    ("code", "progress", "newest", "unpublished"),
    [
        (143, LAST, 30, ""), (0, LAST, 20, ""), (0, LAST, None, ""), (0, LAST, 30, "no room"),
        (0, LAST, 29, ""),  # it may have saved that on its SIGTERM
        (0, seen("step 10/30 loss 1", "step 20/30 loss 1", "step 29/30 loss 1"), 29, ""),
        (0, seen("step 20/30 loss 1"), 600, ""),  # its checkpoints count something else
        (0, seen("step 30 loss 1"), 30, ""),  # nobody knows which is the last
    ],
)  # fmt: skip
def test_a_stop_is_one_where_the_last_step_is_not_known_to_be_saved(
    code: int, progress: Progress, newest: int | None, unpublished: str
) -> None:
    stop = Stop()
    stop.ask(Why.CANCEL, "enough")
    assert judge(Ended(code, stop, progress, newest, "", unpublished)).outcome == "cancelled"
    assert given_back("the agent was gone", judge(Ended(code, Stop(), progress, newest, "", unpublished)), 0).step
    assert given_back("gone", judge(Ended(code, Stop(), progress, newest, "", unpublished)), 0).outcome == "preempted"


def test_a_command_that_changed_a_run_that_is_anothers_and_one_that_diverged_are_not_completed_by_their_last_step() -> (
    None
):
    for why, outcome in ((Why.CHANGED, "drained"), (Why.LOST, "superseded")):
        stop = Stop()
        stop.ask(why, "enough")
        assert judge(Ended(0, stop, LAST, 30, "")).outcome == outcome
    stop = Stop()
    stop.again("the loss is nan", "nan", healthy=True)
    assert judge(Ended(0, stop, LAST, 30, "")).outcome == "crashed"


def test_whoever_lost_the_run_says_what_of_it_is_in_no_checkpoint() -> None:
    stop = Stop()
    stop.ask(Why.LOST, "by root")
    told = judge(Ended(0, stop, seen("step 386/900 loss 1", start=200), 350, "")).message
    left = "unless it saved them: the next attempt publishes what is whole"
    assert told == f"by root; its newest checkpoint is of step 350; steps 351-386 are in none, {left}"
    assert judge(Ended(143, stop, seen("step 386/900 loss 1"), 350, "")).message == told, "it may have saved at SIGTERM"
    assert judge(Ended(0, stop, seen("step 386/900 loss 1"), 386, "")).message == "by root"


def test_a_trainer_that_ended_while_no_agent_was_there_says_so_too() -> None:
    judged = judge(Ended(137, Stop(), seen("step 386/900 loss 1", start=200), 350, ""))
    told = given_back("the agent was gone", judged, 200)
    lost = "its newest checkpoint is of step 350; steps 351-386 are in none; the next attempt starts at step 350"
    assert told.message == f"the agent was gone; {lost}"
    assert (told.outcome, told.ending, told.step, told.trainer_code) == ("preempted", "preempted", 386, 137)
    none = given_back("the agent was gone", judge(Ended(137, Stop(), seen(start=200), None, "")), 200)
    assert none.message == "the agent was gone; nothing was saved; the next attempt starts at step 200"


def test_a_stop_that_nobody_waits_for_and_one_that_left_something_unpublished_say_so() -> None:
    stop = Stop()
    stop.ask(Why.DRAIN, "drained by root")
    assert judge(Ended(0, stop, seen(*STEPS), 20, "", "no room", kept=True)).message == "drained by root, but no room"
    assert "for want of host memory" in judge(Ended(137, stop, seen(*STEPS), 20, "", oom=True)).message
    stop.hurry()
    assert "killed, as nothing was waited for" in judge(Ended(137, stop, seen(*STEPS), 20, "")).message


def test_what_it_said_is_in_the_message() -> None:
    verdict = judge(Ended(137, Stop(), seen(*STEPS), None, "bye", lines=[*STEPS, "bye"], oom=True))
    words = (
        "the trainer exited with 137, killed by SIGKILL at step 39: killed for want of host memory; its last words: bye"
    )
    lost = "steps 1-39 are in no checkpoint"
    assert (verdict.message, verdict.ending) == (f"{words}; {lost}", "oom_killed")
    plain = judge(Ended(3, Stop(), seen(*STEPS), None, "bye"))
    assert plain.message == f"the trainer exited with 3 at step 39; its last words: bye; {lost}"
    saved = judge(Ended(3, Stop(), seen(*STEPS), 30, "bye"))
    lost = "its newest checkpoint is of step 30; steps 31-39 are in none"
    assert saved.message == f"the trainer exited with 3 at step 39; its last words: bye; {lost}"
    for newest in (38, 39):
        assert judge(Ended(3, Stop(), seen(*STEPS), newest, "bye")).message.endswith("its last words: bye")


@pytest.mark.parametrize(("code", "how"), [(137, "exited with 137, killed by SIGKILL"), (247, "exited with 247")])
def test_a_kill_that_nobody_saw_is_told_once_and_without_a_guess_that_the_same_sentence_takes_back(
    code: int, how: str
) -> None:
    verdict = judge(Ended(code, Stop(), seen(*STEPS), None, "", lines=STEPS))
    assert verdict.message == (
        f"the trainer {how} at step 39: killed by somebody else, or for want of memory that nothing here counted; "
        f"its last words: {STEPS[-1]}; steps 1-39 are in no checkpoint"
    )
    told = judge(Ended(code, Stop(), seen(*STEPS), None, "", lines=[*STEPS, CUDA_OOM]))
    assert "out of GPU memory" in told.message
    assert "?" not in told.message.partition("; its last words")[0]


@pytest.mark.parametrize(("code", "how"), [(1, "exited with 1"), (139, "exited with 139, killed by SIGSEGV")])
def test_whose_rank_was_killed_while_it_ended_otherwise_is_not_said_to_have_been_killed_twice(
    code: int, how: str
) -> None:
    verdict = judge(Ended(code, Stop(), seen(*STEPS), None, "", lines=STEPS, oom=True))
    assert verdict.message.startswith(f"the trainer {how} at step 39: something of it was killed for want of host")
