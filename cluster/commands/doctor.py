"""`landscape doctor`: what this machine, cluster and run have, and what is wrong.

`python -m cluster.commands.doctor --install` gets a Chromium for pictures where this machine lets us.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from cluster.commands.output import Json, show
from cluster.runtime.address import IN_A_RAY_JOB, check_address, head_place, is_beyond, is_loopback
from cluster.runtime.console import divert_stdout
from landscape.core.errors import ClusterUnreachableError, LandscapeError, one_line, quoted
from landscape.core.files import whole_file


def doctor(*, address: str | None = None, run: str | None = None, json: Json = False) -> int:
    """Show what this machine, cluster and run have, what is wrong, and how to mend it.

    Exit code 1 where something is wrong, 5 where the cluster does not answer.

    Parameters
    ----------
    address
        A Ray cluster to look at too.
    run
        A run folder or URL to try out too: a probe is written there, read, listed and deleted.
    """

    with divert_stdout():
        found = diagnose(address, run)
    show(found, json, diagnosis_text(found))
    return exit_code(found)


# ----------------------------------------------------------------------------------------------------
# What a check of `landscape doctor` is, and what its results are: what was looked at, its state, how to mend it.

GOOD, NOTE, WRONG = "good", "note", "wrong"

# The keys are what, state, value and remedy, and `unreachable` where a cluster does not answer; `--json` prints them.
CheckResult = dict[str, str]
Check = Callable[[], Iterable[CheckResult]]


def result(what: str, state: str, value: str, remedy: str = "") -> CheckResult:
    """A result.

    Args:
        what: the thing that was looked at.
        state: GOOD, NOTE or WRONG.
        value: what was seen.
        remedy: how to mend it; empty where it is good.
    """
    return {"what": what, "state": state, "value": value, "remedy": remedy}


def judge_value(what: str, bad: bool, value: str, remedy: str, state: str = WRONG) -> CheckResult:
    """A result with this state and remedy where it is bad, else a good one without a remedy."""
    return result(what, state, value, remedy) if bad else result(what, GOOD, value)


def run_check(what: str, check: Check) -> Iterator[CheckResult]:
    """The results of a check; where it raises, that is a result. Our own errors give the remedy after a semicolon."""
    try:
        yield from check()
    except LandscapeError as error:
        cause, _, remedy = str(error).removeprefix(f"{what}: ").partition("; ")
        kind = {"unreachable": "yes"} if isinstance(error, ClusterUnreachableError) else {}
        yield result(what, WRONG, cause, remedy) | kind
    except Exception as error:
        yield result(what, WRONG, one_line(error), "mend what the message says, then look again")


def exit_code(results: Iterable[CheckResult]) -> int:
    """5 where the cluster does not answer, 1 where anything else is wrong, else 0."""
    wrong = [one for one in results if one["state"] == WRONG]
    if any("unreachable" in one for one in wrong):
        return ClusterUnreachableError.exit_code
    return 1 if wrong else 0


# ----------------------------------------------------------------------------------------------------
# What `landscape doctor --address` looks at: the head, its guard, and every node from a task that runs there.

NODE_SECONDS = 60.0  # until a node that does not answer is taken for hung
SLOW_CONNECTION = 0.1  # seconds to open a connection to the head; Ray opens many
LARGEST_SKEW = 2 * NODE_SECONDS  # between the driver's clock and a node's; the answer itself may take half of it
SMALLEST_DISK, SMALLEST_SHM = 2e9, 1e9
VERSIONS = ("python", "ray", "torch")


def examine(address: str) -> Iterator[CheckResult]:
    """Every check of a cluster, the first look at its address included.

    Raises:
        ClusterUnreachableError: no cluster answers, or not to this process.
    """
    import ray

    from cluster.runtime.session import ray_session
    from landscape.job.job import Job

    start = time.monotonic()
    answer = check_address(address, allow_open=True)
    seconds = time.monotonic() - start
    yield judge_value(
        "address", seconds > SLOW_CONNECTION + 1, f"{address} answers in {seconds:.2f} s",
        "a driver nearer to the head hears of failures sooner", NOTE,
    )  # fmt: skip
    yield _guard(address, answer)
    start = time.monotonic()
    with ray_session(Job(run=".", problem="doctor:none", device="cpu"), address, 1, allow_open=True):
        attached = time.monotonic() - start
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield check_places(nodes, ray.available_resources(), attached)
        yield from _nodes(nodes)
    yield from _stop_time()


def _guard(address: str, answer: str) -> CheckResult:
    if answer == "token":
        return result("authentication", GOOD, "the cluster asks for a token")
    if answer == "tls":
        return result("authentication", GOOD, "certificates on both sides (RAY_USE_TLS)")
    host, port = head_place(address)
    if not is_beyond(host, port):
        return result(
            "authentication", NOTE, "none: who reaches the head can run code on it",
            "start it with RAY_AUTH_MODE=token where others use this machine",
        )  # fmt: skip
    return result(
        "authentication", NOTE if is_loopback(host) else WRONG,
        "none, and it listens beyond this machine: who reaches the head can run code on it",
        "start every node with RAY_AUTH_MODE=token; `landscape run` needs --allow-open to attach from elsewhere",
    )  # fmt: skip


def check_places(nodes: list[dict[str, Any]], free: dict[str, float], seconds: float) -> CheckResult:
    """Whether the cluster has places for workers, and whether some are free.

    Args:
        nodes: those that are alive, as `ray.nodes()` describes them.
        free: what no job holds, by resource.
        seconds: how long attaching took.
    """
    total = {name: sum(node["Resources"].get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    text = ", ".join(f"{free.get(name, 0):g} of {amount:g} {name}s free" for name, amount in total.items())
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    none = not total["CPU"] and not total["GPU"]
    busy = not none and not any(free.get(name, 0) for name in total)
    remedy = "add nodes: workers have no place" if none else "other jobs hold everything: workers wait for them"
    return judge_value(
        "cluster", none or busy, f"{count}, {text}; attached in {seconds:.1f} s", remedy, WRONG if none else NOTE
    )  # fmt: skip


def _nodes(nodes: list[dict[str, Any]]) -> Iterator[CheckResult]:
    """A task on each node, all at once: what it has, and how that differs from here."""
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look, start = ray.remote(_looker()), time.monotonic()
    asked = {}
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[look.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()] = node
    for reference, node in asked.items():
        name = f"node {node['NodeManagerHostname']} {node['NodeID'][:8]}"
        left = max(0.0, start + NODE_SECONDS - time.monotonic())
        try:
            seen = ray.get(reference, timeout=left)
        except GetTimeoutError:
            yield result(
                name, WRONG, f"no task has run there within {NODE_SECONDS:g} s",
                "look at that node's raylet and its log; its ports must be open to the other nodes",
            )  # fmt: skip
            continue
        yield from check_node(name, node, seen)


def _looker() -> Callable[[], dict[str, Any]]:
    """The task that reports what its node has; a closure, so that Ray pickles it whole: this package may be missing."""

    def look() -> dict[str, Any]:
        import os
        import platform
        import shutil
        import time
        from importlib.metadata import version

        seen: dict[str, Any] = {"python": platform.python_version(), "ray": version("ray"), "torch": "none", "cuda": 0}
        try:
            import torch

            seen |= {"torch": version("torch"), "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0}
        except ImportError:
            pass
        seen["shm"] = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None
        return seen | {"disk": shutil.disk_usage("/tmp").free, "clock": time.time()}

    return look


def check_node(name: str, node: dict[str, Any], seen: dict[str, Any]) -> Iterator[CheckResult]:
    """What is different on a node from here, or missing there.

    Args:
        node: as `ray.nodes()` describes it.
        seen: what a task on the node found there.
    """
    here = {"python": platform.python_version(), "ray": version("ray"), "torch": version("torch")}
    different = [f"{each} {seen[each]} there, {here[each]} here" for each in VERSIONS if seen[each] != here[each]]
    yield judge_value(
        name, bool(different), ", ".join(different or [f"{each} {seen[each]}" for each in VERSIONS]),
        "install the same there and here: values and pickles differ between versions",
    )  # fmt: skip
    gpus = int(node["Resources"].get("GPU", 0))
    if gpus > seen["cuda"]:
        yield result(
            name, WRONG, f"Ray counts {gpus} GPUs, torch sees {seen['cuda']}",
            "install a CUDA build of torch there, and check nvidia-smi",
        )  # fmt: skip
    if seen["shm"] is not None and seen["shm"] < SMALLEST_SHM:
        yield result(name, WRONG, f"{seen['shm'] / 1e9:.1f} GB of shared memory free", "give its container --shm-size")
    if seen["disk"] < SMALLEST_DISK:
        yield result(name, WRONG, f"{seen['disk'] / 1e9:.1f} GB free in its temporary folder", "make room there")
    skew = seen["clock"] - time.time()
    if abs(skew) > LARGEST_SKEW:
        yield result(name, NOTE, f"its clock is {skew:.0f} s off", "run NTP: times in logs will mislead")


def _stop_time() -> Iterator[CheckResult]:
    """Inside a Ray job: how long `ray job stop` waits before it kills."""
    if IN_A_RAY_JOB not in os.environ:
        return
    seconds = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", "3"))
    yield judge_value(
        "stop time", seconds < 10, f"{seconds:g} s from `ray job stop` to the kill",
        "set RAY_JOB_STOP_WAIT_TIME_S=60 in the job's env_vars, as `landscape submit` does",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# What this machine has: versions, devices, memory, disk, names and ports.

# What a head takes unless told otherwise: the cluster's own port, the dashboard, Ray Client.
HEAD_PORTS = (6379, 8265, 10001)


def _python() -> Iterator[CheckResult]:
    from landscape.core.devices import cores

    yield judge_value("python", sys.version_info < (3, 11), platform.python_version(), "needs 3.11 or later")
    yield result("cores", GOOD, f"{cores()} of {os.cpu_count()}")


def _torch() -> Iterator[CheckResult]:
    import torch

    yield result("torch", GOOD, torch.__version__)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            memory = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
            yield result(f"gpu {index}", GOOD, f"{torch.cuda.get_device_name(index)}, {memory}")
    elif torch.version.cuda:
        remedy = "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield result("gpu", WRONG, "torch is built for CUDA and sees no GPU", remedy)
    else:
        remedy = "landscapes run on the CPU; for GPUs install a CUDA build of torch"
        yield result("gpu", NOTE, "none: torch is the CPU build", remedy)


def _ray() -> Iterator[CheckResult]:
    yield result("ray", GOOD, version("ray"))
    address = os.environ.get("RAY_ADDRESS")
    if address:
        yield result("RAY_ADDRESS", NOTE, address, "`landscape run` attaches to it unless --address says otherwise")


def _zarr() -> Iterator[CheckResult]:
    found = version("zarr")
    old = tuple(int(part) for part in found.split(".")[:3]) < (3, 1, 3)
    yield judge_value("zarr", old, found, "3.1.3 is the first whose files appear whole: pip install -U zarr")


def _browser() -> Iterator[CheckResult]:
    from landscape.views.exporting import find_browser

    try:
        yield result("kaleido", GOOD, version("kaleido"))
    except PackageNotFoundError:
        remedy = "PNG and SVG export needs it: pip install 'loss-landscape-cluster[export]'"
        yield result("kaleido", NOTE, "not installed", remedy)
        return
    browser = find_browser()
    remedy = "PNG and SVG export needs one: apt install chromium, or set BROWSER_PATH"
    yield judge_value("browser", browser is None, browser or "no Chromium found", remedy, NOTE)


def _memory() -> Iterator[CheckResult]:
    if os.path.isdir("/dev/shm"):
        remedy = "Ray keeps samples and directions there: give the container --shm-size"
        yield _room("shared memory", "/dev/shm", SMALLEST_SHM, remedy)


def _disk() -> Iterator[CheckResult]:
    yield _room("disk", Path.cwd(), SMALLEST_DISK, "make room")
    yield _room("temporary folder", tempfile.gettempdir(), SMALLEST_DISK, "make room")
    if not os.access(Path.cwd(), os.W_OK):
        yield result("working directory", WRONG, "not writable", "change to a folder of your own")


def _room(what: str, place: str | Path, least: float, remedy: str) -> CheckResult:
    """Whether a disk has so many bytes free."""
    free = shutil.disk_usage(place).free
    return judge_value(what, free < least, f"{free / 1e9:.1f} GB free", remedy)


def check_network() -> Iterator[CheckResult]:
    """Whether this machine has a name and free ports, and whether a head started here would find its own."""
    host = socket.gethostname()
    try:
        place = socket.gethostbyname(host)
    except OSError:
        yield result(
            "host name", WRONG, f"{quoted(host)} has no address", "add it to /etc/hosts: Ray's nodes look it up"
        )
        return
    yield result("host name", GOOD, f"{host}, {place}")
    with socket.socket() as any_port:
        any_port.bind(("", 0))  # raises where none is left
    taken = [port for port in HEAD_PORTS if not _free(port)]
    yield judge_value(
        "ports", bool(taken), f"{', '.join(map(str, taken))} in use" if taken else "those of a Ray head are free",
        "a head that is to start here needs others, or is there already; `landscape run` takes free ones", NOTE,
    )  # fmt: skip


def _free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


MACHINE_CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", _python), ("torch", _torch), ("ray", _ray), ("zarr", _zarr), ("browser", _browser),
    ("shared memory", _memory), ("disk", _disk), ("network", check_network),
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# Whether a run can be kept at a place, and how long a commit takes there.

PROBE_BYTES, PROBES = 64 << 10, 5
REMEDIES = {errno.ENOSPC: "make room", errno.EDQUOT: "make room", errno.EROFS: "mount it for writing"}
SLOW_STORE = 0.2  # seconds to commit one file; a tile is some ten of them


def probe_run(run: str) -> Iterator[CheckResult]:
    """Whether a run can be kept there, and how long a commit takes; leaves nothing behind."""
    from landscape.core.folders import locate

    place = locate(run, Path.cwd())
    if "://" in place:
        yield from _probe_store(place)
        return
    folder = Path(place)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        times = list(probe(str(there)))
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "change its rights")
        yield result("run", WRONG, f"{there}: {error.strerror or error}", f"{remedy}, or name another place")
        return
    yield result("run", GOOD, str(folder) if there == folder else f"{folder} (new, in {there})")
    yield _room("run's disk", there, SMALLEST_DISK, "make room, or name another place")
    slow = any(seconds > SLOW_STORE for _, seconds in times)
    yield judge_value(
        "run's latency", slow, ", ".join(f"{what} {1000 * seconds:.3g} ms" for what, seconds in times),
        "each tile waits for it some ten times: prefer a faster file system, or larger tiles", NOTE,
    )  # fmt: skip


def _probe_store(url: str) -> Iterator[CheckResult]:
    """Whether a run can be kept in an object store, and whether that keeps two drivers apart."""
    from landscape.core.folders import open_folder
    from landscape.core.folders import probe as probe_folder

    try:
        times = [f"{what} {1000 * seconds:.3g} ms" for what, seconds in probe_folder(url)]
    except LandscapeError as error:
        yield result("run", WRONG, str(error))
        return
    yield result("run", GOOD, f"{open_folder(url).name}: {', '.join(times)}")


def probe(folder: str) -> Iterator[tuple[str, float]]:
    """The steps of a commit with their median seconds: lock, write and sync, read back, delete."""
    from filelock import FileLock

    content, file = os.urandom(PROBE_BYTES), Path(folder) / f".probe-{os.getpid()}"
    seconds: dict[str, list[float]] = {}

    def timed(what: str, step: Callable[[], object]) -> object:
        start = time.perf_counter()
        result = step()
        seconds.setdefault(what, []).append(time.perf_counter() - start)
        return result

    try:
        lock = FileLock(str(file), timeout=5)
        timed("lock", lock.acquire)
        lock.release()
        for _ in range(PROBES):
            timed("write and sync", lambda: _write(file, content))
            if timed("read", file.read_bytes) != content:
                raise OSError(errno.EIO, "what is read is not what was written")
            timed("delete", file.unlink)
    finally:
        file.unlink(missing_ok=True)
    yield from ((what, median(each)) for what, each in seconds.items())


def _write(file: Path, content: bytes) -> None:
    with whole_file(file) as temporary:
        temporary.write_bytes(content)


def diagnose(address: str | None = None, run: str | None = None) -> list[CheckResult]:
    """The results of every check; a check that raises gives a result too.

    Args:
        address: a Ray cluster to look at too.
        run: a run folder or URL to try out too.
    """
    checks = [*MACHINE_CHECKS]
    if run is not None:
        checks.append(("run", partial(probe_run, run)))
    if address is not None:
        checks.append(("address", partial(examine, address)))
    return [one for what, check in checks for one in run_check(what, check)]


def diagnosis_text(results: list[CheckResult]) -> str:
    """The results as aligned lines."""
    width = max(len(one["what"]) for one in results)
    lines = []
    for one in results:
        remedy = f"; {one['remedy']}" if one["remedy"] else ""
        lines.append(f"{one['state']:5}  {one['what']:{width}}  {one['value']}{remedy}")
    lines.append(f"on {socket.gethostname()}")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------
# A Chromium for PNG and SVG pictures.

REMEDY = "PNG and SVG pictures need a Chromium: apt install chromium (as root), or set BROWSER_PATH to one"


def install_browser() -> bool:
    """Install Debian's Chromium where there is none and we may; says on stderr what it does."""
    from landscape.views.exporting import find_browser

    if find_browser():
        return True
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(REMEDY, file=sys.stderr)
        return False
    print("installing Debian's chromium, for PNG and SVG pictures", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "-qq", "update"], ["apt-get", "-qq", "install", "-y", "chromium"]):
        if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode:
            print(REMEDY, file=sys.stderr)
            return False
    return True


if __name__ == "__main__":
    from landscape.views.exporting import find_browser

    if "--install" in sys.argv[1:]:
        install_browser()
    print(find_browser() or REMEDY)
