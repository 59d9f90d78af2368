"""What the dashboard shows of syncs, restores and artifacts, and `u`."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from dashboard_fleet import ATTEMPTS, CHECKPOINTS, RUNS, commander, run
from dashboard_rig import Rig, dashboard
from msgspec.structs import replace
from scripted_commander import NOW, ScriptedCommander, snapshot
from test_dashboard_screens import HOSTILE
from test_transfer_words import SYNCED, hub

from relaytui.client.answers import RunDetail
from relaytui.dashboard.screens.run import RunScreen
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.feed import ArtifactChanged, ArtifactGone, CheckpointChanged, RunChanged
from relaytui.wire.rows import CheckpointRow, RunRow, TransferRow
from relaytui.wire.status import TransferKind, TransferPhase

__all__ = ["commander"]

NAME = "sft-shakespeare"


def artifact(number: int, **changes: Any) -> ArtifactRow:
    name = f"step_{number:08d}"
    row = ArtifactRow(
        number, NAME, ArtifactKind.CHECKPOINT, name, "ab" * 32, 4_100_000_000, NOW - 60, "pod-a", 3, number
    )
    return replace(row, **changes)


async def opened(rig: Rig) -> None:
    """The run's own screen, with all that is read for it."""
    await rig.becomes(lambda: rig.app.mirror.loaded)
    rig.app.push_screen(RunScreen(NAME))
    await rig.becomes(lambda: rig.app.mirror.picture(NAME).loaded)


def shown(
    commander: ScriptedCommander, row: RunRow, checkpoints: list[CheckpointRow] = CHECKPOINTS, *stored: ArtifactRow
) -> None:
    commander.greeting = [snapshot([row, *RUNS[1:]])]
    commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, row, ATTEMPTS, checkpoints, list(stored)))


async def test_a_sync_moves_on_the_screen_and_ends_in_what_is_there(commander: ScriptedCommander) -> None:
    row = replace(RUNS[0], transfers=[hub(attempt=2)], **SYNCED)
    shown(commander, row)
    async with dashboard(commander) as rig:
        await opened(rig)
        text = await rig.shows("hub  uploading step 300, try 2", "1.3 GB/4 GB  32%", "85 MB/s", "eta 0:3", "me/run")
        assert "on the hub  step 250" in text
        assert "newest 300 not yet" in text
        assert "no lines yet" in text, "the log is still there"
        assert "checkpoint" in text
        await commander.tell(RunChanged(NOW, replace(row, transfers=[hub(done=3_960_000_000)])))
        await rig.shows("99%")
        done = replace(row, transfers=[hub("done")], **SYNCED | {"synced_step": 300, "synced_at": NOW})
        await commander.tell(RunChanged(NOW, done))
        await rig.shows("on the hub  step 300", without="uploading")


async def test_why_it_fails_is_read_to_its_end_and_is_no_markup(commander: ScriptedCommander) -> None:
    why = "private storage of ada is full (403): free some there, or have only the weights synced (HF_SYNC: weights)"
    shown(commander, replace(RUNS[0], transfers=[hub("failed", error=why)]))
    async with dashboard(commander) as rig:
        await opened(rig)
        await rig.shows("hub  ✗ step 300 failed", "private storage of ada is full", "(HF_SYNC: weights)")
        hostile = replace(
            RUNS[0], transfers=[hub("failed", error=HOSTILE)], synced_repo=HOSTILE, synced_at=NOW, sync_error=HOSTILE
        )
        await commander.tell(RunChanged(NOW, hostile))
        text = await rig.shows("[/x] [@click=app.quit]q[/]")
        assert "\x1b" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize("size", [(20, 5), (40, 12), (60, 20), (80, 24), (140, 40)])
async def test_no_size_breaks_it(commander: ScriptedCommander, size: tuple[int, int]) -> None:
    row = replace(
        RUNS[0], transfers=[hub("failed", error="e" * 300), hub(kind="artifact")], sync_error="x" * 300, **SYNCED
    )
    shown(commander, row, CHECKPOINTS, artifact(300), artifact(7, damaged="torn"))
    async with dashboard(commander, size=size) as rig:
        await opened(rig)
        for _ in range(4):
            await rig.press("v")
            rig.app.paint_now()
        assert rig.app.is_running
        assert isinstance(rig.app.screen, RunScreen)


async def test_the_list_says_how_far_each_run_is_on_the_hub(commander: ScriptedCommander) -> None:
    rows = [
        replace(RUNS[0], transfers=[hub()]),
        replace(RUNS[1], sync_error="no room", synced_step=100, synced_at=NOW),
        replace(RUNS[4], synced_step=400, synced_at=NOW),
    ]
    commander.greeting = [snapshot(rows)]
    async with dashboard(commander, size=(140, 24)) as rig:
        lines = (await rig.shows(NAME, "hub")).splitlines()
        ends = {line.split()[0].lstrip("▌"): line.rstrip() for line in lines[:8] if line[1:].startswith(("sft", "rl"))}
        assert ends[NAME].endswith("↑ 32%")
        assert ends["rl-rewrite"].endswith("✗ failed")
        assert ends["sft-baseline"].endswith("400")
        await rig.press("slash", *"failed")
        await rig.shows("1 of 3 with failed")


async def test_at_80_columns_the_selected_run_says_it_below_the_list(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([replace(RUNS[0], transfers=[hub()])])]
    async with dashboard(commander) as rig:
        await rig.shows("epoch 3  ·  heard", "hub ↑ 32%")


async def test_where_each_checkpoint_is(commander: ScriptedCommander) -> None:
    rows = [replace(CHECKPOINTS[0], pruned_at=NOW - 5), replace(CHECKPOINTS[1], hub="step-250"), CHECKPOINTS[2]]
    shown(commander, RUNS[0], rows, artifact(250), artifact(300, damaged="torn"))
    async with dashboard(commander, size=(140, 40)) as rig:
        await opened(rig)

        def where() -> dict[str, str]:
            table = rig.app.screen.query_one("#checkpoints", Table)
            return {row.key: "".join(piece.text for piece in row.cells[1]) for row in table.rows}

        await rig.becomes(lambda: where() == {"step_00000300": "volume", "step_00000250": "vol+hub+store"})
        await rig.shows("vol+hub+store")
        await commander.tell(CheckpointChanged(replace(rows[0], hub="step-200")))
        await rig.becomes(lambda: where().get("step_00000200") == "hub")
        await commander.tell(CheckpointChanged(rows[0]))
        await rig.becomes(lambda: "step_00000200" not in where())


async def test_what_is_stored_has_a_table_and_words_where_there_is_nothing(commander: ScriptedCommander) -> None:
    shown(commander, RUNS[0])
    async with dashboard(commander, size=(100, 30)) as rig:
        await opened(rig)
        for _ in range(3):
            await rig.press("v")
        await rig.shows("the artifact store has nothing of it")
        await commander.tell(ArtifactChanged(artifact(250)))
        await commander.tell(ArtifactChanged(artifact(300, final=True)))
        file = artifact(9, kind=ArtifactKind.FILE, name="eval.json", size=812, step=None)
        await commander.tell(ArtifactChanged(file))
        await rig.shows("eval.json", "812 B", "final", "whole", "abababab", without="nothing of it")
        await commander.tell(ArtifactChanged(artifact(250, damaged="[/x]torn\x1b[2J")))
        await commander.tell(ArtifactGone(NAME, 9))
        await rig.shows("✗ damaged: [/x]torn", without="eval.json")


async def test_u_syncs_now_and_is_not_asked_about(commander: ScriptedCommander) -> None:
    commander.answers["POST", f"/api/runs/{NAME}/sync"] = (200, {"run": RUNS[0], "order_id": 7})
    shown(commander, replace(RUNS[0], synced_repo="me/r"))
    async with dashboard(commander) as rig:
        await opened(rig)
        await rig.press("u")
        await rig.shows("pod-a is asked to sync to the Hub now")
        sent = [orjson.loads(body) for _, path, _, body in commander.requests if path.endswith("/sync")]
        assert sent == [{"expected_epoch": 3, "why": ""}]
        commander.answers["POST", f"/api/runs/{NAME}/sync"] = (
            409, {"error": {"code": "epoch_changed", "message": "run is at epoch 4", "hint": "look again"}}
        )  # fmt: skip
        await rig.press("u")
        await rig.shows("is not asked to sync: run is at epoch 4")


@pytest.mark.parametrize(
    ("known", "offered"),
    [
        ({}, False),
        ({"transfers": [TransferRow(TransferKind.ARTIFACT, 3, NOW, 300)]}, False),
        ({"transfers": [TransferRow(TransferKind.HUB, 3, NOW, 300, phase=TransferPhase.DRY)]}, True),
        ({"synced_repo": "me/r"}, True),
        ({"synced_at": NOW}, True),
        ({"sync_error": "401"}, True),
    ],
)
async def test_a_run_without_a_repository_is_not_offered_to_sync(
    commander: ScriptedCommander, known: dict[str, Any], offered: bool
) -> None:
    """`u sync` was in the key bar and in `?` for each that runs, and its agent refused."""
    shown(commander, replace(RUNS[0], **known))
    async with dashboard(commander, size=(160, 40)) as rig:
        await opened(rig)
        await rig.shows(NAME, "d drain")
        assert ("u sync" in rig.text) == offered
        if not offered:
            await rig.press("u")
            await rig.shows("nothing of sft-shakespeare")
            assert not [path for _, path, _, _ in commander.requests if path.endswith("/sync")]


async def test_what_does_not_run_cannot_sync(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([RUNS[4]])]
    async with dashboard(commander, size=(120, 24)) as rig:
        text = await rig.shows("sft-baseline")
        assert "u sync" not in text
        await rig.press("u")
        await rig.shows("only one that runs can sync")


async def test_how_far_a_run_is_in_safety_is_in_the_list_and_on_its_own_screen(commander: ScriptedCommander) -> None:
    """At 80 columns the newest checkpoint and the Hub were not in the list, and the artifact store at no width."""
    saved = {"newest_checkpoint": "step_00000300", "newest_step": 300, "published": 6, "checkpoints": 4}
    first = run("sft-long", step=340, total=400, rate=12.4, loss=2.3, **saved, synced_step=250, stored_step=200)
    commander.greeting = [snapshot([first, run("other", **saved)])]
    async with dashboard(commander) as rig:
        text = await rig.shows("sft-long")
        header, row = (next(line for line in text.splitlines() if word in line) for word in ("status", "340/400"))
        ends = {word: row[: header.index(word) + len(word)].split()[-1] for word in ("saved", "hub", "store")}
        assert ends == {"saved": "300", "hub": "250", "store": "200"}
        await rig.becomes(lambda: rig.app.target() is not None)
        rig.app.screen.query_one("#runs", Table).select("sft-long")
        await rig.press("enter")
        await rig.shows("newest step_00000300  hub 250  store 200")
        await commander.tell(RunChanged(NOW, replace(first, synced_step=None, stored_step=None)))
        await rig.shows("hub –  store –")
