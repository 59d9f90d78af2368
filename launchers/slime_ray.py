#!/usr/bin/env python3
"""`ray` as a script under Relay finds it: a cluster of this attempt's own, and jobs that save where Relay looks.

`ray start --head` gets a temporary folder and ports of its own, so that two attempts, or somebody else's Ray, live
beside each other; its dashboard, which runs whatever it is sent, listens on this machine alone. `ray stop` ends that
cluster and no other. `ray job submit` puts Relay's flags in place of the script's, waits for the job and gives its true
exit code (`slime_follow.py`). All else goes to the real one. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import slime_follow
import slime_tame
from slime_flags import TRACKER, as_relay_wishes, nothing_left, value_of, without
from slime_tame import STATE, note, say

OWN_PORTS = ("--port", "--dashboard-port", "--dashboard-agent-listen-port", "--ray-client-server-port")


class Result(NamedTuple):
    code: int
    trained: bool
    why: str


# -- the cluster -----------------------------------------------------------------------------------------------------


class Shim:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.wish = json.loads((state / "wish.json").read_text(encoding="utf-8"))

    def run(self, argv: list[str]) -> int:
        if argv[:1] == ["start"] and "--head" in argv:
            return self.start(argv[1:])
        if argv[:1] == ["stop"]:
            return self.stop()
        if argv[:2] == ["job", "submit"]:
            return self.submit(argv[2:])
        if argv[:1] == ["job"]:
            argv = self.addressed(argv)
        os.execv(real_ray(self.state), ["ray", *argv])
        return 127

    def start(self, argv: list[str]) -> int:
        if self.address():
            note(self.state, "ray start: this attempt's Ray runs already")
            return 0
        free = free_ports(len(OWN_PORTS))
        ports = {flag: str(free.pop()) for flag in OWN_PORTS}
        ports["--port"] = os.environ.get("SLIME_RAY_PORT") or ports["--port"]  # for other machines that join
        words = without(argv, [*OWN_PORTS, "--dashboard-host", "--temp-dir"])
        for flag, port in ports.items():
            words += [flag, port]
        words += ["--dashboard-host", "127.0.0.1", "--temp-dir", str(self.state / "ray")]
        code = subprocess.call([real_ray(self.state), "start", *words])
        if code == 0:
            address = f"http://127.0.0.1:{ports['--dashboard-port']}"
            write(self.state / "address", address)
            note(self.state, f"ray start: a cluster of this attempt's own, its dashboard at {address}")
        return code

    def stop(self) -> int:
        """Not `ray stop`: that ends every Ray on the machine."""
        found = [pid for pid in slime_tame.victims(self.state) if _is_ray(slime_tame.command_line(pid))]
        slime_tame.send(found, signal.SIGTERM)
        until = time.monotonic() + 5.0
        while time.monotonic() < until and any(pid in slime_tame.ours(self.state) for pid in found):
            time.sleep(0.05)
        slime_tame.send([pid for pid in found if pid in slime_tame.ours(self.state)], signal.SIGKILL)
        if found:
            (self.state / "address").unlink()
        note(self.state, f"ray stop: {len(found)} processes of this attempt's Ray ended; no other Ray is touched")
        return 0

    def address(self) -> str:
        """Of the cluster that this attempt started; empty where it started none (SLIME_SCRIPT_EXTERNAL_RAY)."""
        return read(self.state / "address")

    def addressed(self, argv: list[str]) -> list[str]:
        if not self.address():
            return argv
        words = without(argv, ["--address"])
        return [*words[:2], "--address", self.address(), *words[2:]]

    # -- the job -------------------------------------------------------------------------------------------------

    def submit(self, argv: list[str]) -> int:
        if "--" not in argv:
            say("ray job submit: write -- before the job's command, so that Relay's flags can be added to it")
            return 2
        at = argv.index("--")
        options, command = without(argv[:at], ["--submission-id"]), argv[at + 1 :]
        if why := nothing_left(command, self.wish):
            say(why)
            return self.ended(0, False, why)
        if "--no-save-optim" in command:
            say("--no-save-optim: what this saves cannot be resumed from")
        if self.wish["load"]:
            _say_without_data(self.wish["load"])
        command = as_relay_wishes(command, self.wish)
        label = re.sub(r"[^A-Za-z0-9_-]", "-", os.environ.get("RELAY_RUN_ID", "run"))[:60]
        job = f"relay-{label}-e{os.environ.get('RELAY_EPOCH', '0')[:12]}-{secrets.token_hex(4)}"
        noted = self.state / ("exit." + job)
        if self.address():  # its driver runs on this machine, and can leave word of how it ended
            command = [sys.executable, "-S", str(Path(__file__).resolve()), "driver", str(noted), *command]
        address = self.address() or value_of(options, "--address") or os.environ.get("RAY_ADDRESS", "")
        where = ["--address", address] if address else []
        rest = [word for word in without(options, ["--address"]) if word != "--no-wait"]
        write(self.state / ("job." + job), json.dumps(where))
        signal.signal(signal.SIGTERM, _no_answer)  # the launcher stops the job, and we see it end
        options = [*where, "--submission-id", job, "--no-wait", *rest]
        code = subprocess.call([real_ray(self.state), "job", "submit", *options, "--", *command])
        if code:
            return self.ended(code, True, "")
        say(f"job {job} is submitted")
        return self.follow(job, where, noted)

    def follow(self, job: str, where: list[str], noted: Path) -> int:
        """Hand on what it prints until it has ended."""
        ray, output = real_ray(self.state), slime_follow.Output()

        def status() -> str | None:
            return slime_follow.status_of([ray, "job", "status", *where, job], job)

        if self.address():
            log = self.state / "ray" / "session_latest" / "logs" / f"job-driver-{job}.log"
            code = slime_follow.own_job(log, noted, noted.with_name("pid." + job), status, output)
        else:
            code = slime_follow.others_job([ray, "job", "logs", *where, "--follow", job], status, output)
        return self.ended(code, output.trained or self.saved(), "")

    def saved(self) -> bool:
        """A rollout of this attempt is on the disk: the last one always is."""
        return read(Path(self.wish["save"]) / TRACKER) != self.wish["before"]

    def ended(self, code: int, trained: bool, why: str) -> int:
        write(self.state / "result", json.dumps([code, trained, why]))
        return code


def _say_without_data(load: dict) -> None:
    data = f"rollout/global_dataset_state_dict_{load['rollout']}.pt"
    if not (Path(load["from"]) / data).exists():
        say(f"the checkpoint of rollout {load['rollout']} has no {data}: the data begins anew")


def _is_ray(command: str) -> bool:
    return bool(re.search(r"\b(?:raylet|gcs_server)\b|\bray::|/ray/(?:_private|dashboard|core|util)/", command))


def stop_jobs(state: Path) -> bool:
    """Stop each by its id. Whether there was one."""
    jobs = sorted(state.glob("job.*"))
    for path in jobs:
        job = path.name.partition(".")[2]
        if read(state / ("exit." + job)):
            continue
        where = json.loads(read(path) or "[]")
        if _stopped(where, job):
            say(f"job {job} is being stopped")
            continue
        say(f"stopping job {job} by Ray's client")
        try:
            argv = [real_ray(state), "job", "stop", *where, job]
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"job {job} could not be stopped by its id: {error}")
    return bool(jobs)


def _stopped(where: list[str], job: str) -> bool:
    """By Ray's own HTTP interface: its client takes seconds to load, and a pod that is taken away has few."""
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    if len(where) < 2 or not where[1].startswith("http://"):
        return False
    wish = Request(f"{where[1].rstrip('/')}/api/jobs/{job}/stop", method="POST")
    try:
        with build_opener(ProxyHandler({})).open(wish, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except HTTPError as error:
        error.close()
        return False
    except (OSError, ValueError):
        return False


def result(state: Path) -> Result | None:
    """Of the last job; None where none was submitted."""
    text = read(state / "result")
    return Result(*json.loads(text)) if text else None


def drive(noted: Path, argv: list[str]) -> int:
    """Run the job's command on Ray's side, and leave word of how it ended."""
    # Ray sends SIGTERM to the whole group: the command decides, and we outlive it.
    signal.signal(signal.SIGTERM, _no_answer)
    write(noted.with_name("pid" + noted.name[len("exit") :]), str(os.getpid()))
    try:
        code = subprocess.call(argv)
        code = code if code >= 0 else 128 - code
    except OSError as error:
        say(f"{argv[0]} cannot be started: {error.strerror}")
        code = 127
    write(noted, str(code))
    return code


def _no_answer(number: int, frame: object) -> None:
    """Not SIG_IGN, which whatever we start would inherit."""


# -- small things ----------------------------------------------------------------------------------------------------


def real_ray(state: Path) -> str:
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != str(state / "bin"))
    found = shutil.which("ray", path=path)
    if not found:
        say("there is no ray on PATH")
        raise SystemExit(127)
    return found


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def main(argv: list[str]) -> int:
    slime_tame.name_process("relay-slime")
    if argv[:1] == ["driver"]:
        return drive(Path(argv[1]), argv[2:])
    if argv[:1] != ["ray"] or not os.environ.get(STATE):
        return 2
    return Shim(Path(os.environ[STATE])).run(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
