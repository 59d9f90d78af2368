"""Run by path, with no site-packages of anybody's: only this package is to be found."""

import sys

sys.path.append(__file__.rpartition("/relay_agent/")[0])

from relay_agent.guardian.main import main

sys.exit(main(sys.argv[1:]))
