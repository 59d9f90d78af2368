"""What is installed is what runs: the wheel, in an environment that has nothing else, from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = out.glob("relay_tui-*.whl")
    return built


def needed(distribution: metadata.Distribution) -> dict[str, Path]:
    """What it says it needs, and what that needs, as it lies where these tests run: names in site-packages, and nothing
    that only the tests have."""
    found = dict[str, Path]()
    asked = list(distribution.requires or ())
    for words in asked:
        requirement = Requirement(words)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        other = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(other.version), (words, other.version)
        names = {path.parts[0] for path in other.files or ()} - {"..", "__pycache__"}
        if not names <= found.keys():
            found |= {name: Path(str(other.locate_file(name))) for name in names}
            asked += other.requires or ()
    return found


def test_the_wheel_holds_what_runs_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "relay_agent/launchers/launch_sft.sh",
        "relay_agent/launchers/launch_rl.sh",
        "relay_agent/launchers/char_lm.py",
        "relay_agent/guardian/__main__.py",
        "relay_agent/run.example.yaml",
        "relaytui/themes/relay-dark.toml",
        "relaytui/dashboard/dashboard.tcss",
        "relaytui/py.typed",
    ):
        assert name in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"relaytui", "relay_agent"}


def test_installed_in_an_empty_environment_it_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    pip = packages / "pip"  # not told of another Python, it starts once
    pip.symlink_to(Path(str(metadata.distribution("pip").locate_file("pip"))))
    install = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([environment / "bin" / "python", *install, wheel], check=True, capture_output=True, timeout=300)
    pip.unlink()
    (installed,) = metadata.distributions(name="relay-tui", path=[str(packages)])
    for name, path in needed(installed).items():
        (packages / name).symlink_to(path)
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = {"PATH": "/usr/bin:/bin:" + os.path.dirname(sys.executable), "HOME": str(tmp_path), "LANG": "C.UTF-8"}  # noqa: PTH120

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        return subprocess.run(
            [environment / "bin" / program, *arguments],
            cwd=empty,
            env=bare,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert run("relay-tui", "--version").stdout.startswith("relay-tui 0.")
    assert run("relay-agent", "--version").stdout.startswith("relay-agent 0.")
    assert run("relay-agent", "example").stdout == (ROOT / "agent" / "run.example.yaml").read_text()
    themes = run("python", "-c", "from relaytui.dashboard.themes import load_themes; print(load_themes())")
    assert "relay-light" in themes.stdout, themes.stderr
    done = run("relay-tui", "demo", "--headless", "--seconds", "60", "--steps", "40", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {run["status"] for run in report["runs"]} == {"completed"}
    assert list(empty.iterdir()) == []
