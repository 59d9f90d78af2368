"""Names in an environment that are probably slips: each unknown one of Relay's own, and what is nearly one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

PREFIX = "RELAY_"
OURS = frozenset(
    PREFIX + name
    for name in (
        # the commander's, and relay-tui's
        "ALLOW_NETWORK_STATE", "ARTIFACT_KEEP_LAST_N", "ARTIFACT_QUOTA", "ARTIFACT_RESERVE", "ARTIFACT_RUN_QUOTA",
        "CKPT_INTERVAL", "CKPT_KEEP_LAST_N", "COMMANDER_STATE", "HF_PUSH_ON_IMPROVE", "HF_REPO", "HF_SYNC_INTERVAL",
        "HOST", "LEASE_SECONDS", "MAX_NO_PROGRESS", "MAX_RUNS", "PUBLIC_HOSTS", "TELEMETRY_BYTES", "TELEMETRY_DAYS",
        "TELEMETRY_RUN_BYTES", "TLS_PROXY", "TOKEN",
        # an agent's
        "AGENT", "AGENT_STATE", "L1_ROOT", "LAUNCHERS", "ROLLOUT_TRAJECTORY_PATTERN", "ROLLOUT_TRAJECTORY_ROOT",
        "RUN_CONFIG", "SAVE_ROLLOUT_TRAJECTORIES", "SETTLE_SECONDS", "SHARED_SECRET", "STOP_GRACE",
        # what a trainer is told
        "BASE_MODEL", "CKPT_STAGING_ROOT", "EPOCH", "GUARD", "OUTPUT_DIR", "RESUME_ARGS", "RESUME_FROM", "RUN_ID",
        "RUN_ROOT", "SAVE_FILE", "SLIME_STATE", "STAMP", "TRAIN_MODE",
        # for tests
        "FAULTS", "SENDING_FAULT",
    )
)  # fmt: skip
"""Whoever reads them: one file of variables may serve pods and commander."""
LEAST = 8
"""Letters that a name must have for another one to be taken for a slip of it: `NODE` is not `MODE`."""
_SERVICE = re.compile(r"_(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)\Z")
"""What Kubernetes sets in each pod for a service, which may be called relay."""


def slips(names: Iterable[str], others: Collection[str] = ()) -> list[tuple[str, str]]:
    """Each with the name that was probably meant, or empty: one that begins as ours do, or is within one edit of a name
    in `others`, which are known, too. In order of the alphabet."""
    known = OURS.union(others)
    far = [name for name in others if len(name) >= LEAST]
    found = []
    for name in sorted(set(names) - known):
        ours = name.startswith(PREFIX)
        if _SERVICE.search(name) or not (ours or len(name) >= LEAST - 1):
            continue
        near = min((each for each in (known if ours else far) if _one_edit(name, each)), default="")
        if name.removeprefix(PREFIX) in others:
            near = name.removeprefix(PREFIX)
        if ours or near:
            found.append((name, near))
    return found


def _one_edit(name: str, other: str) -> bool:
    """One letter more, less or another, or two that changed places. An S at the end makes another word."""
    if name == f"{other}S" or other == f"{name}S":
        return name.startswith(PREFIX)
    if abs(len(name) - len(other)) > 1:
        return False
    at = next((at for at, (one, two) in enumerate(zip(name, other, strict=False)) if one != two), None)
    if at is None:
        return True
    swapped = name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :]
    return other[at:] == swapped or name[at + 1 :] in (other[at + 1 :], other[at:]) or name[at:] == other[at + 1 :]


def sentence(name: str, near: str) -> tuple[str, str]:
    """What is wrong, and what to do."""
    shown = name if name.isascii() and name.isprintable() and len(name) <= 80 else f"{name[:80]!a}"
    todo = f"did you mean {near}?" if near else "correct its name, or unset it"
    return f"the environment: {shown} is no setting of Relay's, and is not read", todo
