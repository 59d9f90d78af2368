"""The child process that sends: how far it gives way to whatever else runs on the pod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

MODULE = """
import os
def niceness():
    return os.getpriority(os.PRIO_PROCESS, 0)
STARTED = niceness()
def work(job, tell):
    return [STARTED, niceness()]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of a thread and of a session are Linux's")
@pytest.mark.parametrize(("before", "starts", "works"), [(0, 10, 15), (19, 19, 19)])
def test_it_starts_sooner_than_it_works(tmp_path: Path, before: int, starts: int, works: int) -> None:
    """What else takes all processors would keep it from starting in time, were it as patient from the beginning."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text('JOBS = int\nWORK = {int: "module.work"}\n')
    (package / "module.py").write_text(MODULE)
    argv = ["nice", "-n", str(before), sys.executable, "-m", "relay_agent.sending.child", "package"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"1\n")
        process.stdin.flush()
        said = process.stdout.readline()
    assert orjson.loads(said)["data"] == [starts, works]
