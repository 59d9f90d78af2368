"""What a trainer writes beside its lines: read as it grows, told once, and nothing that lies there is an error."""

from __future__ import annotations

import json
import math
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_agent.output import beside
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.reading import side_files
from relay_agent.reading.side_files import CHUNK, SideFiles
from relaytui.wire.reports import Step, TelemetryReport


class Clock:
    def wall(self) -> float:
        return 1000.0

    def boot(self) -> float:
        return 0.0

    def boot_id(self) -> str:
        return "boot"


def state(steps: list[int], total: int = 50, **more: object) -> str:
    """As `TrainerState.save_to_json` writes it."""
    history: list[dict[str, float]] = []
    for n in steps:
        loss = {"epoch": n / total, "grad_norm": 1.5, "learning_rate": 4.9e-05, "loss": 3 - n / 25, "step": n}
        history += [loss, {"epoch": n / total, "eval_loss": 2.5, "eval_runtime": 1.1, "step": n}]
    content = {
        "best_metric": None, "epoch": 1.0, "global_step": steps[-1], "log_history": history, "logging_steps": 10,
        "max_steps": total, "stateful_callbacks": {"TrainerControl": {"args": {"step": 1}}}, "trial_name": None,
        **more,
    }  # fmt: skip
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def seen(files: SideFiles) -> list[tuple[int | None, int | None, float | None]]:
    return [(sight.step, sight.total, sight.metrics.get("loss")) for sight in files.look()]


def test_hugging_face_state_of_each_checkpoint_tells_only_what_is_new(tmp_path: Path) -> None:
    files = SideFiles(tmp_path)
    assert files.look() == []
    for steps in ([10, 20], [10, 20, 30]):
        folder = tmp_path / f"checkpoint-{steps[-1]}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(state(steps))
    losses = [(step, total, loss) for step, total, loss in seen(files) if loss is not None]
    assert losses == [(10, 50, 2.6), (20, 50, 2.2), (30, 50, 1.8)], "each repeats what those before it told"
    assert seen(files) == []


def test_a_state_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    files, path, text = SideFiles(tmp_path), tmp_path / "trainer_state.json", state([10, 20])
    path.write_text(text[: len(text) // 2])
    assert seen(files) == []
    path.write_text(text)
    assert seen(files)[0] == (10, 50, 2.6)


def test_nan_in_it_is_a_number_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(state([10]).replace("2.6", "NaN").replace("1.5", "Infinity"))
    first = SideFiles(tmp_path).look()[0]
    assert math.isnan(first.metrics["loss"])
    assert first.metrics["grad_norm"] == math.inf


def test_what_belongs_to_earlier_attempts_is_not_told_again(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(state([10, 20, 30]))
    assert [step for step, _, _ in seen(SideFiles(tmp_path, start=20))] == [30, 30]


def test_of_a_large_state_the_newest_is_read(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(state(list(range(1, 20_000)), total=20_000))
    found = seen(SideFiles(tmp_path))
    assert found[-1][:2] == (19_999, 20_000)
    assert len(found) < 6_000


def test_llama_factory_log_is_read_line_by_line_as_it_grows(tmp_path: Path) -> None:
    files, path = SideFiles(tmp_path), tmp_path / "trainer_log.jsonl"
    row = '{{"current_steps": {}, "total_steps": 300, "loss": {}, "lr": 4.9e-05, "elapsed_time": "0:00:35"}}'
    rows = [row.format(n, n / 8) for n in (10, 20, 30)]
    path.write_text(rows[0] + "\n" + rows[1][:20])
    assert seen(files) == [(10, 300, 1.25)]
    assert seen(files) == []
    path.write_text("\n".join(rows) + "\n")
    assert seen(files) == [(20, 300, 2.5), (30, 300, 3.75)]
    path.write_text(rows[0].replace("1.25", "NaN") + "\n")  # begun anew
    ((step, total, loss),) = seen(files)
    assert (step, total) == (10, 300)
    assert loss is not None
    assert math.isnan(loss)


def test_ultralytics_results_by_their_heading(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "detect" / "train2"
    folder.mkdir(parents=True)
    files = SideFiles(tmp_path)
    head = "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/mAP50(B),val/box_loss,lr/pg0\n"
    (folder / "results.csv").write_text(head + "1,12.5,1.0,1.5,0.5,0.6,9.0,0.001\n")
    (sight,) = files.look()
    assert (sight.step, sight.total) == (1, None)
    assert sight.metrics == {
        "time": 12.5,
        "box_loss": 1.0,
        "cls_loss": 1.5,
        "dfl_loss": 0.5,
        "metrics/mAP50(B)": 0.6,
        "val/box_loss": 9.0,
        "lr": 0.001,
        "loss": 3.0,
    }
    with (folder / "results.csv").open("a") as file:
        file.write("2, 25, nan, 1.5, 0.5, 0.6, 9.0, 0.001\n3,1")
    (sight,) = files.look()
    assert sight.step == 2
    assert math.isnan(sight.metrics["loss"])


def follower(start: int = 0) -> tuple[Follower, list[TelemetryReport]]:
    reports: list[TelemetryReport] = []
    return Follower(Progress(start), Clock(), reports.append, lambda mark: None, lambda: None), reports


def told(reports: list[TelemetryReport]) -> list[tuple[int, int | None, dict[str, object]]]:
    return [(step.step, step.total, dict(step.metrics)) for step in reports if isinstance(step, Step)]


def test_what_the_lines_told_is_not_told_again_from_a_file(tmp_path: Path) -> None:
    reading, reports = follower()
    reading.feed(b"step 10/50 loss 2.6 lr 4.9e-05\nstep 20/50 loss 2.2 lr 4.9e-05\nstep 21/50 loss 2.1\n")
    (tmp_path / "trainer_state.json").write_text(state([10, 20]))
    before = len(told(reports))
    reading.read_beside(SideFiles(tmp_path).look())
    assert told(reports)[before:] == [
        (10, 50, {"epoch": 0.2, "grad_norm": 1.5}),
        (10, 50, {"eval_loss": 2.5, "eval_runtime": 1.1}),
        (20, 50, {"epoch": 0.4, "grad_norm": 1.5}),
        (20, 50, {"eval_loss": 2.5, "eval_runtime": 1.1}),
    ]
    assert (reading.progress.step, reading.loss) == (21, 2.1), "what is older changes nothing that goes on"


def test_what_a_file_told_is_not_told_again_by_a_line(tmp_path: Path) -> None:
    reading, reports = follower()
    path = tmp_path / "trainer_log.jsonl"
    path.write_text('{"current_steps": 10, "total_steps": 300, "loss": 1.5}\n')
    reading.read_beside(SideFiles(tmp_path).look())
    assert told(reports) == [(10, 300, {"loss": 1.5})]
    reading.feed(b"step 10/300 loss 1.5\n")
    assert len(told(reports)) == 1


def test_steps_of_who_shows_none_come_from_the_file_and_its_total_counts(tmp_path: Path) -> None:
    reading, reports = follower(start=10)
    reading.feed(b"{'loss': '2.2', 'learning_rate': '4.9e-05', 'epoch': '0.4'}\n")
    assert told(reports) == []
    (tmp_path / "trainer_state.json").write_text(state([10, 20, 30]))
    reading.read_beside(SideFiles(tmp_path, reading.progress.start).look())
    assert [(step, total) for step, total, _ in told(reports)] == [(20, 50), (20, 50), (30, 50), (30, 50)]
    assert (reading.progress.first, reading.progress.step, reading.progress.total) == (20, 30, 50)
    assert reading.loss == 1.8


def test_a_loss_that_lines_hide_is_found_in_the_file(tmp_path: Path) -> None:
    reading, _ = follower()
    bad: list[int] = []
    reading.on_nonfinite = bad.append
    (tmp_path / "trainer_state.json").write_text(state([10]).replace("2.6", "NaN"))
    reading.read_beside(SideFiles(tmp_path).look())
    assert bad == [10]


# -- what may lie there --------------------------------------------------------------------------------------------


def test_links_pipes_devices_and_folders_are_no_files(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "trainer_state.json").write_text(state([10]))
    for name in ("link", "folder", "fifo", "deep", "loop"):
        (out / name).mkdir(parents=True)
    (out / "link" / "trainer_state.json").symlink_to(elsewhere / "trainer_state.json")
    (out / "whole").symlink_to(elsewhere)
    (out / "folder" / "results.csv").mkdir()
    os.mkfifo(out / "fifo" / "trainer_log.jsonl")
    (out / "loop" / "again").symlink_to(out)
    (out / "trainer_log.jsonl").symlink_to("/dev/zero")
    deep = out / "deep"
    for _ in range(12):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "trainer_state.json").write_text(state([10]))
    assert SideFiles(out).look() == []
    assert SideFiles(tmp_path / "none").look() == []
    (tmp_path / "to-out").symlink_to(elsewhere)
    assert SideFiles(tmp_path / "to-out").look() == []


def test_a_sparse_file_costs_no_more_than_a_look(tmp_path: Path) -> None:
    for name in ("trainer_state.json", "trainer_log.jsonl", "results.csv"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)
    files = SideFiles(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert files.look() == files.look() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_large_tree_is_looked_at_in_part_and_leaves_nothing_open(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text(state([number + 1]))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert SideFiles(tmp_path).look()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(side_files.READERS)), st.data())
def test_whatever_stands_in_one_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    good = {
        "trainer_state.json": state([10, 20]),
        "trainer_log.jsonl": '{"current_steps": 1, "total_steps": 2, "loss": 1}\n',
        "results.csv": "epoch,train/loss\n1,2\n",
    }[name].encode()
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    spoilt = bytearray(good)
    for _ in range(data.draw(st.integers(0, 12))):
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
    content = data.draw(
        st.sampled_from(
            (bytes(spoilt), bytes(spoilt[: rng.randrange(len(spoilt))]), data.draw(st.binary(max_size=300)))
        )
    )
    folder = tmp_path_factory.mktemp("side")
    (folder / name).write_bytes(content)
    reading, _ = follower()
    files = SideFiles(folder)
    for _ in range(2):
        reading.read_beside(files.look())
        with (folder / name).open("ab") as file:
            file.write(good)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * CHUNK,
        b'{"a":' * 50_000,
        b'{"step": ' + b"9" * 5_000 + b', "loss": 1}',
        b'{"step": 1e400, "loss": 1}',
        b'{"step": 5, "loss": ' + b"1" * 400 + b"}",
        b"\0" * 5_000,
        b'\xff\xfe{"step": 5}',
        b'{"step": 5, "\\ud800": 1}',
    ],
    ids=range(8),
)  # fmt: skip
def test_numbers_and_depths_that_are_none(tmp_path: Path, content: bytes) -> None:
    for name in side_files.READERS:
        (tmp_path / name).write_bytes(content + b"}\n")
    reading, _ = follower()
    reading.read_beside(SideFiles(tmp_path).look())


async def test_a_folder_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, reports = follower()
    (tmp_path / "trainer_log.jsonl").write_text('{"current_steps": 10, "total_steps": 300, "loss": 1.5}\n')
    files = beside.Beside(tmp_path, reading)
    await files.last()
    assert told(reports) == [(10, 300, {"loss": 1.5})]
    released = threading.Event()
    monkeypatch.setattr(SideFiles, "look", lambda self: released.wait(20) and [])
    monkeypatch.setattr(beside, "LAST_LOOK", 0.05)
    await files.last()
    released.set()
    assert len(told(reports)) == 1
