"""The model card of a repository as it shall be. It is an extra: whatever is wrong with it, the checkpoint goes."""

from __future__ import annotations

from typing import Any

from huggingface_hub.utils._http import get_session

from relay_agent.hub import card, layout
from relay_agent.hub.far import check
from relay_agent.hub.protocol import Send
from relay_agent.sending.trouble import Trouble


def written(api: Any, job: Send, revision: str) -> tuple[bytes | None, str]:
    """The card with what `job` says in it; or None, and why somebody's card stays as it is."""
    try:
        old = check.read(api, job.where.repo, layout.CARD, revision, card.MAX_CARD)
    except Trouble as long:
        if long.code != "too_large":
            raise
        return None, f"it is over {card.MAX_CARD} bytes"
    try:
        text = card.updated(old.decode() if old is not None else None, job.card, job.card_fields)
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    new = text.encode()
    if len(new) > card.MAX_CARD:
        return None, f"with what Relay says in it, it would be over {card.MAX_CARD} bytes"
    wrong = _refusal(api, text) if new != old else ""
    return (None, wrong) if wrong else (new, "")


def _refusal(api: Any, text: str) -> str:
    """Why the Hub would not take it; empty: it would. It refuses a whole commit for that."""
    url, headers = f"{api.endpoint}/api/validate-yaml", api._build_hf_headers()
    try:
        response = get_session().post(url, json={"content": text, "repoType": "model"}, headers=headers)
        if response.status_code == 200:
            return " ".join(str(each["message"]) for each in response.json().get("errors", ()))
        if response.status_code == 400:
            return "the Hub does not read the block at its top"
        return f"the Hub does not say whether it takes it ({response.status_code})"
    except Exception as error:  # noqa: BLE001 - whoever answers so is asked for the commit, too
        return f"the Hub does not say whether it takes it ({type(error).__name__})"
