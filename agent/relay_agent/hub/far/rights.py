"""May a token write a repository, as far as the Hub tells of it (`whoami`)?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay_agent.sending.trouble import Trouble
from relaytui.wire.text import clean, sayable

_MAY_WRITE = "repo.write"
"""What a fine-grained token has to be given."""


def see_writer(who: Any, repo: str, *, there: bool) -> str:
    """Trouble where it cannot make or write `repo`; else why one cannot be sure, empty where one can. `there`: it can
    be seen, and the Hub itself said that it may be written to."""
    namespace = repo.partition("/")[0]
    user = name_of(who)
    token = _in(_in(who, "auth"), "accessToken")
    role = _in(token, "role")
    if role == "read":
        raise _no(f"HF_TOKEN only reads: it can neither make {repo} nor write to it")
    if there:
        return ""
    if role == "fineGrained":
        scopes = _in(_in(token, "fineGrained"), "scoped")
        if isinstance(scopes, list) and not any(_grants(scope, namespace, repo) for scope in scopes):
            raise _no(f"HF_TOKEN is a fine-grained one and has no {_MAY_WRITE} for {namespace}: it cannot make {repo}")
        return "" if isinstance(scopes, list) else _unsure(repo)
    if role != "write" or not user:
        return _unsure(repo)
    if _same(user, namespace):
        return ""
    for org in _list(_in(who, "orgs")):
        if _same(_in(org, "name"), namespace):
            if _in(org, "roleInOrg") == "read":
                raise _no(f"{user}, whose HF_TOKEN it is, only reads in {namespace}: it cannot make {repo}")
            return ""
    raise _no(f"{user} is not {namespace}, nor in an organization of that name: its HF_TOKEN cannot make {repo}")


def name_of(who: Any) -> str:
    return clean(sayable(str(_in(who, "name") or "")), 100)


def _grants(scope: Any, namespace: str, repo: str) -> bool:
    name = _in(_in(scope, "entity"), "name")
    return _MAY_WRITE in _list(_in(scope, "permissions")) and (_same(name, namespace) or _same(name, repo))


def _no(words: str) -> Trouble:
    return Trouble("no_permission", words)


def _unsure(repo: str) -> str:
    return f"the Hub does not tell what HF_TOKEN may do: whether it can make {repo} shows when the run begins"


def _same(one: Any, other: str) -> bool:
    return isinstance(one, str) and one.casefold() == other.casefold()


def _in(table: Any, name: str) -> Any:
    return table.get(name) if isinstance(table, Mapping) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
