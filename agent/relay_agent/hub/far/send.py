"""Send one checkpoint: its files, one commit, one tag.

Sending the files can be broken off anywhere and be begun anew: what is stored is not sent again. The commit and the tag
are one request each. Where the answer to one is lost, what the repository holds says whether it was done.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils.sha import git_hash

from relay_agent.checkpoints.manifest import MANIFEST, FileEntry, Sealed, Torn, read, verify
from relay_agent.hub import layout
from relay_agent.hub.far import check, commit, readme, upload
from relay_agent.hub.far.beside import content
from relay_agent.hub.far.client import connect
from relay_agent.hub.far.failures import remark, told
from relay_agent.hub.far.remote import File, Head, files_at, head_of, manifest_at, refuse_older, tags_of
from relay_agent.hub.protocol import Send, Sent
from relay_agent.sending.backoff import Backoff
from relay_agent.sending.trouble import Trouble
from relaytui.wire.text import clean, counted

MOST_BESIDE = 1 << 30
"""Bytes of large files that go beside one checkpoint, at most."""
MOST_WORDS = 1000
"""Characters that are said of what stays behind."""
WAITS = "more than goes with one checkpoint; the next ones take it along"
BACKOFF = Backoff(tries=5, first=1.0, longest=4.0)
"""Of commits, where somebody else's come between, or no answer comes."""


def work(job: Send, tell: Any) -> Sent:
    return _Sending(job, tell).all()


class _Sending:
    def __init__(self, job: Send, tell: Any) -> None:
        self._job = job
        self._tell = tell
        self._repo = job.where.repo
        self._api, self._sent = connect(job.where)
        try:
            self._sealed: Sealed = read(Path(job.folder), job.run_id)
            self._manifest = (Path(job.folder) / MANIFEST).read_bytes()
        except (Torn, OSError) as error:
            raise Trouble("damaged", f"the checkpoint cannot be read: {error}") from None
        listed = {entry.path: entry for entry in self._sealed.manifest.files}
        self._files = [listed[path] for path in job.files if path in listed]
        self._adds: list[CommitOperationAdd] = []
        """What makes it a checkpoint: without one of them it is not there."""
        self._more: list[CommitOperationAdd] = []
        """What goes beside it, and may stay behind."""
        self._left: dict[str, str] = {}
        """What did, by its path, and why."""
        self._looks: dict[str, object] = {}
        """Of the files among them, as they were when they were looked at."""
        self._with_card = False
        self._no: Exception | None = None

    def all(self) -> Sent:
        self._tell.phase("looking")
        check.make(self._api, self._repo, self._job.where.private)
        self._see_private()
        head = self._head()
        tags = tags_of(self._api, self._repo)
        tag = self._tag(tags)
        if tag in tags and not self._lacks(files_at(self._api, self._repo, tags[tag])):
            return Sent(tags[tag], tag, self._sent.bytes, stored=True)
        if head.run is None:
            self._see_free(files_at(self._api, self._repo, head.sha))
        if not self._is_there(head):
            self._upload(head)
            head = self._commit(head)
        self._tell.phase("verify")
        self._see_whole(head.sha)
        self._tag_it(tag, head.sha, tags.get(tag))
        return Sent(head.sha, tag, self._sent.bytes, stored=False, bared=self._bared(), remark=self._remark)

    # -- what is there ---------------------------------------------------------------------------------------------

    def _see_private(self) -> None:
        check.see_private(self._repo, bool(self._api.repo_info(self._repo).private), self._job.where.private)

    def _bared(self) -> bool:
        """Whether it turned public since; what cannot be asked now is asked before the next one."""
        try:
            self._see_private()
        except Trouble:
            return True
        except Exception:  # noqa: BLE001 - it is on the Hub, and its tag too
            return False
        return False

    def _head(self) -> Head:
        head = head_of(self._api, self._repo, self._job.run_id)
        refuse_older(head, self._job.epoch, self._job.attempt)
        return head

    def _see_free(self, there: dict[str, File]) -> None:
        """Trouble where somebody has a folder of the name of one of ours: what is in it and not sent is taken away."""
        if theirs := sorted(path for path in there if path.startswith(layout.OURS)):
            raise Trouble("not_ours", f"{theirs[0]} is there, and no run of Relay's: take another repository")

    def _tag(self, tags: dict[str, str]) -> str:
        """The tag that it has, or else the one that it gets."""
        for tag in layout.tags_for(self._sealed.manifest):
            if tag not in tags:
                return tag
            found = manifest_at(self._api, self._repo, tags[tag], self._job.run_id)
            if found is not None and found[1] == self._manifest:
                return tag
        raise Trouble("no_tag", f"all tags for step {self._sealed.manifest.step} are others'")

    def _is_there(self, head: Head) -> bool:
        """Whether the commit was made, and all of it is this checkpoint's."""
        if head.manifest != self._manifest or head.run is None:
            return False
        return not self._missing(files_at(self._api, self._repo, head.sha))

    def _missing(self, there: dict[str, File]) -> str:
        """What of the checkpoint is not there as it should be, or is there and should not; empty: it is whole."""
        known = {layout.MANIFEST_PATH, *(layout.path_of(entry.path) for entry in self._files)}
        besides = [path for path in there if path.startswith(layout.CHECKPOINT) and path not in known]
        return self._lacks(there) or (f"{min(besides)} is there besides" if besides else "")

    def _lacks(self, there: dict[str, File]) -> str:
        """What of it is not there as it should be; empty: all that is to be there is."""
        if layout.RUN not in there:
            return f"{layout.RUN} is not there"
        if not _holds(there.get(layout.MANIFEST_PATH), self._manifest):
            return "its manifest is not there"
        for entry in self._files:
            found = there.get(layout.path_of(entry.path))
            if found is None:
                return f"{entry.path} is not there"
            if found.size != entry.size or not self._same(entry, found):
                return f"{entry.path} is another one there"
        return ""

    def _same(self, entry: FileEntry, found: File) -> bool:
        if found.sha256 is not None:
            return found.sha256 == entry.sha256
        data = (Path(self._job.folder) / entry.path).read_bytes()  # a small one, or the Hub would keep it apart
        return _holds(found, data) and hashlib.sha256(data).hexdigest() == entry.sha256

    def _see_whole(self, revision: str) -> None:
        there = files_at(self._api, self._repo, revision)
        missing = self._missing(there)
        told_of = [add.path_or_fileobj for add in self._adds if add.path_in_repo == layout.RUN]
        if not missing and any(not _holds(there[layout.RUN], data) for data in told_of):
            missing = f"{layout.RUN} is another one there"
        if missing:
            self._see_own_whole()
            raise Trouble("not_whole", f"what was committed is not the checkpoint: {missing}", "transient")

    def _see_own_whole(self) -> None:
        """Trouble where what lies on the volume is not what was published: nothing that is sent of it can be right."""
        try:
            verify(Path(self._job.folder), self._job.run_id)
        except Torn as torn:
            raise Trouble("damaged", f"{self._sealed.name} is damaged on the volume: {torn.reason}") from None

    # -- the files -------------------------------------------------------------------------------------------------

    def _upload(self, head: Head) -> None:
        self._adds = [self._add(entry) for entry in self._files]
        self._adds.append(CommitOperationAdd(layout.MANIFEST_PATH, self._manifest))
        for add in self._beside(files_at(self._api, self._repo, head.sha)):
            (self._adds if add.path_in_repo == layout.RUN else self._more).append(add)
        self._tell.phase("uploading")
        self._see_ways()
        self._see_room()
        total = sum(add.upload_info.size for add in (*self._adds, *self._more))
        self._sent.hear = lambda done: self._tell.progress(min(done, total), total)
        try:
            self._send(self._adds)
        except Exception as error:
            if told(error, self._job).code in ("refused_by_hub", "bad_endpoint", "unknown"):
                self._see_own_whole()
            raise
        self._send_more()
        self._tell.progress(total, total)
        for add, entry in zip(self._adds, self._files, strict=False):
            if add._upload_mode == "lfs" and add.upload_info.sha256.hex() != entry.sha256:
                raise Trouble("damaged", f"{self._sealed.name} is damaged on the volume: {entry.path} has another hash")
        self._tell.at("uploaded")

    def _see_ways(self) -> None:
        written = CommitOperationAdd(layout.CARD, b"#")
        upload.see_ways(self._api, self._repo, [*self._adds, *self._more, written])
        for add in self._adds:
            if add._should_ignore:
                words = f"{add.path_in_repo} would be left out: the repository's .gitignore names it"
                raise Trouble("ignored", words)
        if written._should_ignore:
            self._leave(layout.CARD, "the repository's .gitignore names it")
        for add in [add for add in self._more if add._should_ignore]:
            self._leave(add.path_in_repo, "the repository's .gitignore names it")

    def _see_room(self) -> None:
        """Journals are few, and each time the same; other files come one after the other, with one checkpoint each."""
        journals = [add for add in self._more if add.path_in_repo.startswith(layout.OURS)]
        room, apart = upload.lighten([*self._adds, *journals]), MOST_BESIDE
        for add in [add for add in self._more if add not in journals]:
            size = add.upload_info.size
            if size <= (room if add._upload_mode == "regular" else apart):
                room, apart = (room - size, apart) if add._upload_mode == "regular" else (room, apart - size)
            else:
                self._leave(add.path_in_repo, WAITS)

    def _send(self, adds: list[CommitOperationAdd]) -> None:
        upload.send(self._api, self._sent, self._repo, adds, self._job.threads)

    def _send_more(self) -> None:
        while apart := [add for add in self._more if add._upload_mode == "lfs"]:
            try:
                self._send(apart)
            except Exception as error:  # noqa: BLE001 - whatever it is, the checkpoint goes
                if not self._leave_changed(apart):
                    for add in apart:
                        self._leave(add.path_in_repo, told(error, self._job).words)
            else:
                return

    def _leave_changed(self, adds: list[CommitOperationAdd]) -> bool:
        """Whether there are such among these."""
        changed = [add for add in adds if self._looks.get(add.path_in_repo) != look(add.path_or_fileobj)]
        for add in changed:
            self._leave(add.path_in_repo, "it changed while it was sent")
        return bool(changed)

    def _leave(self, path: str, why: str) -> None:
        """An extra stays behind, whatever is wrong with it. `why` may be of others."""
        self._more = [add for add in self._more if add.path_in_repo != path]
        self._left.setdefault(path, remark(why, self._job.where.token))

    @property
    def _remark(self) -> str:
        paths: dict[str, list[str]] = {}
        for path, why in self._left.items():
            paths.setdefault(why, []).append(path)
        which = {why: some[0] if len(some) == 1 else counted(len(some), "file") for why, some in paths.items()}
        return clean("; ".join(f"{words} left out: {why}" for why, words in which.items()), MOST_WORDS)

    def _add(self, entry: FileEntry) -> CommitOperationAdd:
        path = Path(self._job.folder) / entry.path
        if path.is_symlink() or not path.is_file():
            raise Trouble("damaged", f"{self._sealed.name} is damaged on the volume: {entry.path} is no file")
        add = CommitOperationAdd(layout.path_of(entry.path), path)
        if add.upload_info.size != entry.size:
            raise Trouble("damaged", f"{self._sealed.name} is damaged on the volume: {entry.path} has another size")
        if not self._job.where.xet:  # whoever stores it hashes it: it is not read once more here
            add.upload_info.sha256 = bytes.fromhex(entry.sha256)
        return add

    def _beside(self, there: dict[str, File]) -> list[CommitOperationAdd]:
        found = [(each.path, content(each, there)) for each in self._job.beside]
        adds = []
        for path, each in found:
            with suppress(OSError, ValueError):  # it may have vanished since
                if each is not None:
                    self._looks[path] = look(each)  # before its size is taken
                    adds.append(CommitOperationAdd(path, each))
        return adds

    # -- the commit ------------------------------------------------------------------------------------------------

    def _commit(self, head: Head) -> Head:
        failed = 0
        while True:
            self._tell.phase("commit")
            body = self._body(head)
            if body is None:
                return head
            self._see_private()  # once more: sending may have taken hours
            body.last, body.hear = self._still, self._tell.progress
            self._permit()
            try:
                revision = commit.post(self._api, self._repo, body)
            except Exception as error:
                if error is self._no:
                    raise
                if isinstance(error, commit.Changed):
                    if not self._leave_changed(self._more):
                        self._see_own_whole()
                        raise
                    continue
                why = told(error, self._job)
                if why.code == "refused_by_hub" and self._with_card:
                    self._leave(layout.CARD, f"the Hub does not take it: {why.words}")
                    continue
                if why.kind == "permanent" or why.wait:
                    raise
                failed += 1
                BACKOFF.again(failed, error)
                head = self._head()
                if self._is_there(head):
                    return head  # it was done, and nobody said so
                continue
            self._tell.at("committed")
            return Head(revision, head.run, self._manifest)

    def _permit(self) -> None:
        self._tell.may("commit")
        self._tell.still("commit")

    def _still(self) -> None:
        """When all but the end of a commit has gone: that may have taken longer than the permission holds."""
        try:
            self._tell.still("commit")
        except Exception:  # noqa: BLE001 - it is over
            try:
                self._permit()
            except Exception as no:
                self._no = no
                raise

    def _body(self, head: Head) -> commit.Body | None:
        self._leave_changed(self._more)
        adds = [*self._adds, *self._more]
        there = files_at(self._api, self._repo, head.sha)
        new = {*self._left, *(add.path_in_repo for add in adds)}
        gone = [path for path in there if path.startswith(layout.OURS) and path not in new]
        self._with_card = False
        if layout.CARD not in self._left:
            text, why = readme.written(self._api, self._job, head.sha)
            if text is None:
                self._leave(layout.CARD, why)
            else:
                adds.append(CommitOperationAdd(layout.CARD, text))
                self._with_card = True
        return commit.body(self._job.message, head.sha, gone, adds, there)

    # -- the tag ---------------------------------------------------------------------------------------------------

    def _tag_it(self, tag: str, revision: str, before: str | None) -> None:
        """`before`: the commit that it is on, which lacks some of the files."""
        self._tell.phase("tag")
        self._tell.may("tag")
        try:
            self._tell.still("tag")
            if before not in (None, revision):  # one cannot be moved
                self._api.delete_tag(self._repo, tag=tag)
                self._tell.at("untagged")
                self._tell.still("tag")
            self._api.create_tag(self._repo, tag=tag, revision=revision)
        except Exception as error:
            if told(error, self._job).kind == "permanent" and not _exists(error):
                raise
            there = tags_of(self._api, self._repo).get(tag)
            if there == revision:
                return
            if there is not None:
                raise Trouble("tag_taken", f"the tag {tag} is on another commit since", "transient") from None
            raise
        self._tell.at("tagged")


def look(at: object) -> object:
    """Of a file, what tells that it was written since; None for what is in memory."""
    if not isinstance(at, str | Path):
        return None
    try:
        found = Path(at).stat()
    except OSError:
        return "gone"
    return found.st_size, found.st_mtime_ns


def _holds(found: File | None, data: Any) -> bool:
    if found is None:
        return False
    return found.oid == git_hash(data) if found.sha256 is None else found.sha256 == hashlib.sha256(data).hexdigest()


def _exists(error: Exception) -> bool:
    return isinstance(error, HfHubHTTPError) and error.response.status_code == 409
