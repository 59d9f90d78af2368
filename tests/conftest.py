"""Fixtures that several files of tests share; a file that needs another of that name has its own."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agent_rig import commander, rig
from cli_kit import served
from guardian_kit import marked

if TYPE_CHECKING:  # each is loaded by who needs it: most files do without
    from commander_kit import FakeClock, Kit
    from hub_sync_kit import Calls

    from relay_agent.hub.protocol import Where
    from relay_agent.volume.volume import RunFolder
    from tests.hub import TestHub

__all__ = ["commander", "marked", "rig", "served"]

collect_ignore = [] if os.environ.get("TEST_REAL") else ["real"]
"""What needs the real trainers: `make test-real`."""


def _bare_python(theirs: Path) -> Path:
    """A folder with Python as trainers find it, and no more: what the PATH has may be a script that starts a dozen
    shells first, and what is installed beside that Python may be loaded at each of its starts."""
    root = Path(tempfile.mkdtemp(prefix="relay-tests-python-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    (root / "pyvenv.cfg").write_text(f"home = {theirs.parent}\ninclude-system-site-packages = false\n")
    (root / "bin").mkdir()
    for name in ("python", "python3"):
        (root / "bin" / name).symlink_to(theirs)
    return root / "bin"


if (_PYTHON := Path(sys.base_prefix, "bin", "python3")).exists():
    os.environ["PATH"] = f"{_bare_python(_PYTHON)}{os.pathsep}{os.environ['PATH']}"

# Nobody is spoken to who would have to be trusted, and each reading of all authorities' certificates takes 30 ms.
if not os.environ.get("TEST_REAL"):
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "data" / "nobody.pem")

LONG = (
    "test_processes", "test_simulation", "test_agent_takeover", "test_save_answers", "test_agent_takeover_stop",
    "test_linearizability", "test_agent_run", "test_checkpoints_crash", "test_agent_missing",
    "test_dashboard_screens", "test_stop_gently", "test_agent_trouble", "test_dashboard_terminal", "test_slime",
    "test_left_behind", "test_cli_arguments", "test_agent_takeover_damaged", "test_dashboard_acts",
    "test_watchdog_phases", "test_trainers", "test_guardian_line", "test_agent_orders", "test_full_disk",
    "test_wheel", "test_agent_guardian", "test_demo", "test_full_retry", "test_cli_streams", "test_agent_once_more",
    "test_agent_retry", "test_hub_pull", "test_cli", "test_power_cut", "test_commander_damage", "test_restore_run",
    "test_object_store", "test_volume_model", "test_lease_model", "test_crash_points",
)  # fmt: skip
"""Files that take longest, few tests as some have: they begin first, so that none is left alone at the end. Those that
mostly wait and those that mostly compute take turns."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each of several workers begins with a share of the files: what one has compiled, the others find compiled."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    for name in names[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception):  # it is said where it is collected
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))


# -- a commander in the test's own process --------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    from commander_kit import FakeClock

    return FakeClock()


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    from commander_kit import running

    async with running(tmp_path / "state", clock) as kit:
        yield kit


# -- a Hub, and a run whose checkpoints go there --------------------------------------------------------------------


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[TestHub]:
    from tests.hub import TestHub

    async with TestHub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def where(hub: TestHub) -> Where:
    from hub_sync_kit import REPO

    from relay_agent.hub.protocol import Where

    return Where(REPO, hub.token, hub.url, timeout=5.0)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Nothing is saved yet."""
    from checkpoint_kit import new_run

    (tmp_path / "volume").mkdir()
    return new_run(tmp_path / "volume")


@pytest.fixture
def call(tmp_path: Path) -> Calls:
    """Does a job as the agent's child does, here."""
    from hub_sync_kit import Calls

    return Calls(tmp_path / "cache")
