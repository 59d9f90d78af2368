"""Names in an environment that are probably slips: each unknown one of Relay's own, and what is nearly one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

PREFIX = "RELAY_"
COMMANDERS = frozenset(
    PREFIX + name
    for name in (
        "ALLOW_NETWORK_STATE", "ARTIFACT_KEEP_LAST_N", "ARTIFACT_QUOTA", "ARTIFACT_RESERVE", "ARTIFACT_RUN_QUOTA",
        "CKPT_INTERVAL", "CKPT_KEEP_LAST_N", "COMMANDER_STATE", "HF_PUSH_ON_IMPROVE", "HF_REPO", "HF_SYNC_INTERVAL",
        "HOST", "LEASE_SECONDS", "MAX_NO_PROGRESS", "MAX_RUNS", "PUBLIC_HOSTS", "TELEMETRY_BYTES", "TELEMETRY_DAYS",
        "TELEMETRY_RUN_BYTES", "TLS_PROXY",
    )
)  # fmt: skip
"""What the commander alone reads."""
THERE = "set it where `relay-tui serve` runs"
TRAINERS = frozenset(
    PREFIX + name
    for name in (
        "BASE_MODEL", "CKPT_STAGING_ROOT", "EPOCH", "LAUNCHERS", "OUTPUT_DIR", "RESUME_ARGS", "RESUME_FROM", "RUN_ID",
        "RUN_ROOT", "SAVE_FILE", "TRAIN_MODE",
    )
)  # fmt: skip
"""What an agent tells its trainer, whatever its own environment says."""
OURS = (
    COMMANDERS
    | TRAINERS
    | frozenset(
        PREFIX + name
        for name in (
            # relay-tui's
            "TOKEN",
            # an agent's
            "AGENT", "AGENT_STATE", "L1_ROOT", "ROLLOUT_TRAJECTORY_PATTERN", "ROLLOUT_TRAJECTORY_ROOT", "RUN_CONFIG",
            "SAVE_ROLLOUT_TRAJECTORIES", "SETTLE_SECONDS", "SHARED_SECRET", "STOP_GRACE",
            # of what runs below an agent
            "GUARD", "SLIME_STATE", "STAMP",
            # for tests
            "FAULTS", "SENDING_FAULT",
        )
    )
)  # fmt: skip
"""Whoever reads them: one file of variables may serve pods and commander."""
LEAST = 8
"""Letters that a name must have for another one to be taken for a slip of it: `NODE` is not `MODE`."""
SIMILAR = 0.8
"""How much two names have in common at least, of 1, for one to be hinted at."""
_SAME = {"COMMAND": "CMD", "TRAINER": "TRAIN", "TRAINING": "TRAIN", "REPOSITORY": "REPO", "SECS": "SECONDS"}
"""What people write for words in our names."""
_FAMILIES = ("HF_", "SLIME_")
"""How names begin that others have, too: such a one is a slip only where it is similar to one of ours."""
_OTHERS = re.compile(r"HF_(?:HOME|HUB|XET|DATASETS|TOKEN_PATH)(?:_|\Z)")
_SERVICE = re.compile(r"_(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)\Z")
"""What Kubernetes sets in each pod for a service, which may be called relay."""


def slips(names: Iterable[str], others: Collection[str] = ()) -> list[tuple[str, str]]:
    """Each with the name that was probably meant, or empty: one that begins as ours do, or is similar to a name in
    `others`, which are known, too. In order of the alphabet."""
    known = OURS.union(others)
    return [
        (name, near)
        for name in sorted(set(names) - known)
        if not _SERVICE.search(name) and ((near := _meant(name, known, others)) or name.startswith(PREFIX))
    ]


def _meant(name: str, known: Collection[str], others: Collection[str]) -> str:
    if name.startswith(PREFIX):
        return nearest(name, known)
    if not others or len(name) < LEAST - 1 or _OTHERS.match(name):
        return ""
    if name.startswith(_FAMILIES):
        return PREFIX + name if PREFIX + name in known else nearest(name, others)
    far = [each for each in others if len(each) >= LEAST]
    return _same_words(name) if _same_words(name) in far else _by_one_edit(name, far)


def nearest(name: str, known: Collection[str]) -> str:
    """The names in `known` that are really similar, one or two joined by "or"; empty: none. With or without RELAY_."""
    if near := _by_one_edit(name, known):
        return near
    import difflib  # only where something is wrong

    plain = {_same_words(each.removeprefix(PREFIX)): each for each in sorted(known, reverse=True)}
    wanted = _same_words(name.removeprefix(PREFIX))
    if wanted in plain:
        return plain[wanted]
    return " or ".join(plain[each] for each in difflib.get_close_matches(wanted, plain, n=2, cutoff=SIMILAR))


def _same_words(name: str) -> str:
    return "_".join(_SAME.get(word, word) for word in name.split("_"))


def _by_one_edit(name: str, known: Iterable[str]) -> str:
    return min((each for each in known if _one_edit(name, each)), default="")


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
