# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # THOR beside SGD and Adam, from the same start
#
# THOR (Chen et al. 2021) multiplies each layer's gradient by inverses of two small matrices, which stand for the curvature of that layer. It is said to
# need half as many steps as SGD with momentum, and little more time for each. Here all three begin at the same initial weights of a LeNet-5 and see the
# same images in the same order. Where do they go, how fast, and what surrounds the places where they end?

# %%
from landscape.studies import optimisers as study
from landscape.studies import pictures

images = study.data()
print(images)
print("seeds", *study.seeds())

# %% [markdown]
# ## An equal number of trials
#
# A comparison of optimisers is one of how well they were tuned. Each has as many learning rates to try, all of them listed; the one with the lowest
# held-out loss on the first seed is taken for all seeds. The rate falls along half a cosine to zero. SGD has a momentum of 0.9; THOR too, with a damping
# of 0.1 and inverses that are refreshed every 20 steps. These, and around which rates to try, were chosen beforehand by two epochs of another seed.

# %%
chosen = study.trained(images)
study.trials_table(chosen)

# %% [markdown]
# ## Loss against steps

# %%
pictures.curves(
    {
        each.label: [pictures.smoothed(network.training_losses, study.WIDTH) for network in each.networks]
        for each in chosen
    },
    xlabel="step",
    ylabel="training loss, mean of 20 steps",
    log=True,
)

# %% [markdown]
# ## Loss against seconds
#
# Seconds of training on one core, evaluation left out; other programs ran beside it, so take ratios rather than seconds.

# %%
pictures.curves(
    {
        each.label: [pictures.smoothed(study.over_seconds(network), study.WIDTH) for network in each.networks]
        for each in chosen
    },
    xlabel="seconds",
    ylabel="training loss, mean of 20 steps",
    log=True,
)

# %%
study.table(chosen)

# %% [markdown]
# ## The paths on one landscape
#
# The first two principal components of the snapshots of all three paths together. The plane runs through the end of SGD; the other snapshots lie off
# it, and the contours below them are those of their projections: at the common start the network has a loss of 2.3, not the 0.2 that is drawn there.

# %%
pictures.planes({"the paths of the first seed": study.paths(chosen)}, wide=2.0)

# %% [markdown]
# ## Around each end
#
# Two random directions, filter-normalised, the same for all three; one scale.

# %%
pictures.planes({each.label: study.plane(each.networks[0]) for each in chosen})

# %% [markdown]
# ## What was found
#
# On MNIST: THOR needs about half as many steps as SGD with momentum, as published, and each step takes about a sixth more, so that it is the faster one in
# seconds as well. Adam, with as many rates to try, comes close to it and ends with the lower held-out loss, so half of SGD's steps is no feat of second
# order alone. The three go to different places: from the common start their paths part within the first epoch, and the plane shows most of the distance
# between their ends, not which of them is better. THOR's end has the lowest training loss and the sharpest surroundings, by filter-normalised lines; what
# is said of flat minima would have it generalise worst, and it does not.

# %%
study.findings(chosen, images)
