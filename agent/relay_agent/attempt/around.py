"""What an attempt has round it, for the parts of it that need much of that."""

from __future__ import annotations

import random
from dataclasses import dataclass

from relay_agent.attempt.holding import Holding
from relay_agent.attempt.orders import Orders
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure, is_ours
from relay_agent.config import Settings
from relay_agent.outcome.stop import Stop
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock


@dataclass(frozen=True)
class Around:
    settings: Settings
    folder: RunFolder
    launch: Launch
    holding: Holding
    tenure: Tenure
    orders: Orders
    tell: Teller
    stop: Stop
    clock: Clock
    rng: random.Random

    def mine(self) -> bool:
        """Blocking; OSError."""
        return is_ours(self.tenure, self.folder)

    @property
    def names_hub(self) -> bool:
        return bool(self.settings.hf_repo or self.holding.config.hf_repo)
