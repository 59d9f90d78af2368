"""What an attempt puts together for its trainer: how its progress is read, and who publishes what it saves."""

from __future__ import annotations

from relay_agent.attempt.holding import Holding
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.taking import Taking
from relay_agent.config import Settings
from relay_agent.outcome.stop import Stop
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.process import say
from relay_agent.reading.patterns import patterns
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder
from relay_agent.watchdog.resumed import Resumed
from relaytui.wire.clock import Clock

MARKS = {"auto": None, "always": True, "never": False}
"""COMPLETE_MARKER: whether the trainer marks what is whole."""


def progress_of(settings: Settings, step: int) -> Progress:
    """Of a trainer that goes on from `step`."""
    own = patterns(settings.patterns, say)
    return Progress(0 if settings.counter_restarts else step, settings.target_steps, own)


def publisher_of(
    settings: Settings,
    folder: RunFolder,
    launch: Launch,
    holding: Holding,
    tenure: Tenure,
    stop: Stop,
    clock: Clock,
    follower: Follower,
    taking: Taking,
    resumed: Resumed,
) -> Publisher:
    """Of what is saved in the lease's epoch; `resumed` and `follower` hear of it."""
    publisher = Publisher(
        folder,
        holding.lease.epoch,
        settings.mode,
        launch.name,
        settings.settle_seconds,
        holding.config.ckpt_keep_last_n,
        clock,
        resumed,
        taking=taking,
        retention=settings.retention,
        metric=follower.known,
        held=lambda: tenure.held,
        safe=lambda: tenure.safe,
        on_fenced=tenure.fenced,
        healthy=follower.well,
        check=stop.unless_hurried,
        patient=lambda: stop.patient,
        marks=MARKS[settings.complete_marker],
    )
    resumed.publisher, follower.on_first_step = publisher, resumed.stepped
    return publisher
