# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # On a cluster: submit, watch, kill, resume
#
# A landscape of a large network takes hours on many machines, and something fails in hours. What happens then is tried here on a Ray of this machine:
# workers are killed, then the driver, and the same command goes on. The job is a small network that waits at each point as long as a larger one would
# compute.

# %%
import subprocess
import sys

import numpy as np

from landscape import open_run, read_job, run
from studies import local_cluster
from studies import on_cluster as study
from studies import pictures
from studies.settings import SMALL, size

print(study.data())
job = study.write_job("killed")
folder = job.parent / "run"
print(job.read_text())

# %% [markdown]
# ## A driver and its workers
#
# `landscape run job.yaml --workers 2` starts a private Ray and two workers. The driver alone writes; its log lies beside the job. `landscape status RUN`
# says at any time how far it is, from Python as well:

# %%
command = [sys.executable, "-m", "cluster", "run", str(job), "--workers", str(study.WORKERS)]  # `landscape run …`
with open(job.parent / "driver.log", "wb") as log:
    driver = subprocess.Popen(command, stdout=log, stderr=log)
watched = study.wait_for_points(job, study.FEW)
print("points are there while the job runs:", watched >= study.FEW)
print(local_cluster.status(job))

# %% [markdown]
# ## A worker is killed
#
# By SIGKILL, so that it can say nothing. The driver notices, gives its task to another, and starts a worker in its place.

# %%
print("killed a worker:", local_cluster.kill_a_worker(job))
print("the job goes on:", study.wait_for_points(job, watched + study.MORE) > watched)

# %% [markdown]
# ## The driver is killed
#
# The landscape stays as it is: each tile is committed whole, or is not there. What is there can be drawn, the rest is hatched.

# %%
driver.kill()
print("exit code of the driver:", driver.wait())
stopped = open_run(folder)["plane"]
pictures.planes({"as the killed driver left it": stopped})

# %% [markdown]
# ## The same command goes on
#
# It reads what is there and computes the rest. Here Python gives it, `run(read_job("job.yaml"))`, which computes in its own process: any number of
# workers gives the same bits.

# %%
undisturbed = study.write_job("undisturbed")
first, second = (run(read_job(path), progress=False)["plane"] for path in (job, undisturbed))
print("the same bits as undisturbed:", all(np.array_equal(first[name], second[name]) for name in first.observables))
pictures.planes({"killed twice": first, "undisturbed": second})

# %% [markdown]
# ## Submitted
#
# A Ray cluster that is there already takes jobs with `landscape submit job.yaml --address http://127.0.0.1:8265`; `status`, `logs` and `cancel` take
# the identifier that it prints. Cancelled, what is done is kept; submitted again, the job goes on. (In a small study this part is left out, as such a
# Ray takes long to start.)

# %%
if size() != SMALL:
    with local_cluster.head() as ray:
        sent = study.write_job("submitted")
        name = ray.command("submit", sent, "--address", ray.address, "--workers", 2, "--detach").strip()
        print("sent as", name)
        study.wait_for_points(sent, study.FEW)
        print("killed a worker:", local_cluster.kill_a_worker(sent))
        study.wait_for_points(sent, 2 * study.FEW)
        print(ray.command("cancel", name).strip())
        print("sent again as", ray.command("submit", sent, "--address", ray.address, "--workers", 2).strip())
    third = open_run(sent.parent / "run")["plane"]
    print("the same bits as undisturbed:", all(np.array_equal(third[name], second[name]) for name in third.observables))

# %% [markdown]
# What would be sent to Slurm is said by `--dry-run`, without a cluster:

# %%
if size() != SMALL:
    script = local_cluster.command(
        "submit", job, "--target", "slurm", "--nodes", 2, "--workers", 8, "--dry-run", "--no-look"
    )
    print(*(line for line in script.splitlines() if line.startswith("#SBATCH")), sep="\n")
