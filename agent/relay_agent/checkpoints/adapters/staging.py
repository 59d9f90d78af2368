"""The staging protocol in the trainer's own folder: `step_<N>/`, and in it a file COMPLETE that is written last.

What is saved into RELAY_CKPT_STAGING_ROOT needs no taking and is published as it lies there (`checkpoints/staging.py`);
this one is for who keeps the protocol and saves elsewhere.
"""

from __future__ import annotations

from relay_agent.checkpoints.adapters.base import Adapter
from relay_agent.checkpoints.staging import MARKER

ADAPTER = Adapter("staging", r"step_(?P<step>[0-9]{1,15})", marker=MARKER)
