"""Which entries of a trainer's folder are checkpoints of which kind, and when each is whole by its own marks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from writers import hf_trainer, megatron, single_file, staging
from writers.kit import Steps, run

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.adapters.base import Memory, NotYet
from relay_agent.checkpoints.adapters.view import Entry, view_of


class Looker:
    """Looks at one folder again and again, as one attempt does."""

    def __init__(self, out: Path, *names: str) -> None:
        self.out = out
        self.kinds = tuple(adapters.BY_NAME[name] for name in names) or adapters.KINDS
        self.memory = Memory()

    def look(self) -> dict[str, str]:
        """By path: the kind that has it whole, or why none has (with `~` before it where it has to keep still)."""
        found: dict[str, str] = {}
        with view_of(self.out, adapters.is_checkpoint) as view:
            for adapter, candidate in adapters.find(view, self.kinds, self.memory):
                why = adapter.missing(view, candidate, self.memory)
                if not why:
                    adapter.learn(view, candidate, self.memory)
                    found[candidate.path] = adapter.name
                elif found.get(candidate.path) not in adapters.BY_NAME:
                    found[candidate.path] = f"~{why}" if isinstance(why, NotYet) else why
        return found

    def whole(self) -> list[str]:
        return [f"{kind} {path}" for path, kind in sorted(self.look().items()) if kind in adapters.BY_NAME]


WRITERS: dict[str, Callable[[Path, int], Steps]] = {
    "hf_trainer": hf_trainer.save,
    "megatron": megatron.save_legacy,
    "single_file": single_file.save,
    "staging": staging.save,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_each_kind_is_found_by_itself(tmp_path: Path, kind: str) -> None:
    run(WRITERS[kind](tmp_path, 500))
    looker = Looker(tmp_path)
    looker.look()
    found = [(seen.adapter.name, seen.candidate.step) for seen in seen_in(looker)]
    assert (kind, 500) in found or (kind, None) in found


def seen_in(looker: Looker) -> Iterator[adapters.Seen]:
    with view_of(looker.out, adapters.is_checkpoint) as view:
        yield from adapters.find(view, looker.kinds, looker.memory)


def first_whole(looker: Looker, writer: Steps) -> str:
    """After which of its doings something is whole for the first time."""
    for done in writer:
        if looker.whole():
            rest = list(writer)
            return f"{done} (and {len(rest)} after it)" if rest else f"{done} (last)"
    return "never"


@pytest.mark.parametrize(
    ("kind", "writer"),
    [
        ("hf_trainer", lambda out: hf_trainer.save(out, 500)),
        ("hf_trainer", lambda out: hf_trainer.save(out / "run", 500, shards=3)),
        ("hf_trainer", lambda out: hf_trainer.save(out / "saves" / "llama" / "sft", 500, peft=True)),
        ("hf_trainer", lambda out: hf_trainer.save(out, 500, deepspeed=True)),
        ("single_file", lambda out: single_file.save(out, 500)),
        ("single_file", lambda out: single_file.save(out / "run", 500, name="ckpt_iter_500.pt")),
    ],
)
def test_it_is_whole_with_its_last_byte(tmp_path: Path, kind: str, writer: Callable[[Path], Steps]) -> None:
    assert first_whole(Looker(tmp_path), writer(tmp_path)).endswith("(last)")
    (whole,) = Looker(tmp_path).whole()
    assert whole.startswith(kind)


def test_random_states_of_further_ranks_are_waited_for(tmp_path: Path) -> None:
    """Until the first one was whole nobody knows how many there are; after that everybody does."""
    looker = Looker(tmp_path)
    for done in hf_trainer.save(tmp_path, 1, ranks=3):
        assert looker.whole() == [], done
    assert looker.look() == {"checkpoint-1": "~further ranks may still write theirs"}
    with view_of(tmp_path, adapters.is_checkpoint) as view:
        (seen,) = [seen for seen in seen_in(looker) if seen.adapter.name == "hf_trainer"]
        seen.adapter.learn(view, seen.candidate, looker.memory)
    assert looker.whole() == ["hf_trainer checkpoint-1"]
    done = first_whole(Looker_with(looker, "checkpoint-2"), hf_trainer.save(tmp_path, 2, ranks=3))
    assert done.startswith("rng_state_1.pth"), "the last of them; whether it is whole its bytes tell"


class Looker_with(Looker):  # noqa: N801 - a function in all but its form
    """Goes on from another, and looks only at one path."""

    def __init__(self, other: Looker, path: str) -> None:
        super().__init__(other.out)
        self.memory = other.memory
        self._path = path

    def whole(self) -> list[str]:
        return [each for each in super().whole() if each.endswith(self._path)]


def test_megatron_is_whole_once_its_tracker_names_it(tmp_path: Path) -> None:
    looker = Looker(tmp_path)
    run(megatron.save(tmp_path, 100))
    assert looker.look() == {"iter_0000100": "~slime may still write the state of its dataset"}
    (tmp_path / megatron.TRACKER).write_text("")
    assert looker.look() == {"iter_0000100": f"{megatron.TRACKER} does not name it yet"}
    (tmp_path / megatron.TRACKER).write_text("99")
    assert looker.look() == {"iter_0000100": f"{megatron.TRACKER} does not name it yet"}
    (tmp_path / megatron.TRACKER).write_text("release")
    assert looker.look() == {"iter_0000100": f"{megatron.TRACKER} does not name it yet"}
    (tmp_path / megatron.TRACKER).write_text("200")
    (tmp_path / "iter_0000100" / ".metadata").unlink()
    assert looker.look() == {"iter_0000100": ".metadata is not there yet"}


def test_slime_is_whole_with_the_state_of_its_dataset(tmp_path: Path) -> None:
    looker = Looker(tmp_path)
    assert first_whole(looker, megatron.save(tmp_path, 19, slime=True)).startswith("global_dataset_state_dict_19.pt")
    done = first_whole(Looker_with(looker, "iter_0000039"), megatron.save(tmp_path, 39, slime=True))
    assert done.startswith("global_dataset_state_dict_39.pt")
    (seen,) = [seen for seen in seen_in(looker) if seen.candidate.step == 19]
    assert [part.source for part in seen.candidate.parts] == [
        "iter_0000019",
        "rollout/global_dataset_state_dict_19.pt",
    ]
    assert seen.candidate.texts == ((megatron.TRACKER, "19"),), "whatever the trainer's own says by then"


def test_the_outermost_one_counts(tmp_path: Path) -> None:
    run(hf_trainer.save(tmp_path, 500, deepspeed=True))
    assert {seen.candidate.path for seen in seen_in(Looker(tmp_path))} == {"checkpoint-500"}


def test_names_that_only_look_like_a_checkpoint(tmp_path: Path) -> None:
    for name in ("checkpoint-500-rolling", "checkpoint-500-tmp", "tmp-checkpoint-500", "checkpoint-", "checkpoint-5x"):
        run(hf_trainer.save(tmp_path, 500, name=name))
    run(hf_trainer.save(tmp_path, 500, name="checkpoint-" + "9" * 30))
    run(hf_trainer.save(tmp_path, 500, name="checkpoint-٥"))
    assert Looker(tmp_path, "hf_trainer").whole() == []


def test_two_of_one_step_are_two(tmp_path: Path) -> None:
    run(staging.save(tmp_path, 10))
    run(staging.save(tmp_path, 10, name="step_00000010"))
    run(staging.save(tmp_path, 9))
    assert sorted(seen.candidate.step or 0 for seen in seen_in(Looker(tmp_path, "staging"))) == [9, 10, 10]


def test_the_step_of_a_single_file_is_read_from_it(tmp_path: Path) -> None:
    run(single_file.save(tmp_path, 123_456))
    with view_of(tmp_path) as view:
        (seen,) = seen_in(Looker(tmp_path))
        assert seen.adapter.step(view, seen.candidate) == 123_456


# -- hostile folders ----------------------------------------------------------------------------------------------


def test_links_fifos_and_devices_are_nothing(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    run(hf_trainer.save(elsewhere, 500))
    out = tmp_path / "out"
    out.mkdir()
    (out / "checkpoint-500").symlink_to(elsewhere / "checkpoint-500")
    (out / "more").symlink_to(elsewhere)
    os.mkfifo(out / "ckpt.pt")
    os.mkfifo(out / megatron.TRACKER)
    (out / "iter_0000001").mkdir()
    (out / "checkpoint-1").mkdir()
    os.mkfifo(out / "checkpoint-1" / "trainer_state.json")
    (out / "checkpoint-2").mkdir()
    (out / "checkpoint-2" / "trainer_state.json").symlink_to(elsewhere / "checkpoint-500" / "trainer_state.json")
    looker = Looker(out)
    assert looker.whole() == []
    assert set(looker.look()) <= {"checkpoint-1", "checkpoint-2"}


def test_names_that_are_not_utf8_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\xfe") / "checkpoint-1").mkdir(parents=True)
    assert Looker(tmp_path).look() == {}


def test_all_may_vanish_while_one_looks(tmp_path: Path) -> None:
    run(hf_trainer.save(tmp_path, 500))
    run(megatron.save(tmp_path, 5, slime=True))
    looker = Looker(tmp_path)
    with view_of(tmp_path, adapters.is_checkpoint) as view:
        seen = list(adapters.find(view, looker.kinds, looker.memory))
        for name in ("checkpoint-500", "iter_0000005", "rollout"):
            run(hf_trainer.remove(tmp_path / name))
        for adapter, candidate in seen:
            adapter.missing(view, candidate, looker.memory)  # by what was listed before, or not
            assert adapter.step(view, candidate) in (500, 5)
        assert all(view.stat(candidate.path) is None for _, candidate in seen)
    assert looker.look() == {}


def test_a_deep_tree_is_not_walked(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(60):
        deep = deep / "d"
        deep.mkdir()
    run(hf_trainer.save(deep, 5))
    assert Looker(tmp_path).look() == {}


def test_many_folders_are_not_all_searched(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"shard-{number:03d}").mkdir()
    run(hf_trainer.save(tmp_path, 5))
    listed: list[str] = []
    with view_of(tmp_path, adapters.is_checkpoint) as view:
        real = view._list

        def counting(path: str) -> dict[str, Entry]:
            listed.append(path)
            return real(path)

        view._list = counting  # type: ignore[method-assign]
        assert [seen.candidate.path for seen in adapters.find(view, adapters.KINDS, Memory())]
    assert len(listed) < 80
