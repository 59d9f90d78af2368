"""What a run wants of the Hub: settings of the pod above those of the grant. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from relay_agent.config import Settings
from relay_agent.fork_from import ForkFrom
from relay_agent.hub.layout import Lineage, repo_of, repo_trouble
from relay_agent.hub.protocol import Where
from relay_agent.secret_words import known
from relaytui.wire.messages import RunConfig
from relaytui.wire.text import sayable


@dataclass(frozen=True)
class Wish:
    where: Where
    dry: bool
    push: tuple[str, ...]  # empty: all files; `weights`; patterns
    interval: float  # seconds
    on_improve: bool
    keep: int  # steps on the Hub; 0: all
    end_wait: float  # seconds that the end of a run waits for the last sync
    base_model: str
    rollouts: tuple[Path, str] | None  # below the output folder, and a pattern
    cache: str

    @property
    def words(self) -> str:
        what = "all files" if not self.push else "weights only" if self.push == ("weights",) else " ".join(self.push)
        every = f"every {self.interval:g} s" if self.interval else "after every checkpoint"
        kept = f", the newest {self.keep} stay" if self.keep else ""
        return f"{self.where.repo}: {what}, {every} and at the end{kept}"

    @property
    def choices(self) -> str:
        """The same for what puts the same files of a checkpoint at the same place."""
        which = (self.where.endpoint.rstrip("/"), self.where.repo, self.push)
        return hashlib.sha256(msgspec.json.encode(which)).hexdigest()[:16]


def wish_of(settings: Settings, config: RunConfig) -> Wish:
    """Of a run that has a repository."""
    rollouts = (settings.rollout_trajectory_root, settings.rollout_trajectory_pattern)
    return Wish(
        where=Where(
            repo_of(settings.hf_repo or config.hf_repo, settings.run_id), settings.hf_token, settings.hf_endpoint,
            settings.hf_private, xet=settings.hf_xet, secrets=_sayable(known()),
        ),
        dry=settings.hf_dry_run,
        push=settings.hf_push,
        interval=float(config.hf_sync_interval_sec),
        on_improve=config.hf_push_on_improve,
        keep=settings.hf_keep_last_n,
        end_wait=settings.hf_end_wait,
        base_model="" if settings.base_model.startswith("/") else settings.base_model,
        rollouts=rollouts if settings.save_rollout_trajectories else None,
        cache=str(settings.agent_state / "hub"),
    )  # fmt: skip


def _sayable(secrets: dict[str, str]) -> dict[str, str]:
    """One that is no UTF-8 stands in no text that goes there, and in no job."""
    return {word: label for word, label in secrets.items() if sayable(word) == word}


def lineage_of(wish: Wish, fork: ForkFrom | None) -> Lineage:
    """Where the run comes from, as its settings say."""
    if fork is None:
        return Lineage(base_model=wish.base_model)
    tag = fork.tag or (f"step-{fork.step}" if fork.step is not None else "")
    return Lineage(wish.base_model, fork.repo, fork.run_id, tag)


def trouble(wish: Wish) -> tuple[str, str] | None:
    """Why nothing can come of it, as far as one can tell without asking anybody, and what to do about it."""
    if wrong := repo_trouble(wish.where.repo):
        return f"HF_REPO {wish.where.repo!a} is no name of a repository", wrong
    if not wish.dry and not wish.where.token:
        return "HF_TOKEN is not set", "set it to a token that may write there"
    return None
