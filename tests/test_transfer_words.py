"""How far transfers are, in words: each state has its own, and what is old, over or unknown is not shown as news."""

from __future__ import annotations

from typing import Any

import pytest
from dashboard_fleet import run
from msgspec.structs import replace
from scripted_commander import NOW

from relaytui.client.transfers import hub_sign, store_sign, syncs_in_words, transfer_lines
from relaytui.wire.rows import RunRow, TransferRow
from relaytui.wire.status import RunStatus, TransferKind, TransferPhase

HUB, STORE, RESTORE = TransferKind.HUB, TransferKind.ARTIFACT, TransferKind.RESTORE
SYNCED: dict[str, Any] = {
    "synced_step": 250, "synced_at": NOW - 720, "synced_repo": "me/run", "synced_revision": "a1b2c3d4e5",
    "newest_step": 300,
}  # fmt: skip
THERE = "on the hub  step 250  12m ago | newest 300 not yet | me/run | a1b2c3d4"


def hub(phase: str = "uploading", **changes: Any) -> TransferRow:
    row = TransferRow(HUB, 3, NOW - 1, 300, None, TransferPhase(phase), 1_300_000_000, 4_000_000_000, 85e6)
    return replace(row, **changes)


def said(row: RunRow) -> list[str]:
    return [" | ".join("".join(word.text for word in group) for group in line) for line in transfer_lines(row, NOW)]


@pytest.mark.parametrize(
    ("transfer", "words", "sign"),
    [
        (hub(), "hub  uploading step 300 | 1.3 GB/4 GB  32% | 85 MB/s | eta 0:31", "↑ 32%"),
        (hub(attempt=2), "hub  uploading step 300, try 2 | 1.3 GB/4 GB  32% | 85 MB/s | eta 0:31", "↑ 32%"),
        (hub(rate=None), "hub  uploading step 300 | 1.3 GB/4 GB  32%", "↑ 32%"),
        (hub(rate=1e-12), "hub  uploading step 300 | 1.3 GB/4 GB  32% | 0 B/s", "↑ 32%"),
        (hub(done=9 * 10**9, rate=None), "hub  uploading step 300 | 9 GB/4 GB  100%", "↑ 100%"),
        (hub(total=0), "hub  uploading step 300", "↑"),
        (hub("hashing", rate=None), "hub  hashing step 300 | 1.3 GB/4 GB  32%", "hash"),
        (hub("commit"), "hub  committing step 300", "commit"),
        (hub("tag"), "hub  tagging step 300", "tag"),
        (hub("pruning"), "hub  pruning older ones", "prune"),
        (hub("waiting", total=0), "hub  step 300 waits for its turn", "wait"),
        (hub("waiting", total=0, error="429"), "hub  step 300 waits to be tried again | 429", "wait"),
        (hub("failed", error="no room", attempt=5), "hub  ✗ step 300 failed, try 5  1s ago | no room", "✗ failed"),
        (hub("dry"), "hub  dry run: step 300 would be sent, 4 GB | nothing was | 1s ago", "dry"),
        (hub(at=NOW - 300), "hub  uploading step 300 | nothing heard of it for 5m | 1.3 GB/4 GB  32%", "↑ 32%"),
        (hub(epoch=2), "hub  cut off while uploading step 300 | 1s ago", "–"),
        (hub("waiting", epoch=2), "hub  cut off while waiting to send step 300 | 1s ago", "–"),
    ],
)
def test_each_state_of_a_sync_has_its_words(transfer: TransferRow, words: str, sign: str) -> None:
    row = run("r", transfers=[transfer])
    assert said(row) == [words]
    assert hub_sign(row).text == sign
    assert len(sign) <= 8, "the column's width"


def test_what_is_on_the_hub_is_said_in_the_end_and_alone_where_nothing_moves() -> None:
    assert said(run("r", **SYNCED)) == [THERE]
    assert said(run("r", transfers=[hub("done")], **SYNCED)) == [THERE]
    assert said(run("r", transfers=[hub("tag")], **SYNCED))[1:] == [THERE]
    assert hub_sign(run("r", **SYNCED)).text == "250"
    there = run("r", **SYNCED | {"newest_step": 250})
    assert said(there) == ["on the hub  step 250  12m ago | me/run | a1b2c3d4"]
    original = run("r", synced_at=NOW - 5, synced_repo="me/m")
    assert (said(original), hub_sign(original).text) == (["on the hub  synced  5s ago | me/m"], "✓")


def test_a_run_that_has_to_do_with_neither_says_nothing() -> None:
    assert said(run("r")) == []
    assert hub_sign(run("r")) == ("–", "faint")


def test_why_the_last_sync_failed_is_said_once() -> None:
    assert said(run("r", sync_error="no room")) == ["hub  ✗ no room"]
    assert said(run("r", sync_error="no room", **SYNCED))[0].endswith("| ✗ no room | me/run | a1b2c3d4")
    both = run("r", sync_error="no room (403)", transfers=[hub("failed", error="no room")], **SYNCED)
    assert said(both) == ["hub  ✗ step 300 failed  1s ago | no room", THERE]
    assert hub_sign(run("r", sync_error="no room", **SYNCED)).text == "✗ failed"


def test_of_a_run_that_is_over_nothing_goes_on() -> None:
    row = run("r", RunStatus.COMPLETED, transfers=[hub(), hub(kind=STORE)])
    assert said(row) == [
        "hub  cut off while uploading step 300 | 1s ago",
        "store  cut off while uploading step 300 | 1s ago",
    ]


def test_a_restore_is_news_for_a_while() -> None:
    back = TransferRow(RESTORE, 3, NOW - 10, 300, None, TransferPhase.DOWNLOADING, 10, 40, 5.0)
    assert said(run("r", RunStatus.LEASED, transfers=[back])) == [
        "restore  downloading step 300 | 10 B/40 B  25% | 5 B/s | eta 0:06"
    ]
    done = replace(back, phase=TransferPhase.DONE, done=40)
    assert said(run("r", transfers=[done])) == ["restore  ✓ step 300 was brought back, 40 B | 10s ago"]
    assert said(run("r", transfers=[replace(done, at=NOW - 3_600)])) == []
    assert said(run("r", epoch=4, transfers=[done])) == []


def test_all_runs_in_a_line() -> None:
    assert syncs_in_words([run("a"), run("b")]) == ""
    rows = [run("a", **SYNCED), run("b", transfers=[hub()], **SYNCED), run("c", sync_error="x"), run("d")]
    assert syncs_in_words(rows) == "2 on the hub, 1 on the way, 1 failed"


def test_a_failure_of_an_attempt_that_was_replaced_is_none_of_the_run() -> None:
    """The run showed a red `✗ failed` for as long as its next holder stored nothing, and not what is stored."""
    lost = TransferRow(STORE, 2, NOW - 480, 380, None, TransferPhase.FAILED, error="the lease is not ours any more")
    row = run("r", transfers=[lost], stored_step=272)
    assert store_sign(row) == ("272", "text")
    assert said(row) == ["store  step 380 failed in an attempt that is over  8m ago | the lease is not ours any more"]
    assert {word.tone for line in transfer_lines(row, NOW) for group in line for word in group} == {"muted"}
    assert store_sign(replace(row, stored_step=None)).text == "–"
    assert store_sign(replace(row, epoch=2)).text == "✗ failed", "its own"
    assert said(replace(row, stored_step=380)) == [], "it is there"
    for status in (RunStatus.QUEUED, RunStatus.COMPLETED):
        assert store_sign(run("r", status, transfers=[lost], stored_step=272)).text == "272"
    brought = replace(lost, kind=RESTORE, error="no room")
    assert said(run("r", transfers=[brought])) == [
        "restore  step 380 failed in an attempt that is over  8m ago | no room"
    ]
    assert hub_sign(run("r", transfers=[hub("failed", epoch=2)], **SYNCED)).text == "250"
    assert hub_sign(run("r", transfers=[hub("failed", epoch=2)], sync_error="no room")).text == "✗ failed"
