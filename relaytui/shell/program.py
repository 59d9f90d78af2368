"""How both programs run a command: one line for what a person can mend, and an exit code for everything."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import click

from relaytui.shell.interrupt import INTERRUPTED, leave_at_once
from relaytui.shell.loading import loading
from relaytui.shell.streams import Unwritable, settle_streams
from relaytui.wire.errors import Exit, RelayError, sentences
from relaytui.wire.text import clean, sayable

READER_GONE = 141
"""As a shell says it of a program that SIGPIPE ended."""
MAX_WORDS = 1_000


def start(name: str, load: Callable[[], click.Command], args: Sequence[str] | None = None) -> int:
    """The exit code of the program called so; its streams are settled first, and then its commands loaded."""
    settle_streams()
    with loading():
        command = load()
    code = run(name, command, args)
    leave_at_once(code)  # it is over: Python's own end has nothing to say about Ctrl-C
    gc.freeze()  # nor is there a use in its looking through all that was loaded, two times over
    return code


def run(name: str, command: click.Command, args: Sequence[str] | None = None) -> int:
    """The exit code of one command. What goes wrong is one line on stderr, without what a terminal would act on."""

    def say(words: str) -> None:
        click.echo(f"{name}: {clean(sayable(' '.join(words.split())), MAX_WORDS)}", err=True)

    try:
        try:
            result = command.main(args=args, prog_name=name, standalone_mode=False)
            sys.stdout.flush()
            return result if isinstance(result, int) else int(Exit.OK)
        finally:
            with contextlib.suppress(Unwritable):  # where something else went wrong, that is what is said
                sys.stdout.flush()
    except RelayError as error:
        say(str(error))
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else name
        say(sentences(error.format_message()[: MAX_WORDS - 200], f"see `{where} --help`"))
        return error.exit_code
    except click.ClickException as error:
        say(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Unwritable as error:
        if error.reader_gone:
            return READER_GONE
        say(f"stdout cannot be written: {error.why}")
        return int(Exit.STATE)
    except OSError as error:
        say(f"{error.filename or 'the system refused'}: {error.strerror or error}")
        return int(Exit.STATE)


@contextlib.contextmanager
def putting_away() -> Iterator[None]:
    """Within, Ctrl-C is a KeyboardInterrupt: there is something to stop and to remove."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
