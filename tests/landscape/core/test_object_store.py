"""What can go wrong between a driver and an object store: faults, outages, locks, secrets, and names that are wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from object_stores import SECRET, Raw, Trouble, environment, new_url, request, use
from small_models import Counter, make_job, quadratic_problem, wandering
from waiting import wait_for

from landscape import JobError, Problem, extend, open_run, run
from landscape.core import store_watch
from landscape.core.errors import Interrupted, LandscapeError, StoreError
from landscape.core.folders import open_folder, probe
from landscape.core.lock import CARD, Lease, driver_alive, run_lock
from landscape.core.object_store import ObjectLog, store_error
from landscape.model.history import read_history
from landscape.model.snapshots import read_trajectory, write_snapshot
from landscape.store.landscape import LandscapeStore

SUPPORT = str(Path(__file__).parents[2] / "support")
ROOT = str(Path(__file__).parents[3])


LEASE = 9.0  # seconds: more than a busy machine keeps a driver from renewing it, few enough to wait for its end


@pytest.fixture
def place(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, endpoint, LANDSCAPE_STORE_LEASE=str(LEASE))
    return new_url()


def small_job(place: str, fault=None, **fields):
    problem = quadratic_problem()
    counted = Problem(problem.model, problem.data, Counter(problem.observe, fault))
    return make_job(place, lambda: counted, [{"name": "t", "trajectory": "all", "size": [5, 4]}], tile=2, **fields)


def walk(place: str) -> None:
    for number, state in wandering(quadratic_problem().model, 4, 0.2).items():
        write_snapshot(place, "epoch", number, {name: tensor.contiguous() for name, tensor in state.items()})


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, endpoint: str) -> dict[str, str]:
    """The bytes of an undisturbed run in a local folder."""
    calm = str(tmp_path_factory.mktemp("calm"))
    walk(calm)
    run(small_job(calm))
    return Raw(calm, endpoint).values()


def test_a_run_in_a_bucket_is_extended_to_the_bytes_of_a_local_one(place, endpoint, tmp_path):
    for folder, samples in ((str(tmp_path), 23), (place, 8)):
        walk(folder)
        run(small_job(folder, num_samples=samples, batch_size=8))
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        extend(
            place, "t", num_samples=23, problem=quadratic_problem,
            compute=lambda job: run(job, stop=lambda: next(asked) > 15),
        )  # fmt: skip
    assert sorted(open_run(place)) == ["t", "t.extending"]
    extend(place, "t", num_samples=23, problem=quadratic_problem)
    here, there = Raw(str(tmp_path), endpoint), Raw(place, endpoint)
    assert there.values() == here.values()
    assert set(there.keys()) == set(here.keys()) - {"driver.lock"}


# -- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_store_that_stumbles_gives_the_undisturbed_bytes(place, endpoint, expected, monkeypatch, seed):
    with Trouble(endpoint, seed, share=0.12, silence=3.0).running() as trouble:
        use(monkeypatch, trouble.endpoint, LANDSCAPE_STORE_TIMEOUT="1", LANDSCAPE_STORE_LEASE="12")
        walk(place)
        found = run(small_job(place))["t"]
        assert (found.status == 1).all()
        assert found.attributes["failures"] == []
        assert read_trajectory(place).numbers == (1, 2, 3, 4)
    assert set(trouble.spoilt) == {"500", "503", "cut", "late", "silence"}, "each kind of fault was met"
    assert Raw(place, endpoint).values() == expected
    assert CARD not in Raw(place, endpoint).keys()  # noqa: SIM118


@pytest.mark.faults
def test_a_store_that_is_down_for_good_ends_in_one_line_and_going_on_gives_the_same_bytes(
    place, endpoint, expected, monkeypatch
):
    with Trouble(endpoint).running() as trouble:
        use(monkeypatch, trouble.endpoint, LANDSCAPE_STORE_RETRY="0.3")
        walk(place)

        def break_down(progress) -> None:
            trouble.down = progress.tasks_done >= 3

        with pytest.raises(StoreError) as caught:
            run(small_job(place), break_down)
        chunks = [path.partition("/c/")[2] for _, path in trouble.refused if not path.endswith(CARD)]
        refused = {
            chunk.removesuffix("/0") if chunk.count("/") == 2 else chunk for chunk in chunks
        }  # moments have 0/2/0
        assert refused == {"0/2"}, "one tile's chunks are tried for a while, and nothing else"
        assert caught.value.exit_code == 1
        assert str(caught.value) == (
            f"store '{place}/landscapes.zarr': PUT: 503 Service Unavailable (SlowDown); what was committed is intact: "
            "see that it answers, then give the same command again"
        )
        trouble.down = False
        store = LandscapeStore.open(place, "t")
        assert not store.examine().complete
        assert store.examine().damaged == ()
        run(small_job(place))
    assert Raw(place, endpoint).values() == expected


def test_a_store_that_does_not_answer_is_told_of_once_and_when_it_answers_again(place, endpoint, monkeypatch, caplog):
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 0.05)
    with Trouble(endpoint, silence=0.2).running() as trouble:
        use(monkeypatch, trouble.endpoint, LANDSCAPE_STORE_TIMEOUT="0.1", LANDSCAPE_STORE_RETRY="20")
        folder = open_folder(place)
        folder.write("a", b"1")
        assert not caplog.messages, "it has answered"
        monkeypatch.setattr(store_watch, "SILENT_SECONDS", 0.3)
        trouble.down = True
        writer = threading.Thread(target=folder.write, args=("a", b"2"))
        writer.start()
        wait_for(lambda: caplog.messages, "a word of the silence")
        time.sleep(0.3)
        trouble.down = False
        writer.join()
        monkeypatch.setattr(store_watch, "SILENT_SECONDS", 10.0)  # a loaded machine may answer after 0.3 s
        assert folder.read("a") == b"2"
    bucket = "/".join(place.split("/")[:3])
    silent, back = caplog.messages
    assert re.fullmatch(rf"store '{bucket}' has not answered for \d+ s; it is asked again for 20 s", silent)
    assert re.fullmatch(rf"store '{bucket}' answers again, after \d+ s", back)


def test_a_slow_request_beside_answered_ones_is_no_silence(caplog):
    now = 0.0
    watch = store_watch.SilenceWatch("s3://bucket", lambda: now)
    with watch.waiting(180.0):
        for now in (8.0, 16.0, 24.0):  # noqa: B007 - the clock of the watch
            with watch.waiting(180.0):
                pass
            watch.look()
        assert not caplog.messages
        now = 45.0
        for _ in range(2):
            watch.look()
        assert caplog.messages == ["store 's3://bucket' has not answered for 21 s; it is asked again for 180 s"]
        now = 69.0
    assert caplog.messages[1:] == ["store 's3://bucket' answers again, after 45 s"]
    assert watch.is_idle


@pytest.mark.faults
def test_no_answer_is_never_taken_for_damage(place, endpoint, monkeypatch):
    with Trouble(endpoint).running() as trouble:
        use(monkeypatch, trouble.endpoint, LANDSCAPE_STORE_RETRY="0.3")
        walk(place)
        run(small_job(place))
        store = LandscapeStore.open(place, "t")
        snapshot = read_trajectory(place).snapshot(2)
        assert store.examine().complete
        trouble.down = True
        looks = {
            "examine": store.examine, "check": store.check_constants, "surface": store.read_surface,
            "directions": store.directions, "grid": store.grid, "path": store.path_plan, "snapshot": snapshot.load,
            "history": lambda: read_history(place), "open": lambda: open_run(place),
            "names": lambda: list(trouble_free),
        }  # fmt: skip
        trouble.down = False
        trouble_free = open_run(place)
        trouble.down = True
        for name, look in looks.items():
            with pytest.raises(StoreError, match="503"):
                pytest.fail(f"{name} took no answer for an answer: {look()}")
        trouble.down = False
        assert store.examine().complete


def test_a_bucket_that_is_gone_is_never_taken_for_damage(place, endpoint):
    assert request(endpoint, "PUT", "/doomed").status == 200
    doomed = new_url("doomed")
    walk(doomed)
    run(small_job(doomed))
    store, raw = LandscapeStore.open(doomed, "t"), Raw(doomed, endpoint)
    raw.delete_all()
    assert request(endpoint, "DELETE", "/doomed").status == 204
    for look in (store.examine, store.read_surface, lambda: open_run(doomed), lambda: run(small_job(doomed))):
        with pytest.raises(StoreError, match=r"there is no such bucket; .*: make it or name another"):
            look()


def test_history_is_put_at_the_ends_of_epochs_and_after_a_while(place):
    now = [0.0]
    folder = open_folder(place)
    log = ObjectLog(folder, "history.jsonl", lambda: now[0])
    log.add(b"1\n")
    assert folder.read("history.jsonl") is None
    log.sync()
    assert folder.read("history.jsonl") == b"1\n"
    now[0] = 29.0
    log.add(b"2\n")
    assert folder.read("history.jsonl") == b"1\n"
    now[0] = 31.0
    log.add(b"3\n")
    assert folder.read("history.jsonl") == b"1\n2\n3\n"
    log.add(b"4\n")
    del log
    assert folder.read("history.jsonl") == b"1\n2\n3\n4\n", "a log that ends in peace loses nothing"
    again = ObjectLog(folder, "history.jsonl", lambda: now[0])
    again.add(b"5\n")
    again.sync()
    assert folder.read("history.jsonl") == b"1\n2\n3\n4\n5\n"


def test_a_file_larger_than_a_part_comes_back_as_it_was(place, monkeypatch):
    monkeypatch.setattr("landscape.core.object_store.PART", 1 << 20)
    data = os.urandom((11 << 20) + 17)
    folder = open_folder(place)
    folder.write("large", data)
    with folder.fetched("large") as file:
        assert file.read_bytes() == data


# -- one driver --------------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from landscape.core.lock import run_lock
with run_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def start(code: str, *arguments: str, endpoint: str) -> subprocess.Popen:
    given = environment(endpoint, LANDSCAPE_STORE_LEASE=str(LEASE), PYTHONPATH=ROOT)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=os.environ | given, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.faults
def test_a_killed_drivers_lock_is_taken_over_after_a_lease_and_not_before(place, endpoint, caplog):
    walk(place)
    holder = start(HOLDER, place, endpoint=endpoint)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LandscapeError, match=rf"is being written by process {holder.pid} on .*; wait for it or"):
            run(small_job(place))
        assert driver_alive(place)
    finally:
        holder.kill()
        holder.communicate()
    with run_lock(place):
        assert f"has not renewed its lock for {LEASE:g} s; taking the lock over" in caplog.text
        assert json.loads(Raw(place, endpoint).read(CARD))["pid"] == os.getpid()
    assert not driver_alive(place)


PAUSED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from small_models import Counter, make_job, quadratic_problem
from landscape import Problem, run
problem, calls = quadratic_problem(), []
def pause(model):
    calls.append(1)
    if len(calls) == 12:
        os.kill(os.getpid(), signal.SIGSTOP)
counted = Problem(problem.model, problem.data, Counter(problem.observe, pause))
try:
    run(make_job(sys.argv[1], lambda: counted, [{"name": "t", "trajectory": "all", "size": [5, 4]}], tile=2))
except Exception as error:
    print(type(error).__name__, error)
"""


def wait_until_stopped(process: subprocess.Popen) -> None:
    end = time.monotonic() + 150
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow  # several leases long; of many drivers that take over one wins in `make test-faults`
def test_a_paused_driver_that_wakes_after_a_takeover_writes_nothing_more(place, endpoint, expected):
    walk(place)
    with Trouble(endpoint).running() as watched:
        paused = start(PAUSED, place, SUPPORT, endpoint=watched.endpoint)
        try:
            wait_until_stopped(paused)
            assert not LandscapeStore.open(place, "t").examine().complete
            run(small_job(place))
            assert Raw(place, endpoint).values() == expected
            before = Raw(place, endpoint).digests()
            woken = time.monotonic()
            paused.send_signal(signal.SIGCONT)
            said, _ = paused.communicate(timeout=150)
        finally:
            paused.kill()
            paused.communicate()
    assert said.startswith("LandscapeError run:")
    assert "taken over by another driver, which has ended, while this one was silent" in said
    writes = [(method, path) for at, method, path in watched.log if at > woken and method in ("PUT", "POST", "DELETE")]
    assert {path.rpartition("/")[2] for _, path in writes} <= {CARD}, writes
    assert Raw(place, endpoint).digests() == before


def contenders(place: str, count: int) -> list[Lease]:
    return [Lease(open_folder(place), LEASE) for _ in range(count)]


def contend(leases: list[Lease]) -> tuple[list[Lease], list[LandscapeError]]:
    """All try at once; whoever gets it keeps it alive."""
    won: list[Lease] = []
    refused: list[LandscapeError] = []

    def try_one(each: Lease) -> None:
        try:
            each.acquire()
            won.append(each)
            each.beat()
        except LandscapeError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_one, args=(each,)) for each in leases]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 150
    while len(won) + len(refused) < len(leases) and time.monotonic() < end:
        time.sleep(0.02)
    for each in won:
        each.stop()
    for thread in threads:
        thread.join()
    return won, refused


@pytest.mark.faults
def test_of_many_drivers_one_wins_also_when_they_take_over(place):
    won, refused = contend(contenders(place, 5))
    assert (len(won), len(refused)) == (1, 4)
    # The winner is silent from here on, as if killed.
    again, refused = contend(contenders(place, 5))
    assert (len(again), len(refused)) == (1, 4)
    with pytest.raises(LandscapeError, match="was taken over by process"):
        won[0].renew()
    with pytest.raises(LandscapeError, match="was taken over by process"):
        won[0].check()
    again[0].check()
    won[0].release()
    again[0].check()
    assert driver_alive(place), "who lost the lock does not free it"
    again[0].release()
    assert not driver_alive(place)


def test_a_lock_whose_answer_was_lost_is_held_all_the_same(place, endpoint, monkeypatch):
    with Trouble(endpoint).running() as trouble:
        use(monkeypatch, trouble.endpoint, LANDSCAPE_STORE_LEASE="5")
        trouble.script = ["late"]
        with run_lock(place):
            open_folder(place).write("a", b"1")
            assert not trouble.script
        held = Lease(open_folder(place), 5.0)
        held.acquire()
        trouble.script = ["late"]
        held.renew()
        assert not trouble.script
        held.renew()
        held.release()
    assert Raw(place, endpoint).keys() == ["a"]


def test_a_driver_that_cannot_renew_writes_on_only_when_the_store_says_it_is_still_its_own(place, endpoint):
    now = [0.0]
    held = Lease(open_folder(place), 10.0, lambda: now[0])
    held.acquire()
    requests = json.loads(Raw(place, endpoint).read(CARD))["beat"]
    now[0] = 4.9
    held.check()
    assert json.loads(Raw(place, endpoint).read(CARD))["beat"] == requests, "known from the last beat"
    now[0] = 5.1
    held.check()
    assert json.loads(Raw(place, endpoint).read(CARD))["beat"] == requests + 1, "asked, as the last beat was long ago"
    held.release()


# -- names, credentials, secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_, message",
    [
        ("ftp://host/run", r"unknown kind of URL 'ftp://'; known: file, s3, s3a, gs, az"),
        ("s4://bucket/run", r"unknown kind of URL 's4://'; did you mean 's3'\?"),
        ("s3://key:secretword@bucket/run", r"must not hold credentials \('?s3://…@bucket"),
        (
            "s3://bucket/run?X-Amz-Signature=secretword",
            r"without '\?' and '#'|must not hold credentials \('s3://bucket/run\?…'\)",
        ),
        ("s3:///run", "must name a bucket"),
    ],
)
def test_urls_that_cannot_be_runs_are_refused(run_, message):
    with pytest.raises(JobError, match=message) as caught:
        open_run(run_)
    assert "secretword" not in str(caught.value)
    with pytest.raises(JobError, match=message):
        run(small_job(run_))


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"AWS_ENDPOINT_URL": "http://me:secretword@h:1"}, JobError, "AWS_ENDPOINT_URL: must not hold credentials"),
        ({"AWS_ALLOW_HTTP": ""}, JobError, "AWS_ENDPOINT_URL: is plain http, .* unless AWS_ALLOW_HTTP=true"),
        ({"LANDSCAPE_STORE_TIMEOUT": "soon"}, JobError, "LANDSCAPE_STORE_TIMEOUT: must be a number of seconds above 0"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, StoreError, r"store 's3://.*': GET: .*; .*: see that it answers"),
    ],
)
def test_settings_that_do_not_serve_are_named(place, monkeypatch, changes, error, message):
    for name, value in {"LANDSCAPE_STORE_RETRY": "0.2", **changes}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=message) as caught:
        open_run(place)
    assert "secretword" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sent_job_without_credentials_is_told_where_its_driver_has_them_from(monkeypatch):
    """Those of the shell that sent it may well be set there, and are not sent, but by sbatch."""
    asks_machine = ValueError("Error performing PUT http://169.254.169.254/latest/api/token: timed out")
    here = str(store_error("s3://bucket/run", asks_machine, {}))
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles in ~/.aws are not read), then give" in here
    monkeypatch.setenv("LANDSCAPE_SENT_FROM", "node-1:/home/me")
    there = str(store_error("s3://bucket/run", asks_machine, {}))
    assert "where the Ray head is started, or in the Secret of --secret (only jobs on Slurm have" in there


@pytest.mark.long
def test_without_obstore_the_remedy_is_named():
    opening = "from landscape.core.folders import open_folder\nopen_folder('s3://bucket/run')"
    code = f"import sys\nsys.modules['obstore'] = None\n{opening}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "needs the package obstore; `pip install 'loss-landscape-cluster[object-store]'`" in done.stderr


def test_other_clouds_are_set_up_from_their_own_environment(monkeypatch, tmp_path):
    from obstore.store import AzureStore, GCSStore, S3Store

    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    assert isinstance(open_folder("gs://bucket/some/run").store, GCSStore)
    assert open_folder("gs://bucket/some/run").store.prefix == "some/run"
    with pytest.raises(JobError, match=r"'az://container/run' cannot be opened: .*Account must be specified"):
        open_folder("az://container/run")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "mine")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    assert isinstance(open_folder("az://container/run").store, AzureStore)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    assert isinstance(open_folder("az://container/run/").store, AzureStore)
    assert isinstance(open_folder("s3://bucket").store, S3Store)
    assert open_folder("s3://bucket/a/").name == "s3://bucket/a"
    assert open_folder("s3://bucket/a") is open_folder("s3://bucket/a/"), "connections are kept"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert open_folder("s3://bucket/a") is not open_folder(f"file://{tmp_path}")
    assert open_folder(f"file://{tmp_path}").name == str(tmp_path)


def test_a_store_without_conditional_puts_is_found_out(place, endpoint, monkeypatch):
    folder = open_folder(place)
    monkeypatch.setattr(type(folder), "create", lambda self, path, data: self.write(path, data) or {"e_tag": "x"})
    with pytest.raises(StoreError, match="takes no conditional puts"):
        list(probe(place))
    assert Raw(place, endpoint).keys() == []


def test_secrets_reach_neither_the_store_nor_what_is_said(place, endpoint, monkeypatch, capfd):
    walk(place)
    run(small_job(place))
    raw = Raw(place, endpoint)
    said = [repr(open_folder(place)), repr(open_run(place)), str(open_folder(place).store)]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("LANDSCAPE_STORE_RETRY", "0.2")
    with pytest.raises(StoreError) as caught:
        open_run(place)
    said += [str(caught.value), *capfd.readouterr()]
    for text in said:
        assert SECRET not in text
    # The chunks have the bytes of a run in a folder, as other tests show.
    for data in map(raw.read, (key for key in raw.keys() if "/c/" not in key)):  # noqa: SIM118
        assert SECRET.encode() not in data
        assert endpoint.encode() not in data


def test_a_path_may_lie_in_an_object_store(place: str, tmp_path: Path):
    walk(place)
    walk(str(tmp_path / "near"))
    spec = {"name": "both", "paths": [place, {"run": str(tmp_path / "near"), "label": "near"}], "size": 3}
    surface = run(make_job(tmp_path / "run", quadratic_problem, [spec], engine="eager"))["both"]
    far, near = surface.paths
    assert far.label == place.rpartition("/")[2]
    assert far.loss.tobytes() == near.loss.tobytes()
    assert surface.record.origin == f"{far.label} epoch 4"
