"""Whether the commander would grant this agent the run now, as far as it says so before it is asked for the lease."""

from __future__ import annotations

from relay_agent.config import Settings
from relay_agent.link.contact import Standing
from relay_agent.sending.examined import Word


def standing(settings: Settings, run: Standing) -> Word:
    run_id, anew = settings.run_id, "or set RUN_ID to the name of another run"
    if run.status.ended:
        why = f"run {run_id} is {run.status.value}: this agent would be refused"
        return Word("warn", why, f"`relay-tui requeue {run_id}` queues it again; {anew}")
    if run.mode != settings.mode:
        why = f"run {run_id} is a {run.mode} run, not {settings.mode}: this agent would be refused"
        return Word("warn", why, f"set MODE to {run.mode}, {anew}")
    if run.holder is None:
        return Word("ok", f"{run_id} is {run.status.value}, and nobody holds it", "")
    if run.holder == settings.worker_id:
        return Word("ok", f"{run_id} is held by this pod", "")
    why = f"run {run_id} is held by {run.holder}: this agent would wait"
    stops = f"`relay-tui drain {run_id}` has that one save and stop"
    return Word("warn", why, f"{stops}, `relay-tui force-acquire {run_id}` takes it from it; {anew}")
