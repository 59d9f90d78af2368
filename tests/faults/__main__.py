"""`python -m tests.faults`: worlds by seed; a failure prints the seed that replays it."""

from __future__ import annotations

import sys

from tests.faults.sim.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
