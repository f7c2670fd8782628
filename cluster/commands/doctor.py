"""`landscape doctor`: what this machine, cluster and run have, and what is wrong.

`python -m cluster.commands.doctor --install` installs a Chromium for pictures if this machine permits it.
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
from pathlib import Path
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
        results = diagnose(address, run)
    show(results, json, diagnosis_text(results))
    return exit_code(results)


# ----------------------------------------------------------------------------------------------------
# A check of `landscape doctor`, and its results: what was examined, its state, and how to mend it.

GOOD, NOTE, WRONG = "good", "note", "wrong"

# The keys are what, state, value and remedy, and `unreachable` if a cluster does not answer; `--json` prints them.
CheckResult = dict[str, str]
Check = Callable[[], Iterable[CheckResult]]


def result(what: str, state: str, value: str, remedy: str = "") -> CheckResult:
    """A result.

    Args:
        what: the name of the thing that was examined.
        state: GOOD, NOTE or WRONG.
        value: the finding, in words.
        remedy: how to mend it; empty if it is good.
    """
    return {"what": what, "state": state, "value": value, "remedy": remedy}


def judge_value(what: str, bad: bool, value: str, remedy: str, state: str = WRONG) -> CheckResult:
    """A result with this state and remedy if it is bad, else a good one without a remedy."""
    return result(what, state, value, remedy) if bad else result(what, GOOD, value)


def version(package: str) -> str:
    """The version of an installed package.

    Raises:
        ImportError: it is not installed.
    """
    from importlib.metadata import version as installed_version  # here, since `--help` imports this file too

    return installed_version(package)


def run_check(what: str, check: Check) -> Iterator[CheckResult]:
    """The results of a check. An error gives a result too; a LandscapeError has its remedy after a semicolon."""
    try:
        yield from check()
    except LandscapeError as error:
        cause, _, remedy = str(error).removeprefix(f"{what}: ").partition("; ")
        unreachable = {"unreachable": "yes"} if isinstance(error, ClusterUnreachableError) else {}
        yield result(what, WRONG, cause, remedy) | unreachable
    except Exception as error:
        yield result(what, WRONG, one_line(error), "mend what the message says, then look again")


def exit_code(results: Iterable[CheckResult]) -> int:
    """5 if the cluster does not answer, 1 if anything else is wrong, else 0."""
    wrong = [result for result in results if result["state"] == WRONG]
    if any("unreachable" in result for result in wrong):
        return ClusterUnreachableError.exit_code
    return 1 if wrong else 0


# ----------------------------------------------------------------------------------------------------
# The checks of `landscape doctor --address`: the head, its authentication, and every node, from a task that runs there.

NODE_SECONDS = 60.0  # a node that does not answer for so long counts as hung
SLOW_CONNECTION = 0.1  # seconds to open a connection to the head; Ray opens many
LARGEST_SKEW = 2 * NODE_SECONDS  # between the clocks of driver and node; the answer alone may take half of this
SMALLEST_DISK, SMALLEST_SHM = 2e9, 1e9
VERSIONS = ("python", "ray", "torch")


def examine(address: str) -> Iterator[CheckResult]:
    """The results of every check of a cluster, from its address on.

    Raises:
        ClusterUnreachableError: no cluster answers, or it refuses this process.
    """
    from cluster.runtime.session import ray_session, refuse_without_ray
    from landscape.job.job import Job

    refuse_without_ray(or_serial=False)
    import ray

    start = time.monotonic()
    answer = check_address(address, allow_open=True)
    seconds = time.monotonic() - start
    yield judge_value(
        "address", seconds > SLOW_CONNECTION + 1, f"{address} answers in {seconds:.2f} s",
        "a driver nearer to the head hears of failures sooner", NOTE,
    )  # fmt: skip
    yield _authentication(address, answer)
    start = time.monotonic()
    with ray_session(Job(run=".", problem="doctor:none", device="cpu"), address, 1, allow_open=True):
        attached = time.monotonic() - start
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield check_places(nodes, ray.available_resources(), attached)
        yield from _nodes(nodes)
    yield from _stop_time()


def _authentication(address: str, answer: str) -> CheckResult:
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
    """Whether the cluster has CPUs or GPUs for workers, and whether some are free.

    Args:
        nodes: the nodes that are alive, as `ray.nodes()` describes them.
        free: the free amount of each resource.
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
    """Run a task on each node, all at once; the results say what the node has, and how it differs from this machine."""
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look, start = ray.remote(_make_look()), time.monotonic()
    tasks = {}
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        tasks[look.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()] = node
    for reference, node in tasks.items():
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


def _make_look() -> Callable[[], dict[str, Any]]:
    """Make the task that reports what its node has: a closure, which Ray pickles whole. A node may lack our code."""

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
    """What a node lacks, and how its software differs from that here.

    Args:
        node: as `ray.nodes()` describes it.
        seen: what a task on the node reported.
    """
    here = {"python": platform.python_version(), "ray": version("ray"), "torch": version("torch")}
    different = [f"{part} {seen[part]} there, {here[part]} here" for part in VERSIONS if seen[part] != here[part]]
    yield judge_value(
        name, bool(different), ", ".join(different or [f"{part} {seen[part]}" for part in VERSIONS]),
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
# The checks of this machine: versions, devices, memory, disk, names and ports.

# The default ports of a head: the cluster's own, the dashboard, Ray Client.
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
    try:
        yield result("ray", GOOD, version("ray"))
    except ImportError:
        remedy = "workers and clusters need it: pip install 'loss-landscape-cluster[ray]'"
        yield result("ray", NOTE, "not installed", remedy)
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        yield result("RAY_ADDRESS", NOTE, address, "`landscape run` attaches to it unless --address says otherwise")


def _zarr() -> Iterator[CheckResult]:
    installed = version("zarr")
    old = tuple(int(part) for part in installed.split(".")[:3]) < (3, 1, 3)
    yield judge_value("zarr", old, installed, "3.1.3 is the first whose files appear whole: pip install -U zarr")


def _browser() -> Iterator[CheckResult]:
    from landscape.views.exporting import find_browser

    try:
        yield result("kaleido", GOOD, version("kaleido"))
    except ImportError:
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
    """Whether the disk of a place has this many bytes free."""
    free = shutil.disk_usage(place).free
    return judge_value(what, free < least, f"{free / 1e9:.1f} GB free", remedy)


def check_network() -> Iterator[CheckResult]:
    """Whether the name of this machine has an address, and whether the ports of a Ray head are free."""
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
        any_port.bind(("", 0))  # raises if no port is left
    taken = [port for port in HEAD_PORTS if not _free(port)]
    yield judge_value(
        "ports", bool(taken), f"{', '.join(map(str, taken))} in use" if taken else "those of a Ray head are free",
        "a head that is to start here needs others, or is there already; `landscape run` takes free ones", NOTE,
    )  # fmt: skip


def _free(port: int) -> bool:
    with socket.socket() as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind(("", port))
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
SLOW_STORE = 0.2  # seconds to commit one file; a tile has about ten files


def probe_run(run: str) -> Iterator[CheckResult]:
    """Whether a run can be kept at a place, and how long a commit takes there; leaves nothing behind."""
    from landscape.core.folders import locate

    place = locate(run, Path.cwd())
    if "://" in place:
        yield from _probe_store(place)
        return
    folder = Path(place)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        times = list(probe(str(existing)))
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "change its rights")
        yield result("run", WRONG, f"{existing}: {error.strerror or error}", f"{remedy}, or name another place")
        return
    yield result("run", GOOD, str(folder) if existing == folder else f"{folder} (new, in {existing})")
    yield _room("run's disk", existing, SMALLEST_DISK, "make room, or name another place")
    slow = any(seconds > SLOW_STORE for _, seconds in times)
    yield judge_value(
        "run's latency", slow, ", ".join(f"{what} {1000 * seconds:.3g} ms" for what, seconds in times),
        "each tile waits for it some ten times: prefer a faster file system, or larger tiles", NOTE,
    )  # fmt: skip


def _probe_store(url: str) -> Iterator[CheckResult]:
    """Whether a run can be kept in an object store, and whether the store lets only one of two drivers write."""
    from landscape.core.folders import open_folder
    from landscape.core.folders import probe as probe_folder

    try:
        times = [f"{what} {1000 * seconds:.3g} ms" for what, seconds in probe_folder(url)]
    except LandscapeError as error:
        yield result("run", WRONG, str(error))
        return
    yield result("run", GOOD, f"{open_folder(url).name}: {', '.join(times)}")


def probe(folder: str) -> Iterator[tuple[str, float]]:
    """Time the steps of a commit: lock, write and sync, read, delete; each with its median seconds."""
    from statistics import median

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
    yield from ((what, median(times)) for what, times in seconds.items())


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
    return [result for what, check in checks for result in run_check(what, check)]


def diagnosis_text(results: list[CheckResult]) -> str:
    """The results as aligned lines."""
    width = max(len(result["what"]) for result in results)
    lines = []
    for result in results:
        remedy = f"; {result['remedy']}" if result["remedy"] else ""
        lines.append(f"{result['state']:5}  {result['what']:{width}}  {result['value']}{remedy}")
    lines.append(f"on {socket.gethostname()}")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------
# A Chromium for PNG and SVG pictures.

REMEDY = "PNG and SVG pictures need a Chromium: apt install chromium (as root), or set BROWSER_PATH to one"


def install_browser() -> bool:
    """Install Debian's Chromium if there is none and we may, with a line on stderr; returns whether there is one."""
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
