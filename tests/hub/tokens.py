"""Who may do what: tokens and their roles, and what the Hub says to those that may not."""

from __future__ import annotations

from dataclasses import dataclass

from tests.hub.store import HubError, Repo, no_such_repo

__all__ = ["OWNER", "Token", "Tokens"]

OWNER = "relay"
"""The user that the tokens there from the start belong to."""


@dataclass(frozen=True)
class Token:
    value: str
    user: str = OWNER
    role: str = "write"  # write, read
    expired: bool = False
    orgs: tuple[str, ...] = ()

    def owns(self, namespace: str) -> bool:
        return namespace == self.user or namespace in self.orgs


class Tokens:
    def __init__(self) -> None:
        self._known: dict[str, Token] = {}
        for token in (
            Token("hf_write", orgs=("relay-lab",)),
            Token("hf_read", role="read", orgs=("relay-lab",)),
            Token("hf_expired", expired=True),
            Token("hf_stranger", user="stranger"),
        ):
            self.add(token)

    def add(self, token: Token) -> Token:
        self._known[token.value] = token
        return token

    def of(self, authorization: str | None) -> Token | None:
        """Whose request it is; None: nobody's."""
        if authorization is None:
            return None
        token = self._known.get(authorization.removeprefix("Bearer "))
        if token is None or not authorization.startswith("Bearer "):
            raise HubError(401, "Invalid credentials in Authorization header")
        if token.expired:
            raise HubError(401, f'User Access Token "{token.value}" is expired')
        return token


def signed_in(token: Token | None) -> Token:
    if token is None:
        raise HubError(401, "Invalid username or password.")
    return token


def may_read(token: Token | None, repo: Repo) -> None:
    """A private repository is not there for those it does not belong to."""
    if repo.private and token is None:
        raise HubError(401, "Invalid username or password.", "RepoNotFound")
    if repo.private and token is not None and not token.owns(repo.owner):
        raise no_such_repo()


def may_write(token: Token | None, repo: Repo) -> Token:
    may_read(token, repo)
    token = signed_in(token)
    if token.role != "write" or not token.owns(repo.owner):
        raise HubError(
            403, "Forbidden: you must have write access to this repository, and a token with the role `write`"
        )
    return token


def may_create(token: Token | None, namespace: str, kind: str) -> Token:
    token = signed_in(token)
    if token.role != "write" or not token.owns(namespace):
        raise HubError(403, f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"')
    return token
