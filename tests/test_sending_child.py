"""The child process that sends: how far it gives way to whatever else runs on the pod."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAYS_ITS_NICENESS = """
import os, sys, types
from relay_agent.sending import child
package, module = types.ModuleType("package"), types.ModuleType("package.module")
package.WORK = {int: "module.work"}
module.work = lambda job, tell: os.getpriority(os.PRIO_PROCESS, 0)
sys.modules |= {"package": package, "package.module": module}
child._settle_in()
began = os.getpriority(os.PRIO_PROCESS, 0)
print(began, child.do("package", 1, None), file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of a thread and of a session are Linux's")
@pytest.mark.parametrize(("before", "starts", "works"), [(0, 10, 15), (19, 19, 19)])
def test_it_starts_sooner_than_it_works(before: int, starts: int, works: int) -> None:
    """What else takes all processors would keep it from starting in time, were it as patient from the beginning."""
    argv = ["nice", "-n", str(before), sys.executable, "-c", SAYS_ITS_NICENESS]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, start_new_session=True, timeout=60).stderr
    assert said.split() == [str(starts), str(works)]
