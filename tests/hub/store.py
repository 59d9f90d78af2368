"""What the hub remembers: repositories, their commits, branches and tags, and the large objects stored for each."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.hub.content import Content

BRANCH = "main"
ATTRIBUTES = "".join(
    f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n"
    for suffix in ("bin", "ckpt", "distcp", "npy", "npz", "onnx", "pt", "pth", "safetensors", "tar", "zst")
)
LARGE = tuple(line.split()[0].removeprefix("*") for line in ATTRIBUTES.splitlines())
"""Endings of what a new repository keeps as large objects whatever their size."""


class HubError(Exception):
    """An answer that is no success, as the Hub words it. `code` goes into X-Error-Code."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


def no_such_repo() -> HubError:
    return HubError(404, "Repository not found", "RepoNotFound")


def no_such_revision(name: str) -> HubError:
    return HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")


def no_such_entry(path: str) -> HubError:
    return HubError(404, f"{path} does not exist on this revision", "EntryNotFound")


@dataclass(frozen=True)
class Entry:
    """One file of one tree."""

    size: int
    sha256: str  # of its content
    oid: str  # git's name of it: of the content, or of the pointer to a large one
    lfs: bool

    @property
    def pointer_size(self) -> int:
        return len(pointer(self.sha256, self.size))


def pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def large(sha256: str, size: int) -> Entry:
    return Entry(size, sha256, git_oid(pointer(sha256, size)), lfs=True)


Tree = dict[str, Entry]


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    tree: Tree
    title: str
    message: str
    author: str
    at: float  # seconds since 1970


@dataclass
class Repo:
    id: str  # owner/name
    kind: str  # model, dataset
    private: bool
    created: float
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)  # large ones stored for it: sha256 -> size
    committed: set[str] = field(default_factory=set)  # those of them that some commit ever named
    pushed: dict[str, float] = field(default_factory=dict)  # when each of them came

    @property
    def owner(self) -> str:
        return self.id.split("/")[0]

    def resolve(self, revision: str) -> Commit:
        oid = self.branches.get(revision) or self.tags.get(revision)
        for prefix, refs in (("refs/heads/", self.branches), ("refs/tags/", self.tags)):
            oid = oid or (refs.get(revision.removeprefix(prefix)) if revision.startswith(prefix) else None)
        commit = self.commits.get(oid or revision)
        if commit is None:
            raise no_such_revision(revision)
        return commit

    def history(self, head: str) -> Iterator[Commit]:
        """From the newest to the first."""
        at: str | None = head
        while at is not None:
            commit = self.commits[at]
            yield commit
            at = commit.parent

    def reachable(self) -> dict[str, Commit]:
        found: dict[str, Commit] = {}
        for head in (*self.branches.values(), *self.tags.values()):
            for commit in self.history(head):
                if commit.oid in found:
                    break
                found[commit.oid] = commit
        return found

    def stored_bytes(self) -> int:
        """What the owner is charged for: every content that a branch's or tag's history names, once, and what was
        uploaded and never committed."""
        sizes = {entry.sha256: entry.size for commit in self.reachable().values() for entry in commit.tree.values()}
        for sha256 in list(sizes):
            if sha256 in self.committed and sha256 not in self.objects:
                del sizes[sha256]  # permanently deleted
        sizes |= {sha256: size for sha256, size in self.objects.items() if sha256 not in self.committed}
        return sum(sizes.values())


class Store:
    def __init__(self, content: Content) -> None:
        self.content = content
        self.repos: dict[tuple[str, str], Repo] = {}
        self._numbers = itertools.count(1)

    def repo(self, repo_id: str, kind: str = "model") -> Repo:
        found = self.repos.get((kind, repo_id))
        if found is None:
            raise no_such_repo()
        return found

    def create(self, repo_id: str, kind: str, private: bool, author: str) -> Repo:
        repo = self.repos[kind, repo_id] = Repo(repo_id, kind, private, time.time())
        attributes = ATTRIBUTES.encode()
        tree = {".gitattributes": self.small(attributes)}
        self.add(repo, BRANCH, tree, "initial commit", "", author)
        return repo

    def delete(self, repo: Repo) -> None:
        del self.repos[repo.kind, repo.id]
        self._sweep()

    def small(self, data: bytes) -> Entry:
        """The entry of a file that is kept in git itself."""
        return Entry(len(data), self.content.put(data), git_oid(data), lfs=False)

    def add(self, repo: Repo, branch: str, tree: Tree, title: str, message: str, author: str) -> Commit:
        """A commit of `tree` on top of `branch`."""
        commit = self._commit(repo, repo.branches.get(branch), tree, title, message, author)
        repo.branches[branch] = commit.oid
        return commit

    def squash(self, repo: Repo, branch: str, message: str, author: str) -> Commit:
        """The branch becomes one commit of what it has now. Tags stay on the commits they are on, and keep them."""
        head = repo.branches.get(branch)
        if head is None:
            raise no_such_revision(branch)
        commit = self._commit(repo, None, repo.commits[head].tree, message, "", author)
        repo.branches[branch] = commit.oid
        self.collect(repo)
        return commit

    def purge(self, repo: Repo, gone: set[str], rewrite: bool, tags_follow: bool) -> None:
        """Large objects gone for good, by their sha256. `rewrite`: no commit of a branch names them any more;
        `tags_follow`: the tags are moved to the rewritten commits as the branches are."""
        for sha256 in gone:
            repo.objects.pop(sha256, None)
        if rewrite:
            renamed: dict[str, str] = {}
            for refs in (repo.branches, repo.tags) if tags_follow else (repo.branches,):
                for name, head in refs.items():
                    refs[name] = self._rewritten(repo, head, gone, renamed)
        self.collect(repo)

    def _rewritten(self, repo: Repo, head: str, gone: set[str], renamed: dict[str, str]) -> str:
        for old in reversed(list(repo.history(head))):
            if old.oid in renamed:
                continue
            parent = renamed.get(old.parent) if old.parent is not None else None
            tree = {path: entry for path, entry in old.tree.items() if entry.sha256 not in gone}
            if parent == old.parent and len(tree) == len(old.tree):
                renamed[old.oid] = old.oid
            else:
                renamed[old.oid] = self._commit(repo, parent, tree, old.title, old.message, old.author, old.at).oid
        return renamed[head]

    def collect(self, repo: Repo) -> None:
        """Commits that nothing leads to any more, and the large objects that only they named, are gone. What was
        uploaded and never committed stays."""
        repo.commits = repo.reachable()
        named = {entry.sha256 for commit in repo.commits.values() for entry in commit.tree.values() if entry.lfs}
        for sha256 in repo.committed - named:
            repo.objects.pop(sha256, None)
        repo.committed &= named
        self._sweep()

    def _commit(
        self, repo: Repo, parent: str | None, tree: Tree, title: str, message: str, author: str, at: float | None = None
    ) -> Commit:
        what = repr((repo.id, parent, sorted(tree.items(), key=lambda item: item[0]), title, next(self._numbers)))
        oid = hashlib.sha1(what.encode(), usedforsecurity=False).hexdigest()
        commit = Commit(oid, parent, dict(tree), title, message, author, time.time() if at is None else at)
        repo.commits[oid] = commit
        repo.committed.update(entry.sha256 for entry in tree.values() if entry.lfs)
        return commit

    def _sweep(self) -> None:
        """Contents no repository has a use for leave the disk."""
        used: set[str] = set()
        for repo in self.repos.values():
            used.update(repo.objects)
            used.update(e.sha256 for commit in repo.commits.values() for e in commit.tree.values() if not e.lfs)
        for path in self.content.paths():
            if path.name not in used:
                path.unlink(missing_ok=True)
