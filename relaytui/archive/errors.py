"""What goes wrong with an archive, in two kinds: it is not one of ours, or its source did not keep still."""

from __future__ import annotations

from relaytui.wire.errors import RelayError


class BadArchive(RelayError):  # noqa: N818 - it says what it is
    """No archive that Relay would have written, or not the whole of one. Nothing of it was kept."""

    def __init__(self, words: str) -> None:
        super().__init__("bad_archive", f"this is no archive of Relay's, or not a whole one: {words}", status=422)
        self.words = words


class SourceChanged(RelayError):  # noqa: N818 - it says what it is
    """The folder was not the same from the first byte to the last, or holds what an archive cannot."""

    def __init__(
        self, words: str, *, code: str = "source_changed", hint: str = "archive a folder that nobody writes to"
    ) -> None:
        super().__init__(code, words, hint)
        self.words = words


class Unpackable(SourceChanged):
    """It holds what no archive of Relay's has: looking again would find the same."""

    def __init__(self, words: str) -> None:
        super().__init__(words, code="unpackable", hint="archive plain files with plain names")


class Damaged(SourceChanged):
    """A file in it is not what it has to be: it was damaged since that was written down."""

    def __init__(self, words: str) -> None:
        super().__init__(words, code="damaged", hint="archive another one, or one that is whole again")
