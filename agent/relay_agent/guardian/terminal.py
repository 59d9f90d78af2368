"""A terminal for a trainer that shows nothing on a pipe: its bytes pass as they are, and nobody types into it.

It is nobody's controlling terminal: its end sends no signal, and no process group is stopped for reading from it.
"""

from __future__ import annotations

import errno
import os

ROWS, COLUMNS = 50, 200
"""Wide enough that no bar is cut short."""


def make() -> tuple[int, int]:
    """The end that is read, and the end that the trainer writes to, as of a pipe."""
    import fcntl
    import struct
    import termios

    read, write = os.openpty()
    try:
        attributes = termios.tcgetattr(write)
        attributes[0] &= ~(termios.ICRNL | termios.INLCR | termios.IXON | termios.ISTRIP)
        attributes[1] &= ~termios.OPOST  # a newline stays one
        attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(write, termios.TCSANOW, attributes)
        fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    except (OSError, termios.error) as error:
        os.close(read)
        os.close(write)
        raise OSError(error.args[0], f"no terminal could be made: {error.args[-1]}") from None
    if os.environ.get("TERM", "dumb") in ("", "dumb"):  # the trainer's environment; a word of the pod's own stays
        os.environ["TERM"] = "xterm-256color"
    return read, write


def ended(error: OSError) -> bool:
    """Whether this is how a terminal says that nobody has it open any more."""
    return error.errno == errno.EIO
