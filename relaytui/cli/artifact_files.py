"""`relay-tui artifacts fetch | attach | extract`: bytes of artifacts, to here and from here, checked both ways."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from relaytui.archive.extract import Extracted, Limits, extract
from relaytui.archive.frame import begins
from relaytui.cli.artifacts import verified
from relaytui.cli.options import Target, json_option, target_options, usage
from relaytui.cli.output import print_json, printable
from relaytui.cli.progress import Progress
from relaytui.cli.session import ask
from relaytui.client.api import CommanderClient
from relaytui.client.contents import contents_of
from relaytui.client.words import size
from relaytui.shell.arguments import COUNT, PATH, RUN_ID, RunId
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow, Began, BeginUpload
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.ids import is_id
from relaytui.wire.text import counted

CHUNK = 8 << 20
PIECE = 1 << 20
READ_EVERY = 1.0
"""Seconds between two questions about what is being read there."""
HOPELESS = ("bad_archive", "one_name")
"""Of an archive that came whole: unpacked there once more it is no other."""
TRIES = 10
"""Chunks in a row that may be refused for where they begin, or because another one is on its way."""


# -- to here -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("artifact_id", type=COUNT, metavar="ID")
@click.option("--to", type=PATH, help="New file to write. [RUN-NAME.tar.zst of a checkpoint, NAME of a file, here]")
@click.option("--extract", "folder", type=PATH, help="New folder to unpack it into, instead of keeping the archive.")
@target_options
@json_option
def fetch(target: Target, artifact_id: int, to: Path | None, folder: Path | None, as_json: bool) -> None:
    """Bring the artifact ID here, and check that it is what was stored.

    Cut short it leaves a .part behind, and goes on from there when it is called again. A checkpoint is a .tar.zst, and
    --extract unpacks it: into a new folder, plain files only, nothing outside of it. With --json one object: artifact,
    path, files (null where nothing was unpacked).
    """
    if to is not None and folder is not None:
        raise usage("--to and --extract at once", "say one of them")
    row = ask(target, lambda client: client.artifact(artifact_id))
    if not all(map(is_id, (row.run_id, row.name, row.sha256))):  # what is written here is called after them
        raise RelayError("bad_answer", f"the commander's row of artifact {artifact_id} is not understood")
    if folder is not None and row.kind is not ArtifactKind.CHECKPOINT:
        raise usage(f"artifact {row.id} ({row.name}) is a plain file", "fetch it without --extract")
    goal = folder or to or Path(_file_name(row))
    option = "--extract" if folder is not None else "--to"
    _new(goal, option)
    known = ask(target, lambda client: contents_of(client, row)) if folder is not None else None
    part = goal.with_name(f".{goal.name}.{row.sha256[:12]}.part")
    _bring(target, row, part)
    files = None
    if folder is not None:
        limits = Limits.of(row.size, *known) if known else Limits(size=row.size)
        try:
            with part.open("rb") as archive:
                files = len(_unpacked(archive, part, folder, limits, row.sha256).files)
        except RelayError as error:
            if error.code in HOPELESS:
                part.unlink()
            raise
        part.unlink()
    else:
        _new(goal, option)
        part.rename(goal)
    if as_json:
        print_json({"artifact": row, "path": printable(goal), "files": files})
    else:
        click.echo(str(goal))


def _file_name(row: ArtifactRow) -> str:
    return f"{row.run_id}-{row.name}.tar.zst" if row.kind is ArtifactKind.CHECKPOINT else row.name


def _bring(target: Target, row: ArtifactRow, part: Path) -> None:
    """The artifact's bytes in `part`, whole; RelayError `wrong_hash`, or what cut it short: then it goes on later."""

    async def bring(client: CommanderClient) -> None:
        file = _opened(part)
        with file, Progress(f"fetching {row.name}", row.size, at) as progress:
            done = file.seek(0, os.SEEK_END)
            async for data in client.download(row, done):
                with _kept(part):
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) :]
                digest.update(data)
                done += len(data)
                progress.at(done)
            with _kept(part):
                os.fsync(file.fileno())

    digest = hashlib.sha256()
    with _opened(part) as file:
        at = file.seek(0, os.SEEK_END)
        if at > row.size:
            file.truncate(0)
            at = 0
        file.seek(0)
        while data := file.read(PIECE):
            digest.update(data)
    ask(target, bring)
    if digest.hexdigest() != row.sha256:
        part.unlink()
        if why := ask(target, lambda client: verified(client, row.id)).damaged:
            hint = "it is marked, and given to nobody; whoever has its bytes mends it by uploading them again"
            raise RelayError("damaged", f"artifact {row.id} is damaged where it is stored: {why}", hint)
        hint = "it is whole where it is stored: fetch it again"
        raise RelayError("wrong_hash", f"what came of artifact {row.id} is not what was stored", hint)


@contextlib.contextmanager
def _kept(part: Path) -> Iterator[None]:
    """What its disk refuses is said of it; it stays, to go on from."""
    try:
        yield
    except OSError as error:
        where = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "see its disk"
        hint = f"{where} and fetch it again: it goes on from there; or remove that file"
        raise RelayError(
            "not_written", f"{part} cannot be written: {error.strerror}", hint, exit_code=Exit.STATE
        ) from None


def _opened(part: Path) -> io.FileIO:
    """To read, and to write at its end, without a buffer that a full disk would refuse as it is closed.

    It is ours: a link in its place is not followed.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(part, flags, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise usage(f"{part} is no plain file", "move it away") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise usage(f"{part} is no plain file", "move it away")
    return os.fdopen(handle, "r+b", buffering=0)


def _new(path: Path, option: str) -> None:
    if os.path.lexists(path):
        raise usage(f"{path} is there already", f"name another one ({option})")
    if not path.parent.is_dir():
        raise usage(f"{path}: there is no folder {path.parent}", "make it first, or name another place")


@click.command(name="extract")
@click.argument("file", type=PATH)
@click.option("--to", type=PATH, help="New folder. [the file's name without .tar.zst]")
@json_option
def extract_(file: Path, to: Path | None, as_json: bool) -> None:
    """Unpack FILE, a checkpoint's archive: all of it into a new folder, or nothing.

    Nothing in it is trusted: only what Relay itself packs is taken, plain files in plain folders, no links, nothing
    outside of the folder, nothing larger than it says. With --json one object: path, files, bytes, sha256.
    """
    goal = to or file.with_name(file.name.removesuffix(".tar.zst"))
    with _plain(file, "name an archive, such as `relay-tui artifacts fetch` writes") as archive:
        _archive(archive, file)
        _new(goal, "--to")
        done = _unpacked(archive, file, goal, Limits(size=os.fstat(archive.fileno()).st_size), None)
    if as_json:
        print_json({"path": printable(goal), "files": len(done.files), "bytes": done.bytes, "sha256": done.sha256})
    else:
        click.echo(str(goal))
        click.echo(f"{counted(len(done.files), 'file')}, {size(done.bytes)}", err=True)


def _archive(archive: BinaryIO, path: Path) -> None:
    """RelayError `bad_archive` where it does not begin as one; what cannot be read is said when it is unpacked."""
    with contextlib.suppress(OSError):
        if not begins(archive.read(4)):
            hint = "name one that `relay-tui artifacts fetch` wrote: it ends in .tar.zst"
            raise RelayError("bad_archive", f"{path} is no archive of Relay's", hint)
        archive.seek(0)


def _unpacked(archive: BinaryIO, path: Path, folder: Path, limits: Limits, sha256: str | None) -> Extracted:
    with Progress(f"unpacking {folder.name}", limits.size or 0) as progress:
        return extract(
            archive.read, folder, limits, sha256=sha256, durable=True, progress=progress.at, source=str(path)
        )  # fmt: skip


# -- from here -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.argument("file", type=PATH)
@click.option("--name", type=RunId(), metavar="NAME", help="What it is called there. [the file's name]")
@target_options
@json_option
def attach(target: Target, run_id: str, file: Path, name: str | None, as_json: bool) -> None:
    """Store FILE with RUN_ID as it is: a config, a report, rollouts.

    What is stored already is not sent again. Of each name the newest few are kept (RELAY_ARTIFACT_KEEP_LAST_N of the
    commander). With --json one object: artifact.
    """
    called = name or file.name
    if not is_id(called):
        raise usage(
            f"{called!a} can be no artifact's name", "say --name: letters, digits, dots, dashes and underscores"
        )
    with _plain(file, "name the file to store") as source:
        length = os.fstat(source.fileno()).st_size
        digest = hashlib.sha256()
        with Progress(f"reading {called}", length) as progress:
            while data := source.read(PIECE):
                digest.update(data)
                progress.at(source.tell())
        upload = BeginUpload(run_id, ArtifactKind.FILE, called, digest.hexdigest(), length)
        row = ask(target, lambda client: _send(client, upload, source))
    if as_json:
        print_json({"artifact": row})
    else:
        click.echo(f"{row.name} is artifact {row.id} of {row.run_id}, {size(row.size)}", err=True)


async def _send(client: CommanderClient, upload: BeginUpload, source: BinaryIO) -> ArtifactRow:
    begun = await _begun(client, upload)
    if begun.artifact is not None:
        return begun.artifact
    at, refused = begun.offset, 0
    with Progress(f"sending {upload.name}", upload.size, at) as progress:
        while at < upload.size:
            source.seek(at)
            data = source.read(CHUNK)
            if not data:
                raise RelayError("changed", f"{upload.name} got shorter while it was sent", "attach it again")
            try:
                at, refused = await client.send_chunk(begun.upload, at, data), 0
            except RelayError as error:
                refused += 1
                if error.code not in ("wrong_offset", "busy", "stalled") or refused > TRIES:
                    raise
                at = await client.upload_offset(begun.upload)
            progress.at(at)
    return await client.finish_upload(begun.upload)


async def _begun(client: CommanderClient, upload: BeginUpload) -> Began:
    """What is there already is read again before it counts as stored: that may take a while."""
    while True:
        try:
            return await client.begin_upload(upload)
        except RelayError as error:
            if error.code != "busy":
                raise
        await asyncio.sleep(READ_EVERY)


def _plain(path: Path, todo: str) -> BinaryIO:
    """The file to read; a link to one is the user's own. `todo`: where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise usage(f"{path} is not there", todo) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise usage(f"{path} is no plain file", "name one")
    return os.fdopen(handle, "rb")
