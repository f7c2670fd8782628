#!/bin/bash
#SBATCH --job-name=landscape-resnet20-0badcafe
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --output=landscape-resnet20-0badcafe-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --dependency=singleton
set -euo pipefail

# A temporary folder of this attempt's own, with a short name: sockets lie in it, and their paths are limited.
scratch="/tmp/landscape-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
mkdir -m 700 "$scratch"
export RAY_TMPDIR="$scratch"
unset RAY_ADDRESS # of the shell that submitted
driver="" interrupted=0 requeue=0

# shellcheck disable=SC2317,SC2329 # called at the end
cleanup() {
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

landscape run jobs/job.yaml --run /runs/resnet20 --workers 2 &
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
