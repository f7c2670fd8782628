"""The Slurm script on a real one-node Slurm of the test's own: requeued in mid-run, it ends with the same bits."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import undisturbed
from real_commands import HELD, committed, free_port
from waiting import wait_for

import landscape
from landscape.store.results import open_run

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
ROOT = Path(__file__).parents[3]
missing = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}: apt install slurm-wlm munge"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root"),
    pytest.mark.timeout(280),
]


def configuration(folder: Path) -> str:
    host = socket.gethostname()
    return textwrap.dedent(
        f"""\
        ClusterName=test
        SlurmctldHost={host}(127.0.0.1)
        SlurmctldPort={free_port()}
        SlurmdPort={free_port()}
        SlurmUser=root
        AuthType=auth/munge
        AuthInfo=socket={folder}/munge/socket
        ProctrackType=proctrack/pgid
        TaskPlugin=task/none
        SchedulerType=sched/backfill
        SelectType=select/cons_tres
        MpiDefault=none
        ReturnToService=2
        KillWait=15
        StateSaveLocation={folder}/state
        SlurmdSpoolDir={folder}/spool
        SlurmctldPidFile={folder}/slurmctld.pid
        SlurmdPidFile={folder}/slurmd.pid
        SlurmctldLogFile={folder}/slurmctld.log
        SlurmdLogFile={folder}/slurmd.log
        NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
        PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0
        """
    )


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The environment of a Slurm whose daemons, keys and ports are this test's own."""
    folder = Path(tempfile.mkdtemp(prefix="slurm"))
    folder.chmod(0o755)
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o400)
    for each in (munge, munge / "key"):
        shutil.chown(each, "munge")
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "slurm.conf").write_text(configuration(folder))
    environment = {
        **os.environ,
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("RAY_ADDRESS", None)
    at = [f"--{name}-file={munge}/{name}" for name in ("key", "pid", "log", "seed")]
    commands = [(["munged", "-F", f"--socket={munge}/socket", *at], "munge"), (["slurmctld", "-D"], None)]
    commands.append((["slurmd", "-D"], None))
    daemons = []
    try:
        for command, user in commands:
            daemons.append(
                subprocess.Popen(
                    command, env=environment, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            if user:
                wait_for((munge / "socket").exists, "munged does not start")

        def idle() -> bool:
            asked = ["sinfo", "--noheader", "--format=%T"]
            return subprocess.run(asked, env=environment, capture_output=True, text=True).stdout.strip() == "idle"

        wait_for(idle, lambda: (folder / "slurmctld.log").read_text()[-2000:])
        yield environment
        subprocess.run(["scancel", "--user=root"], env=environment, check=False)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def state(number: str, environment: dict[str, str]) -> dict[str, str]:
    asked = ["scontrol", "show", "job", number, "--oneliner"]
    text = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(part.partition("=")[::2] for part in text.split() if "=" in part)


def finish(job, number: str, environment: dict[str, str]) -> None:
    """Let it end. Slurm holds a requeued job for two minutes, until its credentials expire: here not."""
    (job.folder / "hurry").touch()
    settled = ["PENDING", "RUNNING", "COMPLETED", "FAILED"]
    wait_for(lambda: state(number, environment)["JobState"] in settled, "still completing")
    time.sleep(3)
    subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], env=environment, check=False)

    def ended() -> bool:
        return state(number, environment)["JobState"] in ("COMPLETED", "FAILED")

    wait_for(ended, lambda: f"{log_of(job)}\n{state(number, environment)}", 120)
    assert state(number, environment)["JobState"] == "COMPLETED", log_of(job)
    assert not list(Path("/tmp").glob(f"landscape-{number}-*")), "temporary folders are left behind"


def submit(job, environment: dict[str, str], *options: str) -> str:
    command = [sys.executable, "-m", "cluster", "submit", str(job.folder / "job.yaml"), "--target", "slurm"]
    sent = subprocess.run(
        [*command, "--workers", "2", *options],
        env=environment, cwd=job.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    return sent.stdout.strip()


def log_of(job) -> str:
    return "\n".join(each.read_text() for each in job.folder.glob("landscape-*.log"))


def assert_same_bits(job, expected) -> None:
    found = open_run(job.run_path)["plane"]
    for name in expected.observables:
        assert found[name].tobytes() == expected[name].tobytes(), name


def test_requeued_in_mid_run_it_ends_with_the_bits_of_an_undisturbed_run(slurm, make_job):
    job = make_job(HELD, tile=[1])
    expected = undisturbed(job)
    number = submit(job, slurm)
    wait_for(lambda: committed(job.run_path) >= 5, lambda: log_of(job), 120)
    subprocess.run(["scontrol", "requeue", number], env=slurm, check=True)
    wait_for(lambda: state(number, slurm)["Restarts"] == "1", "not requeued", 60)
    before = committed(job.run_path)
    assert 5 <= before < 63
    finish(job, number, slurm)
    assert_same_bits(job, expected)


def test_at_the_time_limit_it_stops_in_order_and_requeues_itself(slurm, make_job):
    job = make_job(HELD, tile=[1])
    expected = undisturbed(job)
    number = submit(job, slurm)
    wait_for(lambda: committed(job.run_path) >= 5, lambda: log_of(job), 120)
    # The signal that Slurm sends a minute before the limit, to the batch shell alone.
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], env=slurm, check=True)
    wait_for(lambda: state(number, slurm)["Restarts"] == "1", lambda: log_of(job), 60)
    assert "the same command goes on" in log_of(job)
    assert committed(job.run_path) < 63
    finish(job, number, slurm)
    assert_same_bits(job, expected)


def test_cancelled_it_leaves_a_valid_run_and_is_not_requeued(slurm, make_job):
    job = make_job(HELD, tile=[1])
    number = submit(job, slurm)
    wait_for(lambda: committed(job.run_path) >= 5, lambda: log_of(job), 120)
    subprocess.run(["scancel", number], env=slurm, check=True)
    wait_for(lambda: state(number, slurm)["JobState"] == "CANCELLED", "not cancelled")
    time.sleep(1)
    assert state(number, slurm)["Restarts"] == "0"
    done = committed(job.run_path)
    assert 5 <= done < 63
    (job.folder / "hurry").touch()
    landscape.run(job)
    assert committed(job.run_path) == 63
