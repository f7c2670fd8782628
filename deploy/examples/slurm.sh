#!/bin/bash
#SBATCH --job-name=landscape-digits-11b8dbd8
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=landscape-digits-11b8dbd8-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --dependency=singleton
# shellcheck disable=SC1090,SC1091 # the site's own
source venv/bin/activate
set -euo pipefail

# A temporary folder of this attempt's own, with a short name: sockets lie in it, and their paths are limited.
scratch="/tmp/landscape-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
mkdir -m 700 "$scratch"
export RAY_TMPDIR="$scratch"
unset RAY_ADDRESS # of the shell that submitted
driver="" interrupted=0 requeue=0 head="" workers=""

# shellcheck disable=SC2317,SC2329 # called at the end
cleanup() {
    # To the steps alone, in order: a TERM to srun would kill them before they have tidied up.
    [ -z "$workers" ] || scancel --signal=TERM "$SLURM_JOB_ID" || true
    [ -z "$workers" ] || wait "$workers" 2> /dev/null || true
    [ -z "$head" ] || kill "$head" 2> /dev/null || true
    wait 2> /dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT

# USR1 comes before the time limit, to this shell alone: stop in order, then go on in a new allocation.
# TERM (scancel, preemption, requeue) comes to all processes of the job, the driver too: a second one would make it
# drop what it holds. This shell outlives it, so that the driver has the time that Slurm gives.
# shellcheck disable=SC2317,SC2329 # called by the trap
time_is_up() {
    requeue=1 interrupted=1
    [ -z "$driver" ] || kill -TERM "$driver" 2> /dev/null || true
}
trap time_is_up USR1
trap 'interrupted=1' TERM

# A Ray of this job's own, behind a token of its own. It is ended by process id: `ray stop` would
# end every Ray on the node, also other people's.
RAY_AUTH_TOKEN="$(python3 -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
# Ports that are free now: another job's Ray may run on the node.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
port="$(free_port)" client_port="$(free_port)"
# The address by which the other nodes reach this one: that of the route to one of them, since the node's own name may
# stand for 127.0.1.1 here.
own_address() {
    local peer
    peer="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -v -x -F -m 1 "$SLURMD_NODENAME")"
    if ! python3 -c 'import socket, sys
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9)) # sends nothing
print(s.getsockname()[0])' "${peer:-unknown.invalid}" 2> /dev/null; then
        hostname --all-ip-addresses | cut -d ' ' -f 1
    fi
}
ip="$(own_address)"
ray start --head --block --node-ip-address="$ip" --port="$port" --ray-client-server-port="$client_port" \
    --include-dashboard=false --temp-dir="$scratch" \
    --dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0 \
    --num-cpus=8 --num-gpus=4 --disable-usage-stats > "$scratch/head.log" 2>&1 &
head=$!
for _ in $(seq 60); do
    if (exec 3<> "/dev/tcp/$ip/$port") 2> /dev/null; then break; fi
    kill -0 "$head" 2> /dev/null || { tail -n 20 "$scratch/head.log" >&2; exit 5; }
    sleep 1
done

# What every other node does: the same, in a folder of its own, until a TERM ends it.
# shellcheck disable=SC2317,SC2329 # called on the other nodes
join() {
    RAY_TMPDIR="$RAY_TMPDIR-$SLURM_PROCID"
    mkdir -m 700 "$RAY_TMPDIR"
    trap 'rm -rf "$RAY_TMPDIR"' EXIT
    ray start --block --address="$1" --temp-dir="$RAY_TMPDIR" \
        --dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0 \
        --num-cpus=8 --num-gpus=4 --disable-usage-stats > "$RAY_TMPDIR/worker.log" 2>&1 &
    ray=$!
    trap 'kill "$ray" 2> /dev/null || true' TERM
    wait "$ray" || wait "$ray" || true
}
export -f join
srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=8 --exclude="$SLURMD_NODENAME" \
    bash -c "join $ip:$port" &
workers=$!

export LANDSCAPE_SENT_FROM=laptop:/home/me/examples
landscape run deploy/examples/job.yaml --run /runs/digits --workers 8 --num-gpus 1 --address "$ip:$port" &
driver=$!
[ "$requeue" = 0 ] || kill -TERM "$driver"
while :; do
    interrupted=0 code=0
    wait "$driver" || code=$?
    # A signal ends `wait` early, with a code of its own.
    [ "$interrupted" = 1 ] || break
done
if [ "$requeue" = 1 ] && [ "$code" -gt 128 ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -ge 20 ]; then
        echo "time is up, after --max-requeues 20; what is done is kept: send the job again" >&2
        exit "$code"
    fi
    echo "time is up: requeued, and the same command goes on" >&2
    cleanup # now: with the requeue comes a TERM for all that still runs here, `rm` too
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
