"""The headers of a tar archive that holds files alone: POSIX ustar, with a pax record only where ustar cannot say it.

Written here and not by `tarfile`, so that no version of Python changes a byte. There is one way to write a file's
header, and reading accepts no other: what is no file (links, devices, folders, sparse or extended ones), an owner, a
mode, a time or a second spelling of a size are refused by one comparison, before anything is done.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 512
END = bytes(2 * BLOCK)
_SIZE_FIELD = 8**11  # eleven octal digits
_NAME_FIELD = 100
_MAX_PAX = 4096
_PAX = b"././@PaxHeader"


class NoMember(ValueError):  # noqa: N818 - it says what it is
    """No header that this module writes."""


def header(path: str, size: int) -> bytes:
    """All that stands in front of a file's bytes; whole blocks."""
    name = path.encode()
    records = b""
    if len(name) > _NAME_FIELD or not path.isascii():
        records += _record(b"path", name)
        name = path.encode("ascii", "replace")[:_NAME_FIELD]
    if size >= _SIZE_FIELD:
        records += _record(b"size", b"%d" % size)
        size = 0
    main = _block(name, size, b"0")
    if not records:
        return main
    return _block(_PAX, len(records), b"x") + records + padding(len(records)) + main


def padding(size: int) -> bytes:
    """The zeros between a file's last byte and the next header."""
    return bytes(-size % BLOCK)


def read_header(take: Callable[[int], bytes]) -> tuple[str, int] | None:
    """Path and size (bytes) of the next file, None at the end of the archive; NoMember at anything else.

    `take(n)` gives exactly `n` bytes or raises.
    """
    raw = take(BLOCK)
    if raw == END[:BLOCK]:
        if take(BLOCK) != END[BLOCK:]:
            raise NoMember("it ends with one empty block")
        return None
    path: str | None = None
    size: int | None = None
    if raw[156:157] == b"x":
        length = _octal(raw[124:136])
        if length > _MAX_PAX:
            raise NoMember("a header is too long")
        records = take(length + -length % BLOCK)
        path, size = _records(records[:length])
        raw += records + take(BLOCK)
    main = raw[-BLOCK:]
    try:
        path = main[:_NAME_FIELD].rstrip(b"\0").decode("ascii") if path is None else path
    except UnicodeDecodeError:
        raise NoMember("a name is not ASCII") from None
    size = _octal(main[124:136]) if size is None else size
    if header(path, size) != raw:
        raise NoMember(f"{path[:200]!a} is no plain file as Relay writes them")
    return path, size


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    fields = (
        (name, 100),
        (b"0000644\0", 8),
        (b"0000000\0", 8),
        (b"0000000\0", 8),
        (b"%011o\0" % size, 12),
        (b"00000000000\0", 12),
        (b"        ", 8),
        (kind, 1),
        (b"", 100),
        (b"ustar\00000", 8),
        (b"", 247),
    )
    block = b"".join(value.ljust(width, b"\0") for value, width in fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH key=value\\n`, where LENGTH counts itself too."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _records(data: bytes) -> tuple[str | None, int | None]:
    path: str | None = None
    size: int | None = None
    while data:
        head, space, _ = data.partition(b" ")
        if not (space and head.isdigit() and len(head) <= 5 and len(head) + 1 < int(head) <= len(data)):
            raise NoMember("a pax record has no length")
        record, data = data[len(head) + 1 : int(head)], data[int(head) :]
        key, _, value = record[:-1].partition(b"=")
        if key == b"path" and path is None:
            try:
                path = value.decode()
            except UnicodeDecodeError:
                raise NoMember("a name is not UTF-8") from None
        elif key == b"size" and size is None and value.isdigit() and len(value) <= 18:
            size = int(value)
        else:
            raise NoMember(f"a pax record {key[:60]!a}")
    return path, size


def _octal(field: bytes) -> int:
    digits = field[:-1]
    if len(digits) != 11 or any(digit not in b"01234567" for digit in digits):
        raise NoMember("a size is not written in octal digits")
    return int(digits, 8)
