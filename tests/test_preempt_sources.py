"""Who gives notice before a pod is taken away, each against a service on loopback that answers as the real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from commander_kit import FakeClock
from preempt_kit import Service, serving, virtually

from relay_agent.preempt import metadata
from relay_agent.preempt.aws import ACTION, REBALANCE, TOKEN, Aws
from relay_agent.preempt.azure import Azure
from relay_agent.preempt.clues import AZURE_TAG, Clues
from relay_agent.preempt.gcp import PREEMPTED, Gcp
from relay_agent.preempt.metadata import Metadata, Unanswered
from relay_agent.preempt.notice import Notice, Surroundings, moment
from relay_agent.preempt.places import place_of
from relay_agent.preempt.slurm import Slurm, end_by_squeue, end_of, warned
from relay_agent.preempt.sources import SOURCES, sources_of
from relay_agent.preempt.watch import LONGEST, watch

NOW = 1_772_359_200.0  # 2026-03-01T10:00:00Z
SECRET = "AQAEAF-a-token-of-the-metadata-service=="


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving() as service:
        yield service


@pytest.fixture
async def around(service: Service) -> AsyncIterator[Surroundings]:
    asked = Metadata(service.url)
    yield Surroundings(asked, {}, lambda: NOW, 120.0)
    await asked.close()


# -- AWS ---------------------------------------------------------------------------------------------------------


def imds(service: Service) -> None:
    """As IMDSv2: nothing without a token."""

    def token(request: web.Request) -> web.Response:
        assert request.method == "PUT"
        assert 1 <= int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
        return web.Response(text=SECRET)

    service.answers[TOKEN] = token


def guarded(body: object) -> object:
    def answer(request: web.Request) -> web.Response:
        if request.headers.get("X-aws-ec2-metadata-token") != SECRET:
            return web.Response(status=401)
        return web.json_response(body)

    return answer


async def test_aws_tells_two_minutes_ahead(service: Service, around: Surroundings) -> None:
    imds(service)
    poller = Aws(around)
    assert await poller.look() == []
    service.answers[ACTION] = guarded({"action": "terminate", "time": "2026-03-01T10:02:00Z"})
    (notice,) = await poller.look()
    assert (notice.source, notice.at, notice.advice) == ("aws", NOW + 120, False)
    assert "terminate" in notice.words
    assert service.paths().count(f"PUT {TOKEN}") == 1, "one token serves many questions"


async def test_aws_recommends_to_rebalance(service: Service, around: Surroundings) -> None:
    imds(service)
    service.answers[REBALANCE] = guarded({"noticeTime": "2026-03-01T10:00:00Z"})
    (notice,) = await Aws(around).look()
    assert notice.advice


async def test_aws_a_token_that_ran_out_is_fetched_anew(service: Service, around: Surroundings) -> None:
    imds(service)
    poller = Aws(around)
    poller._token = "an-old-one"
    service.answers[ACTION] = guarded({"action": "stop", "time": "2026-03-01T10:02:00Z"})
    assert len(await poller.look()) == 1
    assert service.paths().count(f"PUT {TOKEN}") == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (web.Response(status=500), "HTTP 500"),
        (web.Response(text="<html>"), "no JSON object"),
        (web.Response(text="[1]"), "no JSON object"),
        (web.Response(status=301, headers={"Location": "http://127.0.0.1:9/"}), "HTTP 301"),
    ],
)
async def test_aws_what_is_no_answer(service: Service, around: Surroundings, body: web.Response, words: str) -> None:
    imds(service)
    service.answers[ACTION] = body
    with pytest.raises(Unanswered, match=words) as error:
        await Aws(around).look()
    assert SECRET not in str(error.value)


async def test_aws_an_action_of_another_kind_is_none(service: Service, around: Surroundings) -> None:
    imds(service)
    service.answers[ACTION] = guarded({"action": "dance", "time": 7})
    assert await Aws(around).look() == []
    service.answers[ACTION] = guarded({"action": "terminate", "time": "soon"})
    (notice,) = await Aws(around).look()
    assert notice.at is None, "the usual two minutes count then"


# -- GCP ---------------------------------------------------------------------------------------------------------


def google(text: str, etag: str) -> web.Response:
    return web.Response(text=text, headers={"Metadata-Flavor": "Google", "ETag": etag})


async def test_gcp_waits_for_the_change(service: Service, around: Surroundings) -> None:
    changed = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Metadata-Flavor"] == "Google"
        if "wait_for_change" not in request.query:
            return google("FALSE", "abc/+=")
        assert request.query["last_etag"] == "abc/+="
        assert int(request.query["timeout_sec"]) == 60
        await changed.wait()
        return google("TRUE", "def")

    service.answers[PREEMPTED] = answer
    poller = Gcp(around)
    assert await poller.look() == []
    waiting = asyncio.create_task(poller.look())
    while len(service.asked) < 2:
        await asyncio.sleep(0)
    assert not waiting.done(), "nothing is asked in between"
    changed.set()
    assert await waiting == [Notice("gcp", "Compute Engine takes this machine away")]


async def test_gcp_somebody_else_is_not_believed(service: Service, around: Surroundings) -> None:
    service.answers[PREEMPTED] = "TRUE"
    with pytest.raises(Unanswered, match="not Google"):
        await Gcp(around).look()


# -- Azure -------------------------------------------------------------------------------------------------------

EVENTS, NAME = "/metadata/scheduledevents", "/metadata/instance/compute/name"


def event(kind: str, *machines: str, when: str = "Sun, 01 Mar 2026 10:00:30 GMT") -> dict[str, object]:
    return {"EventId": "1", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(machines),
            "EventStatus": "Scheduled", "NotBefore": when}  # fmt: skip


async def test_azure_tells_of_this_machine_alone(service: Service, around: Surroundings) -> None:
    def events(request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true"
        return web.json_response({"DocumentIncarnation": 2, "Events": listed})

    service.answers |= {EVENTS: events, NAME: "vmss_3"}
    listed = [event("Freeze", "vmss_3"), event("Preempt", "vmss_1"), event("Reboot", "vmss_3")]
    poller = Azure(around)
    assert await poller.look() == []
    listed.append(event("Preempt", "vmss_2", "vmss_3"))
    (notice,) = await poller.look()
    assert (notice.source, notice.at) == ("azure", NOW + 30)
    assert not any(method != "GET" for method, _, _ in service.asked), "nothing is acknowledged: that brings it closer"


async def test_azure_without_a_name_an_event_of_one_machine_counts(service: Service, around: Surroundings) -> None:
    service.answers[EVENTS] = {"Events": [event("Preempt", "a", "b")]}
    assert await Azure(around).look() == []
    service.answers[EVENTS] = {"Events": [event("Preempt", "a", when="")]}
    (notice,) = await Azure(around).look()
    assert notice.at is None


@pytest.mark.parametrize("body", [{"Events": 7}, {"Events": [{"Resources": "x"}]}, "[]", "no"])
async def test_azure_what_is_no_list_of_events(service: Service, around: Surroundings, body: object) -> None:
    service.answers[EVENTS] = body
    with pytest.raises(Unanswered):
        await Azure(around).look()


# -- Slurm -------------------------------------------------------------------------------------------------------


def test_slurm_by_signal() -> None:
    job = {"SLURM_JOB_ID": "41"}
    assert warned(job, NOW) == Notice("slurm", "Slurm sent SIGUSR1 to job 41", None)
    assert warned({}, NOW) == Notice("slurm", "Slurm sent SIGUSR1", None), "PREEMPT=slurm, and nobody said which job"
    assert warned(job | {"SLURM_JOB_END_TIME": str(int(NOW) + 90)}, NOW).at == NOW + 90
    assert warned(job | {"SLURM_JOB_END_TIME": str(int(NOW) + 90_000)}, NOW).at is None, "it is preempted"
    assert warned(job | {"SLURM_JOB_END_TIME": str(int(NOW) - 1)}, NOW).at is None
    for text in ("", "soon", "-5", "1e9", "9" * 400, "٣"):
        assert end_of({"SLURM_JOB_END_TIME": text}) is None


async def test_slurm_by_the_clock() -> None:
    now = NOW
    prolonged: float | None = None
    asked = 0

    def squeue(environ: object) -> float | None:
        nonlocal asked
        asked += 1
        return prolonged

    end = NOW + 1000
    around = Surroundings(Metadata(), {"SLURM_JOB_END_TIME": str(int(end))}, lambda: now, 120.0)
    poller = Slurm(around, squeue)
    assert await poller.look() == []
    assert asked == 0, "only near its end"
    now, prolonged = end - 125, end + 3600
    assert await poller.look() == [], "it was prolonged meanwhile"
    now, prolonged = end + 3500, None
    assert await poller.look() == [Notice("slurm", "the job comes to its time limit", end + 3600)]
    now = end + 3605
    assert await poller.look() == []


def test_slurm_is_asked_by_its_own_program(tmp_path: Path) -> None:
    program = tmp_path / "squeue"
    environ = {"SLURM_JOB_ID": "41", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert end_by_squeue(environ | {"PATH": str(tmp_path)}) is None, "it is not there"
    program.write_text(
        '#!/bin/sh\ntest "$SLURM_TIME_FORMAT $*" = "%s --noheader --jobs 41 --format %e" && echo 1772359290\n'
    )
    program.chmod(0o755)
    assert end_by_squeue(environ) == NOW + 90
    assert end_by_squeue(environ | {"SLURM_JOB_ID": "41; x"}) is None
    program.write_text("#!/bin/sh\necho N/A\n")
    assert end_by_squeue(environ) is None


# -- asking ------------------------------------------------------------------------------------------------------


async def test_nobody_there_is_soon_known() -> None:
    nobody = Metadata("http://127.0.0.1:9")
    with pytest.raises(Unanswered):
        await Aws(Surroundings(nobody, {}, lambda: NOW, 120.0)).look()
    await nobody.close()


async def test_who_does_not_answer_is_not_waited_for(service: Service, around: Surroundings) -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    service.answers[PREEMPTED] = never
    with pytest.raises(Unanswered, match="in time"):
        await around.metadata.ask(PREEMPTED, {}, patience=0.05)


async def test_an_answer_without_end_is_cut(service: Service, around: Surroundings) -> None:
    service.answers["/big"] = "x" * 3_000_000
    assert len((await around.metadata.ask("/big", {})).text) <= metadata.MAX_ANSWER


def test_whoever_does_not_answer_is_asked_ever_less_often() -> None:
    pauses: list[float] = []
    said: list[str] = []

    class Poller:
        every = 5.0

        async def look(self) -> list[Notice]:
            if len(pauses) == 12:
                return [notice]
            if len(pauses) == 13:
                raise RuntimeError("nobody thought of this")
            raise Unanswered("HTTP 404")

    notice = Notice("aws", "words")
    heard: list[Notice] = []

    async def work() -> None:
        task = asyncio.create_task(watch("aws", Poller(), heard.append, said.append, sleep))
        while len(pauses) < 14:
            await asyncio.sleep(0)
        task.cancel()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    virtually(FakeClock(), work)
    assert pauses[:4] == [10, 20, 40, 80]
    assert max(pauses) == LONGEST
    assert heard == [notice]
    assert pauses[12] == 5.0, "at its pace again"
    assert len(said) == 2
    assert "gives no answer (HTTP 404)" in said[0]


def test_times_as_services_write_them() -> None:
    assert moment("2026-03-01T10:02:00Z") == moment("Sun, 01 Mar 2026 10:02:00 GMT") == NOW + 120
    for nonsense in ("", "soon", None, 7, "9" * 60, "0001-01-01", "Mon, 99 Foo 2026"):
        moment(nonsense)


# -- which one ---------------------------------------------------------------------------------------------------


def test_only_clues_of_a_place_make_it_be_asked(tmp_path: Path) -> None:
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    assert [source.name for source in sources_of("auto", Clues.here({}, tmp_path))] == ["aws"]
    bucket = Clues({"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "x", "GOOGLE_APPLICATION_CREDENTIALS": "y"})
    assert sources_of("auto", bucket) == [], "whoever uses a bucket is not there for that"
    hyper_v = {"sys_vendor": "Microsoft Corporation"}
    assert sources_of("auto", Clues({}, hyper_v)) == []
    assert [source.name for source in sources_of("auto", Clues({}, hyper_v | {"chassis_asset_tag": AZURE_TAG}))] == [
        "azure"
    ]
    google = Clues({"SLURM_JOB_ID": "7"}, {"product_name": "Google Compute Engine"})
    assert [source.name for source in sources_of("auto", google)] == ["slurm", "gcp"]
    for name, source in SOURCES.items():
        assert sources_of(name, Clues({})) == [source]
    assert sources_of("none", google) == []


def test_clues_are_safe(tmp_path: Path) -> None:
    """Looked at before anything else: whatever lies there, it is no obstacle."""
    (tmp_path / "sys_vendor").write_bytes(b"\xff" * 100_000)
    (tmp_path / "product_name").mkdir()
    clues = Clues.here({}, tmp_path)
    assert len(clues.firmware["sys_vendor"]) <= 256
    assert not sources_of("auto", clues)


@pytest.mark.parametrize(
    ("clues", "name", "grace"),
    [
        (Clues({"RUNPOD_POD_ID": "x"}, container=True, first=True), "runpod", 5.0),
        (Clues({"VAST_CONTAINERLABEL": "C.1"}, container=True, first=True), "vast", 10.0),
        (Clues({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), "kubernetes", 30.0),
        (Clues({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"product_name": "Google Compute Engine"}), "gke", 15.0),
        (Clues({"SLURM_JOB_ID": "4", "KUBERNETES_SERVICE_HOST": "x"}), "slurm", 30.0),
        (Clues({}, container=True, first=True), "docker", 10.0),
    ],
)
def test_how_long_a_place_leaves_a_pod(clues: Clues, name: str, grace: float) -> None:
    place = place_of(clues)
    assert place is not None
    assert (place.name, place.grace) == (name, grace)


def test_a_machine_of_its_own_is_no_place() -> None:
    assert place_of(Clues({})) is None
    assert place_of(Clues({}, container=True)) is None, "docker's signal goes to another process"
    assert place_of(Clues({"RUNPOD_POD_ID": " "})) is None
