"""What a watchdog is told: how long a phase may be quiet, and what is done then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from relay_agent.config import Settings
from relay_agent.watchdog.diverging import Bad
from relay_agent.watchdog.stalls import Budgets

Loss = Literal["warn", "stop", "rollback"]


@dataclass(frozen=True)
class Rules:
    budgets: Budgets = field(default_factory=Budgets)
    on_stall: Literal["warn", "restart"] = "warn"
    on_nan: Loss = "warn"
    on_diverge: Loss = "warn"
    rollbacks: int = 2
    """How often a run goes back, at most, in all its attempts."""

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        budgets = Budgets(
            settings.stall_start, settings.stall_load, settings.stall_step, settings.stall_eval, settings.stall_save
        )
        return cls(budgets, settings.on_stall, settings.on_nan, settings.on_diverge, settings.rollbacks)

    @property
    def acts_on_loss(self) -> bool:
        """Whether a loss that goes bad stops the trainer: then it is to be heard of as soon as it is printed."""
        return (self.on_nan, self.on_diverge) != ("warn", "warn")

    def on(self, bad: Bad) -> Loss:
        return self.on_nan if bad is Bad.NONFINITE else self.on_diverge
