"""What guardian and agent say to each other, and where they find each other."""

from __future__ import annotations

import struct

MARKER = "RELAY_GUARD"
"""Environment variable that every process of one trainer carries, whatever it was reparented to."""

# What the guardian says to the agent: a header (kind, offset in the output, length) and `length` bytes.
HEADER = struct.Struct(">cQI")
STARTED = b"S"  # payload: pid
REFUSED = b"F"  # the trainer could not be started; payload: errno and the system's words
OUTPUT = b"O"  # bytes the trainer printed from `offset` on; empty: it printed up to `offset`, read the log
LOG_LOST = b"L"  # the log could not be written; payload: why
EXITED = b"X"  # payload: exit code as a shell gives it, 128 + n for signal n
OOM = b"M"  # before EXITED: the kernel killed something of it, or of its pod, for want of memory meanwhile
SIGNALLED = b"N"  # before EXITED: a signal ended it; else it exited by itself, whatever its code
ASKED = b"B"  # before EXITED: it had been asked to stop; payload: why
GONE = b"G"  # nothing of the trainer is left; payload: how many were stopped, failed or killed; and the first of these
TAKEN = b"T"  # after the OUTPUT that a TAKE asked for; payload: the number of that. It answers those before it, too

TROUBLE = b"W"  # something in it failed, and it goes on; payload: what
ALONE = b"A"  # no agent could take over: the trainer ends with this one; payload: why

# What the agent says to the guardian, a line each.
HELLO = b"H"  # followed by the guard, or by how it begins: the first word of a new agent, else nobody listens to it
STOP = b"T"  # SIGTERM to the trainer's group, SIGKILL to all of it after the grace
KILL = b"K"
NOTICE = b"G"  # followed by seconds: what of its grace the trainer has before a deadline
GATHER = b"P"  # followed by seconds: output may wait so long for more of it; 0, as at first: it is wanted at once
TAKE = b"O"  # followed by a number: what was printed is wanted now, and a TAKEN of that number once all of it is taken
LEAVE = b"L"  # followed by seconds: for so long from now what a trainer that ended well left behind is not stopped
DEADLINE = b"D"  # followed by seconds on the boot clock: the trainer is dead by then; 0 takes it back

SOCKET, ENDED = "guardian.sock", "ended"
"""In FOLDER: where a new agent is heard, and how it ended (`Ending`)."""
BESIDE = "asked"
"""There, too: an agent that the guardian does not hear has begun to stop the trainer itself."""
LEAVE_MOST = 10.0  # seconds that one LEAVE counts for: an agent that dies keeps nobody alive
EARLY = 1.0  # seconds before a deadline by which the tree gets SIGKILL

CHUNK = 256 * 1024
