"""Is the repository there, private where it should be, this run's, and ours to write?"""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from relay_agent.hub import layout
from relay_agent.hub.far.answers import ITS_FILE
from relay_agent.hub.far.client import connect
from relay_agent.hub.far.failures import classified, from_storage, not_known
from relay_agent.hub.far.rights import name_of, see_writer
from relay_agent.hub.protocol import Check, Checked
from relay_agent.sending.backoff import Backoff
from relay_agent.sending.trouble import Trouble

BACKOFF = Backoff(tries=3, first=1.0, longest=4.0)
"""Of making a repository, where no answer comes."""


def work(job: Check, tell: Any) -> Checked:
    api, _ = connect(job.where)
    tell.phase("looking")
    made = job.make and make(api, job.where.repo, job.where.private)
    who = api.whoami(cache=False) if job.write else {}
    user = name_of(who)
    try:
        info = api.repo_info(job.where.repo)
    except RepositoryNotFoundError:
        if job.make:
            raise
        doubt = see_writer(who, job.where.repo, there=False) if job.write else ""
        return Checked(user, False, job.where.private, doubt=doubt)  # the agent makes it
    if job.write:
        see_writer(who, job.where.repo, there=True)
        see_private(job.where.repo, bool(info.private), job.where.private)
        api.auth_check(job.where.repo, write=True)
    run = see_run(read(api, job.where.repo, layout.RUN, info.sha), job.run_id)
    holder, attempt = (run.holder, run.attempt) if run is not None else (0, "")
    return Checked(user, made, bool(info.private), holder, attempt)


def make(api: Any, repo: str, private: bool) -> bool:
    """Whether it was not there before. Where the answer is lost, whether it is there now says what became of it."""
    failed = 0
    while not _is_there(api, repo):
        try:
            api.create_repo(repo, private=private, exist_ok=True)
            return True
        except Exception as error:
            why = classified(error, api.endpoint)
            if why.kind == "permanent" or why.wait:
                raise
            failed += 1
            BACKOFF.again(failed, error)
    return failed > 0


def _is_there(api: Any, repo: str) -> bool:
    try:
        api.repo_info(repo)
    except RepositoryNotFoundError:
        return False
    except HfHubHTTPError as error:
        if error.response.status_code != 401:  # over plain http that is all that a Hub says of one that is not there
            raise
        return False
    return True


def see_private(repo: str, private: bool, wanted: bool) -> None:
    if wanted and not private:
        raise Trouble(
            "not_private",
            f"{repo} is public: nothing is pushed there unless HF_PRIVATE=false says that it may be",
        )


def see_run(data: bytes | None, run_id: str) -> layout.RunFile | None:
    """What the repository's `run.json` says; Trouble where it is another run's."""
    if data is None:
        return None
    try:
        run = layout.decode_run(data)
    except layout.BadRun as bad:
        raise Trouble("not_ours", f"{layout.RUN} is there, and {bad}") from None
    if run.run_id != run_id:
        raise Trouble("other_run", f"the repository holds the run {run.run_id}, and nothing else is pushed there")
    return run


def read(api: Any, repo: str, path: str, revision: str | None, limit: int = layout.MAX_RUN) -> bytes | None:
    """A small file at a commit that the Hub named, or now; None where there is none. Trouble where it is not small, or
    the Hub does not know that commit: a copy of it that is behind says so of one that is there."""
    url = f"{api.endpoint}/{repo}/resolve/{revision or layout.BRANCH}/{path}"
    headers = api._build_hf_headers()
    try:
        with get_session().stream("GET", url, headers=headers, extensions=ITS_FILE) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > limit:
                    raise Trouble("too_large", f"{path} in the repository is over {limit} bytes")
    except HfHubHTTPError as error:
        if error.response.status_code != 404 or from_storage(error.response, api.endpoint):
            raise
        code = error.response.headers.get("X-Error-Code")
        if code == "RevisionNotFound" and revision is not None:
            raise not_known(repo, revision) from None
        if code not in (None, "EntryNotFound", "RevisionNotFound"):
            raise
        if code is None and api.get_paths_info(repo, path, revision=revision or layout.BRANCH):
            raise Trouble("hub_trouble", f"the Hub says 404 of {path}, and lists it", "transient") from None
        return None
    return bytes(data)
