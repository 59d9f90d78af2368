"""Where Relay looks for what a trainer saves, and how one comes to save there, in words: a pod may have no docs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from relay_agent.config import Settings

STAGING = "$RELAY_CKPT_STAGING_ROOT"
CURE = (
    'give it the folder by its own flag for that (--output_dir "$RELAY_OUTPUT_DIR" "$@"), '
    "set CHECKPOINT_DIR to the whole path of where it saves, or let it save into $RELAY_CKPT_STAGING_ROOT/step_<N>/, "
    "an empty file COMPLETE last"
)


def names(settings: Settings) -> Iterator[str]:
    """Of the folders, as a command or run.yaml has them."""
    yield STAGING
    if settings.checkpoints != "none":
        yield own_name(settings)


def own_name(settings: Settings) -> str:
    """What the trainer's own folder is called."""
    return "CHECKPOINT_DIR" if settings.checkpoint_dir != Path() else "$RELAY_OUTPUT_DIR"


def places(settings: Settings) -> str:
    """What is looked for where, before there is an attempt."""
    if settings.checkpoints == "none":
        return f"looked for in {STAGING} alone, as step_<N>/ (CHECKPOINTS is none)"
    kinds = "those that Relay knows" if settings.checkpoints == "auto" else f"those of {settings.checkpoints}"
    own = settings.l1_root / "runs" / settings.run_id / "out" / "e<epoch>" / settings.checkpoint_dir
    return f"looked for in {own_name(settings)} ({own!s:.300}), {kinds}, and in {STAGING}, as step_<N>/"
