"""What went wrong at the Hub: for good, for now, or nobody knows. Read from what its library raises."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from msgspec.structs import replace

from relay_agent.hub.protocol import Job
from relay_agent.secret_words import scrub
from relay_agent.sending import trouble
from relay_agent.sending.protocol import Failed, Kind
from relay_agent.sending.trouble import Trouble
from relaytui.wire.text import clean, sayable

_BY_STATUS: dict[int, tuple[str, Kind, str]] = {
    400: ("refused_by_hub", "permanent", "the Hub does not take it"),
    401: ("bad_token", "permanent", "the Hub does not know HF_TOKEN, or it is over"),
    402: ("quota", "permanent", "the Hub wants payment for more"),
    403: ("no_permission", "permanent", "HF_TOKEN may not do this"),
    404: ("no_repository", "permanent", "there is no such repository, or HF_TOKEN may not see it"),
    409: ("busy", "transient", "another commit is going on there"),
    412: ("moved", "transient", "the branch has moved meanwhile"),
    413: ("too_large", "permanent", "a file is larger than the Hub takes"),
    422: ("refused_by_hub", "permanent", "the Hub does not take it"),
    429: ("rate_limited", "transient", "too many requests"),
}
Short = Callable[[object], str]
"""Words of others, fit to be told."""
HUB = "https://huggingface.co"
"""Where it is, where nothing else is said."""
_HANDED_ON = "/complete_multipart"
"""Of the Hub's own addresses the one whose requests it hands on to the storage."""
_QUOTA = re.compile(r"storage (limit|quota|patterns)|quota|billing|pay(ment)? ", re.I)
_SIGNED = re.compile(r"(https?://[^\s?]+)\?[^\s'\"]+")
"""An address of storage, of which whoever has all of it needs no token."""
_PATH = re.compile(r"Invalid `path_in_repo`.*under a '([^']+)/' folder \(path: '(.*)'\)", re.S)
_OBJECTS = "LFS batch API returned errors:"
_UNREAD = re.compile(r"malformed|improperly formatted|invalid (server response|etag)|parse", re.I)
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_USER = re.compile(r"//[^/\s@]*@")
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_WAIT = re.compile(r"\br=0\s*;\s*t=(\d{1,6})")
MOST_WAIT = 24 * 3600.0
"""Seconds that the Hub is believed to want, at most."""


def told(error: BaseException, job: Job) -> Failed:
    """Without the job's token and what else is secret, whatever the library made of it."""
    failed = classified(error, job.where.endpoint, job.where.token)
    return replace(failed, words=_hidden(failed.words, job.where.token))


def classified(error: BaseException, endpoint: str = "", token: str = "") -> Failed:
    """The nearest that says something counts: what it was raised in the course of may be another request's answer.
    `token`: not told, as what else is secret."""

    def short(words: object) -> str:
        return _SIGNED.sub(r"\1", " ".join(_hidden(str(words), token).split()))[:240]

    for each in chain(error):
        if isinstance(each, Trouble):
            return trouble.told(each)
        if isinstance(each, HFValidationError):
            return Failed("bad_name", f"the Hub does not take this name: {short(each)}", "permanent")
        if isinstance(each, OfflineModeIsEnabled):
            return Failed("offline", "HF_HUB_OFFLINE is set", "permanent")
        if isinstance(each, HfHubHTTPError):
            return _by_status(each, endpoint, short)
        name = type(each).__name__
        if name in ("UnsupportedProtocol", "InvalidURL", "LocalProtocolError"):
            return Failed("bad_endpoint", f"{name}: {short(each)}", "permanent")
        if "Timeout" in name:
            return Failed("no_answer", f"the Hub does not answer ({name})", "unknown")
        if name in ("ConnectError", "ConnectionError", "ConnectionRefusedError", "gaierror"):
            return Failed("unreachable", f"the Hub cannot be reached: {_ERRNO.sub('', short(each))}", "transient")
    for each in chain(error):
        if isinstance(each, ImportError) and "SOCKS proxy" in str(each):
            return _bad_proxy(short(each))
        if isinstance(each, KeyError | TypeError | AttributeError | ValueError) and _reads(each):
            return _by_words(each, endpoint, short)
    return trouble.told(error, token)


def _reads(error: BaseException) -> bool:
    """Whether the library raised it where it reads an answer."""
    at = error.__traceback__
    while at is not None:
        if f"{os.sep}huggingface_hub{os.sep}" in at.tb_frame.f_code.co_filename:
            return True
        at = at.tb_next
    return False


def _by_words(error: Exception, endpoint: str, short: Short) -> Failed:
    """What the library says of an answer that it cannot read, and of what it does not do, in errors of one kind."""
    text = str(error)
    if match := _PATH.search(text):
        folder, path = match.groups()
        words = f"the Hub takes nothing in a folder {folder}, and the checkpoint has {short(path)[:120]!a}"
        leave = f"have the trainer save none; HF_PUSH='!*{folder}/*' leaves it out, and no trainer goes on from that"
        return Failed("bad_path", f"{words}: {leave}", "permanent")
    if _OBJECTS in text:
        kind: Kind = "permanent" if _QUOTA.search(text) else "transient"
        code = "quota" if kind == "permanent" else "refused_by_hub"
        return Failed(code, f"the Hub does not take a file of it: {short(text.partition(_OBJECTS)[2])}", kind)
    if "for proxy URL" in text:
        return _bad_proxy(short(error))
    if type(error) is ValueError and not _UNREAD.search(text):
        return Failed("unknown", f"the Hub's library refuses it: {short(text)}", "unknown")
    return trouble.told(not_the_hub(endpoint, f"{type(error).__name__}: {short(text)[:80]}"))


def not_known(repo: str, revision: str) -> Trouble:
    """Of a commit that the Hub named itself: a copy of it that is behind says so of one that is there."""
    return Trouble("not_known", f"the Hub does not know now what {revision} in {repo} holds", "transient")


def not_the_hub(endpoint: str, why: str) -> Trouble:
    what = f"what answers at {endpoint or HUB} is not the Hub: a login page of the network, or a proxy?"
    return Trouble("no_hub", f"{what} ({why})", "unknown")


def _bad_proxy(said: str) -> Failed:
    named = [name for name in _PROXIES if name in os.environ]
    words = f"the proxy that {' or '.join(named) or 'the system'} names is of no kind that is known here"
    return Failed("bad_proxy", f"{words}: http:// and https:// are ({_USER.sub('//', said)})", "permanent")


def from_storage(response: Any, endpoint: str) -> bool:
    """Whether what lies behind the Hub (S3, a CDN) answered, by an address that holds for a while: it knows no token,
    and another address may do."""
    homes, url = {_home(endpoint or HUB), _home(HUB)}, response.request.url
    if "x-error-code" in response.headers:
        return False
    if url.path.endswith(_HANDED_ON):
        return True
    return _home(url) not in homes and not moved_to(response, endpoint)


def moved_to(response: Any, endpoint: str) -> str:
    """Where the Hub's own requests are sent on to, another host than the one that was asked: the library takes no token
    there. Empty: they are not. A file may lie elsewhere, and then has another path there."""
    first, last = (response.history or [response])[0].request.url, response.request.url
    asked = httpx2.URL(endpoint or HUB)
    if _home(first) != _home(asked) or _home(last) == _home(asked):
        return ""
    path = first.path.removeprefix(asked.path.rstrip("/"))
    own = path.startswith("/api/") or last.path.endswith(path)
    return f"{last.scheme}://{last.netloc.decode('ascii')}" if own else ""


def _home(url: httpx2.URL | str) -> tuple[str, int | None]:
    """Host and port, whether it is http or https."""
    at = httpx2.URL(url)
    return at.host.lower(), at.port


def _by_status(error: HfHubHTTPError, endpoint: str, short: Short) -> Failed:
    response = error.response
    status = response.status_code
    text = short(error.server_message or error)
    refused = 400 <= status < 500 and status != 429
    if refused and (other := moved_to(response, endpoint)):
        words = f"{endpoint or HUB} sends requests on to another host, where no token goes"
        todo = f"if that is the Hub's address now, set HF_ENDPOINT={other}"
        return Failed("moved_away", f"{words}: {todo} ({status}: {text})", "permanent")
    if refused and from_storage(response, endpoint):
        code = "refused_by_hub" if status in (400, 422) else "storage"
        words = f"the storage behind the Hub did not take this request ({status}: {text})"
        return Failed(code, words, "transient", wait_of(response))
    if isinstance(error, RevisionNotFoundError):  # as `not_known`
        return Failed("not_known", f"the Hub does not know now what it named ({text})", "transient", wait_of(response))
    if isinstance(error, GatedRepoError):
        return Failed("no_permission", f"the repository is gated for this token: {text}", "permanent")
    if isinstance(error, RepositoryNotFoundError) and status != 401:
        status = 404
    elif status == 404 and "x-error-code" not in response.headers:  # the Hub itself says what is missing
        words = f"the Hub says 404, and not what is missing ({text})"
        return Failed("hub_trouble", words, "transient", wait_of(response))
    if status == 403 and _QUOTA.search(str(error)):
        return Failed("quota", f"the Hub has no room for more: {text}", "permanent")
    if status in _BY_STATUS:
        code, kind, words = _BY_STATUS[status]
        return Failed(code, f"{words} ({status}: {text})", kind, wait_of(response) if kind == "transient" else None)
    if status >= 500:
        return Failed("hub_trouble", f"the Hub has trouble ({status}: {text})", "unknown", wait_of(response))
    return Failed("unknown", f"{status}: {text}", "unknown")


def wait_of(response: object) -> float | None:
    """Seconds that the Hub wants to be left alone."""
    headers = getattr(response, "headers", {})
    if match := _WAIT.search(headers.get("ratelimit", "")):
        return min(MOST_WAIT, float(match[1]) + 1)
    after = headers.get("retry-after", "").strip()
    if after.isascii() and after.isdigit():
        return min(MOST_WAIT, float(after))
    with suppress(ValueError, OverflowError, TypeError):  # a date, by the clock of who names it (RFC 9110, 10.2.3)
        until, now = (parsedate_to_datetime(value) for value in (after, headers.get("date", "")))
        return max(0.0, min(MOST_WAIT, (until - now).total_seconds()))
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """It and what led to it, the nearest first."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def remark(words: object, token: str) -> str:
    """Words of others that go into a result."""
    return clean(sayable(_hidden(str(words), token)), 300)


def _hidden(words: str, token: str) -> str:
    """Before anything is cut off: half a secret is none that is found."""
    words = scrub(words)
    return words.replace(token, "…") if token else words
