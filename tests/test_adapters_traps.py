"""What lies about checkpoints: husks, exports, parts that never came, other names, and folders of nobody's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from taking_kit import SETTLE, Taker, aged, in_memory, steps_of, taken
from writers import accelerate, dcp, deepspeed, hf_trainer, lightning, small, torchtune, verl
from writers.kit import Steps, run

from relay_agent.checkpoints import adapters


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory(tmp_path)) as path:
        yield Path(path)


def test_a_husk_of_verl_is_none(place: Path) -> None:
    taker = taken(place, lambda out: verl.save(out, 10), lambda out: verl.save(out, 20))
    assert steps_of(taker) == {10: "verl", 20: "verl"}
    late = taken(place / "late", kinds=("verl",))
    for step in (10, 20):
        run(verl.save(late.out, step))
    assert sorted(path.name for path in (late.out / "global_step_10").iterdir()) == ["data.pt"]
    assert late.steps() == [20]
    assert [(doubt.path, doubt.why) for doubt in late.watch.doubts()] == [
        ("global_step_10", "its weights are not there")
    ]


@pytest.mark.parametrize("lost", ["critic", "actor/optim_world_size_2_rank_1.pt", "data.pt"])
def test_a_part_that_was_never_saved_is_missed(place: Path, lost: str) -> None:
    """As the others have it, and as names tell; whatever the tracker says."""
    taker = taken(place, lambda out: verl.save(out, 1, keep=9), kinds=("verl",))
    doing = verl.save(place / "other", 2)
    run(doing)
    path = place / "other" / "global_step_2" / lost
    if path.is_dir():
        run(accelerate.remove(path))
    else:
        path.unlink()
    (place / "other" / "global_step_2").rename(taker.out / "global_step_2")
    (taker.out / verl.TRACKER).write_text("2")
    assert taker.steps() == taker.steps(SETTLE + 1) == []
    (doubt,) = taker.watch.doubts()
    assert lost in doubt.why


def test_what_one_kind_has_taken_no_other_complains_of(place: Path) -> None:
    """Folders of diffusers have the names of transformers', and nothing of what that one marks them with."""
    taker = taken(place, lambda out: accelerate.diffusers(out, 8, keep=9))
    assert steps_of(taker) == {8: "diffusers"}
    assert taker.steps(exited=0) == []
    assert taker.watch.doubts() == []


def test_the_critic_belongs_to_it(place: Path) -> None:
    taker = taken(place, lambda out: deepspeed.ppo(out, 5, critic=False), lambda out: deepspeed.ppo(out, 10))
    assert steps_of(taker) == {5: "openrlhf", 10: "openrlhf"}
    assert {path.name for path in (taker.run.ckpt / "step_00000010").iterdir()} == {
        "_actor",
        "_critic",
        "manifest.json",
    }


def test_exports_of_openrlhf_are_left(place: Path) -> None:
    def save(out: Path) -> Steps:
        yield from deepspeed.save(out, 20)
        yield from accelerate.save(out, 20, name="global_step{step}_hf")
        yield from deepspeed.save(out, 20, name="best_global_step{step}", seed="best")
        (out / "latest").write_text("global_step20")

    taker = taken(place, save)
    assert steps_of(taker) == {20: "openrlhf"}


def test_the_last_one_of_torchtune_has_no_state(place: Path) -> None:
    for number, where in enumerate((False, True)):
        taker = taken(
            place / str(number),
            lambda out, where=where: torchtune.save(out, 0, beside=where),  # type: ignore[misc]
            lambda out, where=where: torchtune.save(out, 1, beside=where, final=True),  # type: ignore[misc]
        )
        assert steps_of(taker) == {0: "torchtune"}
        assert taker.steps(exited=0) == []


def test_last_is_nothing_of_its_own_beside_one_of_its_step(place: Path) -> None:
    taker = taken(
        place,
        lambda out: lightning.save(out, 100, last=True),
        lambda out: lightning.save(out, 150, name="", last=True),
        lambda out: lightning.save(out, 200, name="epoch={epoch}-val_loss=0.31.ckpt"),
    )
    assert steps_of(taker) == {100: "lightning", 150: "lightning", 200: "lightning"}
    (taker.out / "last.ckpt").unlink()
    (taker.out / "last.ckpt").symlink_to("epoch=10-step=100.ckpt")
    assert taker.steps(SETTLE + 1) == []


def test_what_ultralytics_leaves_at_the_end_is_not_taken(place: Path) -> None:
    taker = taken(
        place,
        lambda out: small.ultralytics(out, 1),
        lambda out: small.ultralytics(out, 2),
        lambda out: small.ultralytics(out, 2, final=True),
        lambda out: small.ultralytics(out / "runs" / "detect", 5),
    )
    assert steps_of(taker) == {1: "ultralytics", 2: "ultralytics", 5: "ultralytics"}


def test_orbax_says_when_it_was_committed(place: Path) -> None:
    taker = Taker(place)
    run(small.orbax(taker.out, 5, committed=False, prefix="ck_"))
    assert taker.steps() == []
    assert taker.steps(SETTLE + 1) == [5]
    run(small.orbax(taker.out, 6, prefix="ck_"))
    assert taker.steps() == [6]


def test_keras_counts_epochs_by_the_number_in_a_name(place: Path) -> None:
    names = {
        "ck-01.keras": 1, "ck-02-0.35.keras": 2, "resnet50-03.keras": 3, "vgg16.keras": 77,
        "model.04-1.5.weights.h5": 4,        "epoch_05.weights.h5": 5, "model_v2.keras": 77,
    }  # fmt: skip
    for name, step in names.items():
        taker = taken(place / name, lambda out, name=name: small.keras(out, 9, name=name))  # type: ignore[misc]
        assert steps_of(taker) == {step: "keras"}, name


def test_kohyas_own_state_tells_the_step(place: Path) -> None:
    taker = taken(
        place,
        lambda out: accelerate.kohya(out, 120, name="lora-000003-state"),
        lambda out: accelerate.kohya(out, 150, name="lora-state"),
    )
    assert steps_of(taker) == {120: "kohya", 150: "kohya"}


def test_older_simpletuner_marks_nothing(place: Path) -> None:
    taker = Taker(place)
    run(accelerate.simpletuner(taker.out, 5))
    for name in (".guard", "checkpoint_manifest.json"):
        (taker.out / "checkpoint-5" / name).unlink()
    assert taker.steps() == []
    assert taker.steps(SETTLE + 1) == [5]
    assert taker.adapters() == {"diffusers"}


def test_a_script_may_add_files_after_save_state(place: Path) -> None:
    taker = Taker(place)
    for step in (1, 2):
        run(accelerate.save(taker.out, step))
        aged(taker.out)
        (taker.out / f"checkpoint_{step}" / "notes.json").write_text("{}")
        taker.steps()
        taker.steps(SETTLE + 1)
    assert steps_of(taker) == {1: "accelerate", 2: "accelerate"}


def test_nobodys_folders_are_taken(place: Path) -> None:
    """Names as of checkpoints, and nothing in them that is one."""
    taker = Taker(place)
    names = (
        "500",
        "step_5",
        "step-5",
        "epoch_1",
        "checkpoint-5",
        "checkpoint_5",
        "global_step5",
        "global_step_5",
        "x-state",
    )
    for name in names:
        (taker.out / name).mkdir()
        (taker.out / name / "plot.png").write_bytes(b"png")
        (taker.out / name / "metrics.json").write_text("{}")
    (taker.out / "data.h5").write_bytes(small.hdf5("data"))
    (taker.out / "latest").write_text("nobody")
    assert taker.steps() == taker.steps(SETTLE + 1) == taker.steps(SETTLE + 1, 0) == []


@pytest.mark.parametrize(
    ("kind", "save"),
    [
        ("accelerate", lambda out, step: accelerate.save(out, step, ranks=2, customs=1)),
        ("kohya", accelerate.kohya),
        ("diffusers", lambda out, step: accelerate.save(out, step, name="checkpoint-{step}")),
        ("deepspeed", lambda out, step: deepspeed.save(out, step, ranks=2)),
        ("hf_trainer", lambda out, step: hf_trainer.save(out, step, ranks=2)),
    ],
)
def test_who_comes_late_is_told_by_the_older_ones(place: Path, kind: str, save: Callable[[Path, int], Steps]) -> None:
    """As the next attempt does after a pod died: nobody is left who saw how many ranks and objects there are."""
    taker = Taker(place, kinds=(adapters.BY_NAME[kind],))
    run(save(taker.out, 1))
    aged(taker.out)
    run(save(taker.out, 2))
    assert 2 in taker.steps(0.1, -9)
    run(save(taker.out, 3))
    files = sorted((file for file in taker.out.rglob("*3*/*")), key=lambda file: file.stat().st_mtime_ns)
    late = next(file for file in reversed(files) if "rank" in file.name or "random" in file.name or "rng" in file.name)
    late.unlink()
    assert taker.steps(SETTLE + 1, -9) == []


DELETED: dict[str, Callable[[Path, int], Steps]] = {
    "accelerate": accelerate.save,
    "deepspeed": deepspeed.save,
    "diffusers": lambda out, step: accelerate.diffusers(out, step, keep=9),
    "hf_trainer": hf_trainer.save,
    "orbax": small.orbax,
    "torchtune": torchtune.save,
    "verl": lambda out, step: verl.save(out, step, keep=9),
}


@pytest.mark.parametrize("kind", DELETED)
def test_a_half_deleted_one_is_not_taken(place: Path, kind: str) -> None:
    """Its trainer died while it made room: whatever order a filesystem lists and so a trainer deletes files in."""
    save = DELETED[kind]
    run(save(place / "reference", 1))
    (name,) = [path.name for path in (place / "reference").iterdir() if path.is_dir()]
    files = sorted(
        file.relative_to(place / "reference") for file in (place / "reference" / name).rglob("*") if file.is_file()
    )
    assert len(files) > 1
    for number, lost in enumerate(files):
        taker = Taker(place / str(number), kinds=(adapters.BY_NAME[kind],))
        for step in (1, 2):
            run(save(taker.out, step))
            aged(taker.out, 60)
        (taker.out / lost).unlink()
        assert 1 not in taker.steps(0.1, -9), lost


def test_a_flush_before_the_last_name_is_no_deletion(place: Path) -> None:
    """`.metadata` has the time of its last byte, and its folder that of the renaming."""
    for seconds, taken_at_once in ((5, True), (60, False)):
        taker = Taker(place / str(seconds))
        run(dcp.save(taker.out, 5))
        for file in (taker.out / "step-5").iterdir():
            then = file.stat().st_mtime_ns - seconds * 10**9
            os.utime(file, ns=(then, then))
        assert (taker.steps() == [5]) is taken_at_once
        assert (taker.steps(SETTLE + 1) == [5]) is not taken_at_once, "or once it kept still"


def test_times_of_folders_mean_nothing_on_an_object_store(place: Path) -> None:
    taker = Taker(place, atomic=False)
    run(dcp.save(taker.out, 5))
    aged(taker.out, 60)
    os.utime(taker.out / "step-5")
    assert taker.steps() == [5]


HOSTILE = (
    b"", b"\0" * 100, b"../../etc/passwd", b"[" * 100_000, b"9" * 5000, b'{"epoch": -1}', b'{"epoch": 1e400}', b"[]",
    b"null", b'{"current_step": 99999999999999999999}', b'{"files": ["../x", 5, "/etc/passwd", "a\\u0000b"]}',
    b'{"files": {"a": 1}}', b'{"files": ["' + b"a/" * 4000 + b'"]}', b'{"files": [' + b'"x",' * 200_000 + b'"x"]}',
    b"\xff\xfe{}", b'{"commit_timestamp_nsecs": "now"}', b"global_step" + b"9" * 40, b"\x80\x04\x95" + b"\xff" * 60,
)  # fmt: skip


@pytest.mark.parametrize("name", [
    "checkpoint-5/checkpoint_manifest.json", "latest", "_actor/latest", "lora-state/train_state.json", "last.ckpt",
    "backup/training_metadata.json", "500/_CHECKPOINT_METADATA", verl.TRACKER, "train/weights/last.pt",
    "step-5/.metadata",    "checkpoint_5/random_states_0.pkl", "epoch_5/recipe_state.pt", "x.keras",
])  # fmt: skip
def test_nothing_that_a_trainer_writes_harms_who_looks(place: Path, name: str) -> None:
    """Neither an error nor a checkpoint, and no link is followed."""
    taker = Taker(place)
    for save in (*DELETED.values(), deepspeed.ppo, accelerate.kohya, small.backup, small.ultralytics):
        run(save(taker.out, 5))
    (taker.out / "global_step_5" / "actor" / "model_world_size_999999_rank_7.pt").write_bytes(b"x")
    (taker.out / "global_step_5" / "actor" / ("model_world_size_" + "9" * 60 + "_rank_7.pt")).write_bytes(b"x")
    path = taker.out / name
    path.parent.mkdir(exist_ok=True)
    for content in HOSTILE:
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        taker.watch.scan(-9)
    path.unlink()
    os.mkfifo(path)
    taker.watch.scan(-9)
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert name not in {ready.candidate.path for ready in taker.watch.scan(-9)}
    path.unlink()
    path.mkdir()
    taker.watch.scan(-9)
