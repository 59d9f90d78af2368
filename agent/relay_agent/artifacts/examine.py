"""What `relay-agent doctor` says of the artifact store: whether the commander takes what is to go there."""

from __future__ import annotations

from relay_agent.artifacts.jobs import STORE
from relay_agent.artifacts.wish import wish_of
from relay_agent.config import Settings
from relay_agent.link.contact import StoreRoom
from relay_agent.sending.examined import Word


def examined(settings: Settings, room: StoreRoom | None) -> Word | None:
    """None where nothing is to go there. `room`: as the commander says; None: it has no store."""
    if settings.artifacts == "none" and not settings.artifacts_files:
        return None
    if room is None:
        return Word("fail", f"this commander is of a version without {STORE}", "set up a newer one, or HF_REPO")
    left = max(0, room.quota - room.used)
    of = f"{left / 1e9:.1f} of {room.quota / 1e9:.1f} GB are left there, one run may have {room.run_quota / 1e9:.1f}"
    words = f"{wish_of(settings).words} will go to {STORE}"
    if not min(left, room.run_quota):
        todo = "delete some with `relay-tui artifacts delete`, or raise RELAY_ARTIFACT_QUOTA"
        return Word("fail", f"{words}, and nothing more goes in: {of}", todo)
    return Word("ok", f"{words}; it takes them from whoever holds the run: {of}")
