"""Every kind, by a writer of its format: found by itself among all, never torn, in the right order, and handed back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from taking_kit import SETTLE, Taker, aged, contents, in_memory, never_torn, steps_of, taken
from writers import accelerate, dcp, deepspeed, lightning, small, torchtune, verl
from writers.kit import Steps, run

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.adapters.base import Saved
from relay_agent.checkpoints.handing import hand_out
from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.output_watch import OutputWatch

Files = dict[str, bytes]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory(tmp_path)) as path:
        yield Path(path)


def kept(path: str) -> Callable[[Path, int], Files]:
    """What is published lies below the same path as in the trainer's folder."""

    def whole(out: Path, step: int) -> Files:
        below = path.format(step=step, epoch=step // 10)
        return {f"{below}/{name}": data for name, data in contents(out / below).items()}

    return whole


def named(path: str, *texts: tuple[str, str]) -> Callable[[Path, int], Files]:
    """It keeps the last part of its path, and trackers are written beside it."""

    def whole(out: Path, step: int) -> Files:
        at = out / path.format(step=step, epoch=step // 10)
        found = {at.name: at.read_bytes()} if at.is_file() else {f"{at.name}/{n}": d for n, d in contents(at).items()}
        return found | {name: text.format(step=step).encode() for name, text in texts}

    return whole


def ppo(out: Path, step: int) -> Files:
    roles = {f"{role}/global_step{step}": role for role in ("_actor", "_critic")}
    found = {f"{path}/{name}": data for path in roles for name, data in contents(out / path).items()}
    return found | {f"{role}/latest": f"global_step{step}".encode() for role in roles.values()}


def last_pt(out: Path, step: int) -> Files:
    return {"train/weights/last.pt": (out / "train" / "weights" / "last.pt").read_bytes()}


def beside(out: Path, step: int) -> Files:
    return kept("epoch_{step}")(out, step) | kept("recipe_state")(out, step)


class Kind(NamedTuple):
    name: str
    save: Callable[[Path, int], Steps]
    whole: Callable[[Path, int], Files]
    resume: tuple[str, str] = ("{ckpt}", "")  # RELAY_RESUME_FROM and RELAY_RESUME_ARGS after step 2
    seeds: tuple[str, ...] = ()


def with_args(path: str, args: str) -> tuple[str, str]:
    return path, args.replace("@", path)


FLAG = "--resume_from_checkpoint @"
SHARDED = with_args("{ckpt}/epoch=0-step=2.ckpt", "--ckpt_path @")
KINDS = {
    "accelerate": Kind(
        "accelerate", accelerate.save, named("checkpoint_{step}"), with_args("{ckpt}/checkpoint_2", FLAG)
    ),
    "accelerate, 2 ranks, custom objects": Kind(
        "accelerate",
        lambda out, step: accelerate.save(out, step, ranks=2, customs=2),
        named("checkpoint_{step}"),
        with_args("{ckpt}/checkpoint_2", FLAG),
    ),
    "accelerate, FSDP, an example's name": Kind(
        "accelerate",
        lambda out, step: accelerate.save(out, step, fsdp=True, name="step_{step}"),
        named("step_{step}"),
        with_args("{ckpt}/step_2", FLAG),
    ),
    "diffusers": Kind(
        "diffusers",
        lambda out, step: accelerate.diffusers(out / "flux", step, keep=2),
        kept("flux/checkpoint-{step}"),
        ("{ckpt}/flux/checkpoint-2", "--resume_from_checkpoint {output}/flux/checkpoint-2"),
        ("flux/checkpoint-2",),
    ),
    "simpletuner": Kind(
        "simpletuner",
        accelerate.simpletuner,
        kept("checkpoint-{step}"),
        ("{ckpt}/checkpoint-2", "--resume_from_checkpoint {output}/checkpoint-2"),
        ("checkpoint-2",),
    ),
    "simpletuner, rolling, in its place": Kind(
        "simpletuner",
        lambda out, step: accelerate.simpletuner(out, step, temporary=False, rolling=True),
        kept("checkpoint-{step}-rolling"),
        ("{ckpt}/checkpoint-2-rolling", "--resume_from_checkpoint {output}/checkpoint-2-rolling"),
        ("checkpoint-2-rolling",),
    ),
    "kohya": Kind(
        "kohya",
        accelerate.kohya,
        named("lora-step{step:08d}-state"),
        with_args("{ckpt}/lora-step00000002-state", "--resume @"),
    ),
    "deepspeed": Kind("deepspeed", deepspeed.save, named("global_step{step}", ("latest", "global_step{step}"))),
    "deepspeed, a rank that is late": Kind(
        "deepspeed",
        lambda out, step: deepspeed.save(out, step, ranks=2, late=1),
        named("global_step{step}", ("latest", "global_step{step}")),
    ),
    "openrlhf": Kind("openrlhf", deepspeed.ppo, ppo, with_args("{ckpt}", "--ckpt.load_enable --ckpt.path @")),
    "openrlhf, FSDP": Kind(
        "openrlhf",
        lambda out, step: deepspeed.ppo(out, step, fsdp=True),
        ppo,
        with_args("{ckpt}", "--ckpt.load_enable --ckpt.path @"),
    ),
    "torchtitan": Kind(
        "torchtitan",
        lambda out, step: dcp.save(out / "checkpoint", step),
        kept("checkpoint/step-{step}"),
        ("{ckpt}/checkpoint/step-2", ""),
        ("checkpoint/step-2",),
    ),
    "torchtune": Kind(
        "torchtune",
        torchtune.save,
        kept("epoch_{step}"),
        ("{ckpt}/epoch_2", "resume_from_checkpoint=True"),
        ("epoch_2",),
    ),
    "verl": Kind(
        "verl",
        lambda out, step: verl.save(out, step, keep=2, critic=False),
        named("global_step_{step}", (verl.TRACKER, "{step}")),
        with_args("{ckpt}/global_step_2", "trainer.resume_mode=resume_path trainer.resume_from_path=@"),
    ),
    "lightning": Kind(
        "lightning",
        lambda out, step: lightning.save(out / "lightning_logs" / "version_0" / "checkpoints", step, last=True),
        named("lightning_logs/version_0/checkpoints/epoch={epoch}-step={step}.ckpt"),
        SHARDED,
    ),
    "lightning, from another filesystem": Kind(
        "lightning",
        lambda out, step: lightning.save(out, step, copied=True),
        named("epoch={epoch}-step={step}.ckpt"),
        SHARDED,
    ),
    "lightning, FSDP": Kind("lightning", lightning.sharded, named("epoch={epoch}-step={step}.ckpt"), SHARDED),
    "lightning, DeepSpeed": Kind(
        "lightning",
        lambda out, step: lightning.sharded(out, step, strategy="deepspeed"),
        named("epoch={epoch}-step={step}.ckpt"),
        SHARDED,
    ),
    "orbax": Kind("orbax", lambda out, step: small.orbax(out / "ck", step), kept("ck/{step}"), ("{ckpt}/ck", ""),
                  ("ck/2",)),
    "orbax on an object store": Kind(
        "orbax", lambda out, step: small.orbax(out, step, slow=True), kept("{step}"), ("{ckpt}", ""), ("2",)
    ),
    "ultralytics": Kind(
        "ultralytics",
        small.ultralytics,
        last_pt,
        with_args("{ckpt}/train/weights/last.pt", "resume=True model=@ save_dir={output}/train"),
    ),
    "keras": Kind("keras", small.keras, named("ck-{step:02d}.keras"), ("{ckpt}/ck-02.keras", "")),
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "openrlhf, FSDP"])
def test_it_is_never_torn_whenever_it_dies(place: Path, kind: str) -> None:
    """Among all kinds, so that no other one takes it for its own on the way."""
    case = KINDS[kind]
    out = place / "out"
    out.mkdir()
    assert 2 in never_torn(place, case.save, case.whole)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_found_by_itself_and_handed_back(place: Path, kind: str) -> None:
    case = KINDS[kind]
    taker = taken(place, lambda out: case.save(out, 1), lambda out: case.save(out, 2))
    assert steps_of(taker) == {1: case.name, 2: case.name}
    sealed = max(published(taker.run)[0], key=lambda each: each.manifest.seq)
    output = taker.run.output(2)
    handed = hand_out(taker.run, 2, sealed.path, output)
    assert handed.there == ()
    named = {"{ckpt}": str(sealed.path), "{output}": str(output)}
    for word, path in named.items():
        case = case._replace(resume=tuple(each.replace(word, path) for each in case.resume))  # type: ignore[arg-type]
    assert (handed.path, handed.args) == case.resume
    assert Path(handed.path).exists()
    assert contents(output) == {
        name: data for name, data in contents(sealed.path).items() if name.startswith(case.seeds) and case.seeds
    }
    watch = OutputWatch(output, taker.run.staging(2), SETTLE, taker.clock)
    before = watch.begin()
    assert bool(before) is bool(case.seeds), "what was put there is seen"
    assert watch.scan(0) == [], "and not taken again"


# -- in place ----------------------------------------------------------------------------------------------------


IN_PLACE: dict[str, tuple[str, Callable[[Path, int], Steps], Callable[[Path, int], Files]]] = {
    "accelerate": ("accelerate", lambda out, step: accelerate.save(out, step, name="last"), named("last")),
    "dcp": ("dcp", lambda out, step: dcp.fill(out / "checkpoint", str(step)), named("checkpoint")),
    "keras": ("keras", small.backup, kept("backup")),
    "lightning": (
        "lightning",
        lambda out, step: lightning.save(out, step, name="", last=True, copied=True),
        named("last.ckpt"),
    ),
    "ultralytics": ("ultralytics", small.ultralytics, last_pt),
    "torchtune": ("torchtune", lambda out, step: torchtune.save(out, step, beside=True), beside),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_is_written_over_is_never_a_mixture(place: Path, kind: str) -> None:
    """An agent that comes late meets the first half of the new one and the second half of the old one."""
    name, save, whole = IN_PLACE[kind]
    wanted = []
    for step in (1, 2):
        run(save(place / "reference", step))
        wanted.append(whole(place / "reference", step))
    count = len(run(save(place / "reference", 3)))
    seen = set()
    for died in range(count + 1):
        taker = Taker(place / f"world-{died}", kinds=(adapters.BY_NAME[name],))
        (taker.staging / ".seen.json").unlink()
        run(save(taker.out, 1))
        aged(taker.out)
        doing = save(taker.out, 2)
        for _ in range(died):
            next(doing, None)
        doing.close()
        for seconds in (0.0, SETTLE + 1):
            taker.steps(seconds)
        for sealed in published(taker.run)[0]:
            found = contents(sealed.path)
            assert found in wanted, died
            seen.add(wanted.index(found))
    assert seen == {0, 1}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_is_written_over_is_not_linked(place: Path, kind: str) -> None:
    name, save, whole = IN_PLACE[kind]
    taker = taken(place, lambda out: save(out, 1))
    (sealed,) = published(taker.run)[0]
    assert sealed.manifest.adapter == name
    before = contents(sealed.path)
    assert before == whole(taker.out, 1)
    run(save(taker.out, 2))
    assert contents(sealed.path) == before
    taker.steps()
    taker.steps(SETTLE + 1)
    assert len(published(taker.run)[0]) == 2, "the next save under the same name is another one"


@pytest.mark.parametrize("adapter", adapters.KINDS, ids=lambda adapter: adapter.name)
def test_a_plan_of_anything_is_a_plan(adapter: adapters.Adapter) -> None:
    """A manifest may list what no trainer of this kind saves."""
    for files in ((), ("x",), ("a/b/c", "latest"), ("checkpoint_3/random_states_0.pkl",)):
        plan = adapter.plan(Saved(5, files))
        assert plan.path.startswith("{ckpt}")
        assert not plan.path.endswith("/")
        assert all(put.target and not put.target.startswith("/") for put in plan.seeds)


def test_the_docs_name_every_kind() -> None:
    table = (Path(__file__).resolve().parents[1] / "docs" / "trainers.md").read_text()
    assert [name for name in adapters.BY_NAME if f"\n| `{name}`" not in table] == []
