# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Reading a store with xarray; a figure for a paper
#
# A landscape is a group of arrays in a Zarr store with named dimensions and coordinates. xarray opens it as it is, without this package.

# %%
import xarray
from matplotlib import pyplot

from landscape import Job, run
from studies import paper
from studies import path_of_training as study
from studies.settings import choose

images = study.digits()
print(images)
network = study.lenets(images)[0]
epochs = study.intervals(study.LENET)[study.WHOLE]
job = Job(
    run=str(network.run),
    problem=network.problem,
    num_samples=choose(256, 32),
    landscapes=[{"name": study.WHOLE, "trajectory": list(epochs), "origin": max(epochs), "size": choose(17, 5)}],
)
plane = run(job)[study.WHOLE]
store = network.run / "landscapes.zarr"
print(sorted(path.name for path in store.iterdir() if path.is_dir()))

# %%
dataset = xarray.open_zarr(store, group=study.WHOLE)
print(dict(dataset.sizes))
print(
    *(
        f"{name}: {dict(array.sizes)} {array.dtype}"
        for name, array in sorted(dataset.data_vars.items())
        if "beta" in array.sizes
    ),
    sep="\n",
)

# %% [markdown]
# ## Questions in a line each
#
# Where is the loss lowest, what is the accuracy there, and how do both run along the path's main direction through the origin?

# %%
loss = dataset.loss
lowest = dataset.isel(loss.argmin(...))
print(f"lowest loss {float(lowest.loss):.4f} at alpha {float(lowest.alpha):.2f}, beta {float(lowest.beta):.2f}")
print(f"accuracy there {float(lowest.accuracy):.1%}")
along = dataset.sel(beta=0, method="nearest")
print(along[["loss", "accuracy"]].to_pandas().iloc[:: max(1, len(along.alpha) // 7)].round(3))

# %% [markdown]
# Standard errors lie beside the means: `loss_stderr` of each point, and `loss_rise_stderr` of its rise over the origin, which is smaller, as all points
# share their samples. A rise that is less than twice the latter is not told from zero.

# %%
rise = abs(dataset.loss - plane.origin_loss)
print(f"{float((rise < 2 * dataset.loss_rise_stderr).mean()):.1%} of the points cannot be told from the origin")
print(
    f"median error: of the loss {float(dataset.loss_stderr.median()):.4f}, of the rise {float(dataset.loss_rise_stderr.median()):.4f}"
)

# %% [markdown]
# ## A figure for a paper
#
# `preset="column"` makes a figure 3.3 inches wide with words of 7 to 9 points as printed, no title and no caption; `"page"` one over both columns.
# `landscape export RUN NAME --to pdf --preset column` writes the PDF. The same landscape twice, as on the page:

# %%
paper.printed(plane, plane.figure("contour", preset="column"))

# %%
paper.printed(plane, plane.figure("topographic", preset="page", colour_scale="cividis"))

# %% [markdown]
# Who composes a figure with matplotlib draws on its axes:

# %%
figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
plane.plot(left, "topographic")
plane.plot(right, "contour", observable="accuracy")
figure.tight_layout()
