"""A Slurm batch script: a head, ports and a temporary folder for each job, a graceful stop, and requeueing."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Whole, Words
from cluster.runtime.shipping import travelling_folder
from cluster.submit.options import SubmitOptions, refuse_missing_files
from cluster.submit.submission import (
    SentJob,
    Submission,
    Work,
    command,
    first_line,
    job_state,
    remember,
    tool_missing,
)
from landscape.core.errors import ClusterUnreachableError, JobError, LandscapeError, NotFoundError, quoted

WARNING_SECONDS = 60  # before the time limit: enough to commit results in flight and to requeue
# The path of a socket has at most 107 characters, and Ray's below its folder take 64; a node's number takes the rest.
LONGEST_SCRATCH = 38
OWN_PORTS, FEWEST_PORTS = 10, 100  # ports of a node that Ray itself takes; and those that a range must have


@dataclass(frozen=True)
class SlurmTarget:
    """Slurm, through sbatch."""

    nodes: Whole = 1
    """Over how many nodes the workers are spread."""
    time: str | None = None
    """The time limit of one allocation; at its end the job is requeued and goes on."""
    partition: str | None = None
    """The partition."""
    account: str | None = None
    """The account."""
    qos: str | None = None
    """The quality of service."""
    reservation: str | None = None
    """The reservation."""
    constraint: str | None = None
    """The features that the nodes must have, such as 'a100&ib'."""
    gpu_type: str | None = None
    """The type of the GPUs, such as a100, where a site has several."""
    sbatch: Words = None
    """A further option of sbatch, such as exclusive or mail-type=END; may be repeated."""
    setup: str | None = None
    """A line of shell that makes `landscape` available, such as 'source venv/bin/activate'."""
    container: str | None = None
    """The command that runs others in a container, such as 'apptainer exec --nv landscape.sif'."""
    scratch: str = "/tmp"
    """The folder of temporary files on each node; may begin with a variable of the node, such as $SLURM_TMPDIR."""
    worker_ports: str | None = None
    """The ports that nodes may use among each other, such as 20000-20999; default: any that are free."""
    max_requeues: Whole = 20
    """After so many restarts the job is not requeued at its time limit, but ends, and can be sent again."""

    def send(self, asked: SubmitOptions, job: Work, file: Path) -> int:
        """Send the job, or with --dry-run print the script; returns the exit code."""
        refuse_missing_files(job)
        submission = asked.submission(job, file, job.run_path)
        script = render(submission, self)
        if asked.include:
            raise JobError("include: nothing travels to Slurm, whose nodes read the folder itself; leave it out")
        if asked.dry_run:
            folder = quoted(str(travelling_folder(job.folder)))
            write_remark(f"nothing travels: the nodes read {folder} itself, and must see it under this name")
        asked.look(job, file, submission.run)
        if asked.dry_run:
            sys.stdout.write(script)
            return 0
        number = send(script)
        log = Path(f"{submission.base}-{number}.log").absolute()
        remember(number, SentJob("slurm", submission.run, log=str(log)))
        print(number, flush=True)
        write_remark(f"sent; follow it with: tail -F {submission.base}-{number}.log; stop it with: scancel {number}")
        return 0


def render(submission: Submission, target: SlurmTarget) -> str:
    """The script; `sbatch` reads it from its standard input.

    Raises:
        JobError: no allocation fits the options.
    """
    share = _node_share(submission, target)
    _refuse_phrases(asdict(target) | {"memory": submission.memory})
    _check(target, share)
    attached = target.nodes > 1
    parts = [_header(submission, target, share), _start(target, attached)]
    if attached:
        parts.append(_cluster(target, share))
    return "\n".join([*parts, _driver(submission, target, attached)])


@dataclass(frozen=True)
class NodeShare:
    """The resources that each node gives to the job."""

    cpus: int
    gpus: int


def _node_share(submission: Submission, target: SlurmTarget) -> NodeShare:
    """The CPUs and GPUs of each node, with the workers spread evenly."""
    if target.nodes < 1:
        raise JobError(f"nodes: must be at least 1, not {target.nodes}")
    if submission.workers is None:
        raise JobError(
            "workers: Slurm must be told how many; say --workers N, or workers: in the job (one per GPU, or per core)"
        )
    if submission.workers < target.nodes:
        raise JobError(f"nodes: {target.nodes} for {submission.workers} workers leaves some idle; ask for fewer")
    workers = math.ceil(submission.workers / target.nodes)
    return NodeShare(workers * submission.cpus_per_worker, math.ceil(workers * (submission.gpus_per_worker or 0)))


SENTENCES = ("setup", "container")  # options of several words


def _refuse_phrases(options: Mapping[str, object]) -> None:
    """Refuse a value of several words or lines, which would add directives to the script, and one of none."""
    for name, value in options.items():
        if not isinstance(value, str):
            continue
        if name in SENTENCES and not value.replace("\t", " ").isprintable():
            raise JobError(f"{name}: must be one line, not {quoted(value)}")
        if name not in SENTENCES and not (value.isprintable() and re.fullmatch(r"""[^\s'"\\]+""", value)):
            raise JobError(f"{name}: must be one word of sbatch's, not {quoted(value)}")


def _check(target: SlurmTarget, share: NodeShare) -> None:
    """Refuse options that make no sense together, or that no node would understand."""
    if target.gpu_type and not re.fullmatch(r"[\w.-]+", target.gpu_type):
        raise JobError(
            f"gpu_type: must be a type alone, such as a100, not {quoted(target.gpu_type)}; their number follows from "
            "the workers"
        )
    if target.gpu_type and not share.gpus:
        raise JobError(
            "gpu_type: is of the workers' GPUs, and they have none; give --gpus-per-worker 1, or leave it out"
        )
    if not re.fullmatch(r"(/[\w.-]+|\$\w+|\$\{\w+\})(/[\w.-]+)*", target.scratch):
        raise JobError(
            f"scratch: must be an absolute folder, or begin with a variable such as $SLURM_TMPDIR, "
            f"not {quoted(target.scratch)}"
        )
    if target.max_requeues < 0:
        raise JobError(f"max_requeues: must be 0 or more, not {target.max_requeues}")
    _port_range(target.worker_ports)
    _words_of_container(target.container)


def _port_range(text: str | None) -> tuple[int, int] | None:
    """The first and the last port; None if any may be used."""
    if text is None:
        return None
    numbers = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    low, high = map(int, numbers.groups()) if numbers else (0, 0)
    if low < 1024 or high > 65535 or high + 1 - low < FEWEST_PORTS:
        raise JobError(
            f"worker_ports: must be LOW-HIGH, at least {FEWEST_PORTS} ports from 1024 to 65535, not {quoted(text)}"
        )
    return low, high


def _words_of_container(text: str | None) -> str:
    """The words before each command that runs in the container, with a space at the end; '' without a container."""
    try:
        return "".join(f"{shlex.quote(word)} " for word in shlex.split(text or ""))
    except ValueError:
        raise JobError(f"container: must be a command, with its quotes closed, not {quoted(text)}") from None


def _header(submission: Submission, target: SlurmTarget, share: NodeShare) -> str:
    wanted: list[tuple[str, str | int | None]] = [
        ("job-name", submission.base),
        ("nodes", target.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", share.cpus),
        ("gpus-per-node", f"{target.gpu_type}:{share.gpus}" if target.gpu_type else share.gpus or None),
        ("mem", submission.memory),
        ("time", target.time),
        ("partition", target.partition),
        ("account", target.account),
        ("qos", target.qos),
        ("reservation", target.reservation),
        ("constraint", target.constraint),
        ("output", f"{submission.base}-%j.log"),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{WARNING_SECONDS}"),
        ("requeue", ""),
        # One job of this name at a time: of two drivers on one run, one would refuse to start.
        ("dependency", "singleton"),
    ]
    lines = [
        f"#SBATCH --{name}={value}" if value != "" else f"#SBATCH --{name}"
        for name, value in wanted
        if value is not None
    ]
    further = _further_options(target.sbatch or [], {name for name, _ in wanted})
    return "\n".join(["#!/bin/bash", *lines, *(f"#SBATCH --{text}" for text in further)])


def _further_options(texts: Sequence[str], own: Collection[str]) -> list[str]:
    """The further options of sbatch, without their dashes.

    Args:
        own: those that this script has itself, or has options for.
    """
    options = [text.removeprefix("--") for text in texts]
    for option in options:
        name = option.partition("=")[0]
        if not re.fullmatch(r"[a-z][a-z-]+", name) or not option.isprintable():
            raise JobError(f"sbatch: must be a long option of sbatch, such as mail-type=END, not {quoted(option)}")
        if not _is_one_word(option):
            raise JobError(f"sbatch: must be one word, or have its words in quotes, not {quoted(option)}")
        if name == "array":
            raise JobError("sbatch: array would start several jobs for one run; leave it out")
        if name in own:
            raise JobError(f"sbatch: {name} is written already, by this command's own options; leave it out")
    return options


def _is_one_word(text: str) -> bool:
    """Whether sbatch reads a text of a script as one word; what stands behind a blank and # would be a comment."""
    try:
        return len(shlex.split(text)) == 1
    except ValueError:  # quotes that are not closed
        return False


def _start(target: SlurmTarget, attached: bool) -> str:
    setup = f"# shellcheck disable=SC1090,SC1091 # the site's own\n{target.setup}\n" if target.setup else ""
    own = ' head="" workers=""' if attached else ""
    end = (
        """
    # To the steps alone, in order: a TERM to srun would kill them before they have tidied up.
    [ -z "$workers" ] || scancel --signal=TERM "$SLURM_JOB_ID" || true
    [ -z "$workers" ] || wait "$workers" 2> /dev/null || true
    [ -z "$head" ] || kill "$head" 2> /dev/null || true
    wait 2> /dev/null || true"""
        if attached
        else ""
    )
    limit = ""
    if target.scratch != SlurmTarget.scratch:
        limit = f"""
if [ "${{#scratch}}" -gt {LONGEST_SCRATCH} ]; then
    echo "scratch: $scratch is too long for the paths of Ray's sockets, at most {LONGEST_SCRATCH} characters" >&2
    exit 2
fi"""
    return f"""{setup}set -euo pipefail

# A temporary folder of this attempt's own, with a short name: sockets lie in it, and their paths are limited.
scratch="{target.scratch}/landscape-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"{limit}
mkdir -m 700 "$scratch"
export RAY_TMPDIR="$scratch"
unset RAY_ADDRESS # of the shell that submitted
driver="" interrupted=0 requeue=0{own}

# shellcheck disable=SC2317,SC2329 # called at the end
cleanup() {{{end}
    rm -rf "$scratch"
}}
trap cleanup EXIT

# USR1 comes before the time limit, to this shell alone: stop in order, then go on in a new allocation.
# TERM (scancel, preemption, requeue) comes to all processes of the job, the driver too: a second one would make it
# drop what it holds. This shell outlives it, so that the driver has the time that Slurm gives.
# shellcheck disable=SC2317,SC2329 # called by the trap
time_is_up() {{
    requeue=1 interrupted=1
    [ -z "$driver" ] || kill -TERM "$driver" 2> /dev/null || true
}}
trap time_is_up USR1
trap 'interrupted=1' TERM
"""


def _cluster(target: SlurmTarget, share: NodeShare) -> str:
    size = f"--num-cpus={share.cpus} --num-gpus={share.gpus}"
    others = target.nodes - 1
    inside = _words_of_container(target.container)
    ports = _ports(target)
    return f"""# A Ray of this job's own, behind a token of its own. It is ended by process id: `ray stop` would
# end every Ray on the node, also other people's.
RAY_AUTH_TOKEN="$({inside}python3 -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
{ports.of_head}
# The address by which the other nodes reach this one: that of the route to one of them, since the node's own name may
# stand for 127.0.1.1 here.
own_address() {{
    local peer
    peer="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -v -x -F -m 1 "$SLURMD_NODENAME")"
    if ! {inside}python3 -c '{ROUTE}' "${{peer:-unknown.invalid}}" 2> /dev/null; then
        hostname --all-ip-addresses | cut -d ' ' -f 1
    fi
}}
ip="$(own_address)"
{inside}ray start --head --block --node-ip-address="$ip" --port="$port" --ray-client-server-port="$client_port" \\
    --include-dashboard=false --temp-dir="$scratch" \\
    {ports.options} \\
    {size} --disable-usage-stats > "$scratch/head.log" 2>&1 &
head=$!
for _ in $(seq 60); do
    if (exec 3<> "/dev/tcp/$ip/$port") 2> /dev/null; then break; fi
    kill -0 "$head" 2> /dev/null || {{ tail -n 20 "$scratch/head.log" >&2; exit 5; }}
    sleep 1
done

# What every other node does: the same, in a folder of its own, until a TERM ends it.
# shellcheck disable=SC2317,SC2329 # called on the other nodes
join() {{
    RAY_TMPDIR="$RAY_TMPDIR-$SLURM_PROCID"
    mkdir -m 700 "$RAY_TMPDIR"
    trap 'rm -rf "$RAY_TMPDIR"' EXIT
    {inside}ray start --block --address="$1" --temp-dir="$RAY_TMPDIR" \\
        {ports.options} \\
        {size} --disable-usage-stats > "$RAY_TMPDIR/worker.log" 2>&1 &
    ray=$!
    trap 'kill "$ray" 2> /dev/null || true' TERM
    wait "$ray" || wait "$ray" || true
}}
export -f join
srun --overlap --nodes={others} --ntasks={others} --cpus-per-task={share.cpus} --exclude="$SLURMD_NODENAME" \\
    bash -c "join $ip:$port" &
workers=$!
"""


# Python in the script, between single quotes.
FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
ROUTE = """import socket, sys
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9)) # sends nothing
print(s.getsockname()[0])"""


@dataclass(frozen=True)
class Ports:
    """The ports of the script's Ray.

    Attributes:
        of_head: lines of shell that set `port` and `client_port`.
        options: of `ray start` on every node.
    """

    of_head: str
    options: str


def _ports(target: SlurmTarget) -> Ports:
    """Ports that are free now, or those of the range that the site's nodes let through."""
    limits = _port_range(target.worker_ports)
    if limits is None:
        inside = _words_of_container(target.container)
        free = [
            "# Ports that are free now: another job's Ray may run on the node.",
            f"free_port() {{ {inside}python3 -c '{FREE_PORT}'; }}",
            'port="$(free_port)" client_port="$(free_port)"',
        ]
        return Ports("\n".join(free), "--dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0")
    low, high = limits
    fixed = (
        "object-manager-port", "node-manager-port", "dashboard-agent-grpc-port", "dashboard-agent-listen-port",
        "runtime-env-agent-port", "metrics-export-port",
    )  # fmt: skip
    options = [f"--{name}={low + 2 + number}" for number, name in enumerate(fixed)]
    options += [f"--min-worker-port={low + OWN_PORTS}", f"--max-worker-port={high}"]
    return Ports(f"port={low} client_port={low + 1} # of the range that the nodes let through", " ".join(options))


def _driver(submission: Submission, target: SlurmTarget, attached: bool) -> str:
    inside = _words_of_container(target.container)
    words = inside + shlex.join(command(submission, str(submission.folder / submission.file), None))
    address = ' --address "$ip:$port"' if attached else ""
    own = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in submission.environment.items())
    return f"""{own}{words}{address} &
driver=$!
[ "$requeue" = 0 ] || kill -TERM "$driver"
while :; do
    interrupted=0 code=0
    wait "$driver" || code=$?
    # A signal ends `wait` early, with a code of its own.
    [ "$interrupted" = 1 ] || break
done
if [ "$requeue" = 1 ] && [ "$code" -gt 128 ]; then
    if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {target.max_requeues} ]; then
        echo "time is up, after --max-requeues {target.max_requeues}; what is done is kept: send the job again" >&2
        exit "$code"
    fi
    echo "time is up: requeued, and the same command goes on" >&2
    cleanup # now: with the requeue comes a TERM for all that still runs here, `rm` too
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def send(script: str) -> str:
    """Pass the script to sbatch; returns the job's number.

    Raises:
        LandscapeError: there is no sbatch here, or it refuses.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise tool_missing("sbatch", "slurm")
    found = subprocess.run([sbatch, "--parsable"], input=script, capture_output=True, text=True, check=False)
    if found.returncode:
        text = first_line(found.stderr)
        kind = ClusterUnreachableError if "contact slurm controller" in found.stderr.lower() else LandscapeError
        raise kind(f"slurm: sbatch refuses: {text}")
    return found.stdout.strip().partition(";")[0]


SEPARATOR = "|"


def slurm_state(identifier: str, known: SentJob) -> dict[str, Any]:
    """The state of a job: from squeue until shortly after its end, then from sacct, if the site keeps accounts."""
    waiting = _slurm_answer("squeue", "--noheader", f"--jobs={identifier}", "--format=%T|%S|%r")
    if waiting:
        state, start, reason = waiting
        return job_state(
            identifier, "slurm", "", state, since=_moment(start) if state != "PENDING" else None, entrypoint="",
            message="" if reason == "None" else reason, exit_code=None,
        )  # fmt: skip
    fields = ("--parsable2", "--allocations", f"--jobs={identifier}", "--format=State,End,ExitCode")
    ended = _slurm_answer("sacct", "--noheader", *fields)
    if not ended:
        raise NotFoundError(
            f"status: Slurm knows no job {identifier} any more (asked squeue and sacct); its log is {known.log}"
        )
    code = ended[2].partition(":")[0]
    return job_state(
        identifier, "slurm", "", ended[0], since=_moment(ended[1]), entrypoint="", message="",
        exit_code=int(code) if code.isdigit() else None,
    )  # fmt: skip


def _slurm_answer(tool: str, *words: str) -> list[str] | None:
    """The fields of the first line of output of one of Slurm's tools; None if it does not know the job."""
    path = shutil.which(tool)
    if path is None:
        if tool == "sacct":
            return None
        raise tool_missing(tool, "slurm")
    found = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    lines = found.stdout.strip().splitlines()
    fields = lines[0].split(SEPARATOR) if found.returncode == 0 and lines else []
    return fields if len(fields) == 3 else None


def _moment(text: str) -> str | None:
    """Slurm's local time, in the format of the other targets."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds")
    except ValueError:
        return None
