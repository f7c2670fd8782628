"""A Slurm batch script: own head, ports and temporary folder per job, a graceful stop, and a requeue that resumes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cluster.submit.submission import Submission, command, quoted
from landscape.core.errors import JobError, shown

WARNING_SECONDS = 60  # before the time limit: enough to commit what is in flight and to requeue


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What a site decides. `setup` is a line of shell that makes the command `landscape` available."""

    nodes: int = 1
    cpus_per_worker: int = 1
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    memory: str | None = None
    setup: str | None = None


def render(submission: Submission, options: SlurmOptions) -> str:
    """The script; `sbatch` reads it from its standard input.

    Raises:
        JobError: options that no allocation fits.
    """
    share = _node_share(submission, options)
    _refuse_phrases(options)
    attached = options.nodes > 1
    parts = [_header(submission, options, share), _start(options, attached)]
    if attached:
        parts.append(_cluster(options, share))
    return "\n".join([*parts, _driver(submission, attached)])


@dataclass(frozen=True)
class NodeShare:
    """What each node gives to the job."""

    cpus: int
    gpus: int


def _node_share(submission: Submission, options: SlurmOptions) -> NodeShare:
    """CPUs and GPUs that a node gives, the workers being spread evenly.

    Raises:
        JobError: the numbers do not fit together, or that of the workers is missing.
    """
    if options.nodes < 1:
        raise JobError(f"nodes: must be at least 1, not {options.nodes}")
    if options.cpus_per_worker < 1:
        raise JobError(f"cpus_per_worker: must be at least 1, not {options.cpus_per_worker}")
    if submission.workers is None:
        raise JobError(
            "workers: Slurm must be told how many; say --workers N, or workers: in the job (one per GPU, or per core)"
        )
    if submission.workers < options.nodes:
        raise JobError(f"nodes: {options.nodes} for {submission.workers} workers leaves some idle; ask for fewer")
    workers = math.ceil(submission.workers / options.nodes)
    return NodeShare(workers * options.cpus_per_worker, math.ceil(workers * (submission.gpus_per_worker or 0)))


def _refuse_phrases(options: SlurmOptions) -> None:
    """Refuse a value of several words, which would put directives of its own into the script.

    Raises:
        JobError: an option has such a value.
    """
    for name, value in asdict(options).items():
        if isinstance(value, str) and ("\n" in value or (name != "setup" and " " in value)):
            raise JobError(f"{name}: must be one word of sbatch's, not {shown(value)}")


def _header(submission: Submission, options: SlurmOptions, share: NodeShare) -> str:
    wanted: list[tuple[str, str | int | None]] = [
        ("job-name", submission.base),
        ("nodes", options.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", share.cpus),
        ("gpus-per-node", share.gpus or None),
        ("mem", options.memory),
        ("time", options.time),
        ("partition", options.partition),
        ("account", options.account),
        ("output", f"{submission.base}-%j.log"),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{WARNING_SECONDS}"),
        ("requeue", ""),
        # One of this name at a time: two drivers on one run would only refuse each other.
        ("dependency", "singleton"),
    ]
    lines = [
        f"#SBATCH --{name}={value}" if value != "" else f"#SBATCH --{name}"
        for name, value in wanted
        if value is not None
    ]
    return "\n".join(["#!/bin/bash", *lines])


def _start(options: SlurmOptions, attached: bool) -> str:
    setup = f"# shellcheck disable=SC1090,SC1091 # the site's own\n{options.setup}\n" if options.setup else ""
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
    return f"""{setup}set -euo pipefail

# A temporary folder of this attempt's own, with a short name: sockets lie in it, and their paths are limited.
scratch="/tmp/landscape-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
mkdir -m 700 "$scratch"
export RAY_TMPDIR="$scratch"
unset RAY_ADDRESS # of the shell that submitted
driver="" interrupted=0 requeue=0{own}

# shellcheck disable=SC2317 # called at the end
cleanup() {{{end}
    rm -rf "$scratch"
}}
trap cleanup EXIT

# USR1 comes before the time limit, to this shell alone: stop in order, then go on in a new allocation.
# TERM (scancel, preemption, requeue) comes to all processes of the job, the driver too: a second one would make it
# drop what it holds. This shell outlives it, so that the driver has the time that Slurm gives.
# shellcheck disable=SC2317 # called by the trap
time_is_up() {{
    requeue=1 interrupted=1
    [ -z "$driver" ] || kill -TERM "$driver" 2> /dev/null || true
}}
trap time_is_up USR1
trap 'interrupted=1' TERM
"""


def _cluster(options: SlurmOptions, share: NodeShare) -> str:
    size = f"--num-cpus={share.cpus} --num-gpus={share.gpus}"
    others = options.nodes - 1
    return f"""# A Ray of this job's own, behind a token of its own, on ports that are free now. It is ended by
# process id: `ray stop` would end every Ray on the node, also other people's.
RAY_AUTH_TOKEN="$(python3 -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
free_port() {{ python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }}
port="$(free_port)"
ip="$(hostname --ip-address | cut -d ' ' -f 1)"
ray start --head --block --node-ip-address="$ip" --port="$port" --ray-client-server-port="$(free_port)" \\
    --dashboard-agent-listen-port=0 --include-dashboard=false --temp-dir="$scratch" \\
    {size} --disable-usage-stats > "$scratch/head.log" 2>&1 &
head=$!
for _ in $(seq 60); do
    if (exec 3<> "/dev/tcp/$ip/$port") 2> /dev/null; then break; fi
    kill -0 "$head" 2> /dev/null || {{ tail -n 20 "$scratch/head.log" >&2; exit 5; }}
    sleep 1
done

# What every other node does: the same, in a folder of its own, until a TERM ends it.
# shellcheck disable=SC2317 # called on the other nodes
join() {{
    RAY_TMPDIR="$RAY_TMPDIR-$SLURM_PROCID"
    mkdir -m 700 "$RAY_TMPDIR"
    trap 'rm -rf "$RAY_TMPDIR"' EXIT
    ray start --block --address="$1" --dashboard-agent-listen-port=0 --temp-dir="$RAY_TMPDIR" \\
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


def _driver(submission: Submission, attached: bool) -> str:
    words = quoted(command(submission, str(submission.folder / submission.file), None))
    address = ' --address "$ip:$port"' if attached else ""
    return f"""{words}{address} &
driver=$!
[ "$requeue" = 0 ] || kill -TERM "$driver"
while :; do
    interrupted=0 code=0
    wait "$driver" || code=$?
    # A signal ends `wait` early, with a code of its own.
    [ "$interrupted" = 1 ] || break
done
if [ "$requeue" = 1 ] && [ "$code" -gt 128 ]; then
    echo "time is up: requeued, and the same command goes on" >&2
    cleanup # now: with the requeue comes a TERM for all that still runs here, `rm` too
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
