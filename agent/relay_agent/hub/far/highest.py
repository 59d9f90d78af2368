"""Which attempt has pushed to a repository last: whoever comes next has to have an epoch above it."""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import RepositoryNotFoundError

from relay_agent.hub import layout
from relay_agent.hub.far.check import read, see_run
from relay_agent.hub.far.client import connect
from relay_agent.hub.far.list_steps import steps_of
from relay_agent.hub.protocol import Highest, Reached


def work(job: Highest, tell: Any) -> Reached:
    """Trouble where it is another run's."""
    api, _ = connect(job.where)
    tell.phase("looking")
    try:
        run = see_run(read(api, job.where.repo, layout.RUN, None), job.run_id)
    except RepositoryNotFoundError as error:
        if error.response.status_code == 401:
            raise
        return Reached(0)
    if run is not None:
        return Reached(run.holder)
    steps = steps_of(api, job.where.repo, tell)  # somebody has taken the file away: the tags still tell
    return Reached(max((step.epoch for step in steps if step.run_id == job.run_id), default=0))
