# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Width and skip connections
#
# Li et al. 2018, "Visualizing the loss landscape of neural nets", drew two of the best-known pictures of this field: networks with skip connections lie
# in smooth bowls and deep ones without them in chaos, and wider networks lie in broader, flatter minima. MindSpore's tutorial shows the second with a
# ResNet of width 4 beside one of width 1. Here are ResNets of 8 layers in widths 1 and 2, and of 20 layers with and without skips; three seeds each, all
# trained alike, and a number beside each picture. So that this takes minutes, the images are reduced to 16 × 16, there are 2,000 of them, and training
# ends after sixteen epochs, when all of these networks have learned something. The article's have up to 110 layers, were trained for 300 epochs, and
# show chaos from 56 layers on.

# %%
from landscape import Job, run
from studies import pictures
from studies import width_and_skips as study
from studies.settings import choose

images = study.data()
print(images)
print("seeds", *study.seeds())

# %%
networks = {label: study.networks_of(images, label) for label in study.shapes()}
for of_one in networks.values():
    print(*of_one, sep="\n")

# %% [markdown]
# ## The curves of training

# %%
pictures.curves(
    {
        label: [pictures.smoothed(network.training_losses, 10) for network in of_one]
        for label, of_one in networks.items()
    },
    xlabel="step",
    ylabel="training loss, mean of 10 steps",
)

# %% [markdown]
# ## A plane and lines around each network
#
# A plane of two random directions, filter-normalised, from −1 to 1, and lines of one such direction each. Their seeds are the same for all networks.

# %%
plane = {"name": "plane", "origin": "last", "size": choose(13, 5), "range": [-1, 1]}
lines = [
    {
        "name": f"line-{seed}",
        "origin": "last",
        "directions": [{"kind": "random", "seed": seed}],
        "size": 5,
        "range": [-0.5, 0.5],
    }
    for seed in range(1, choose(9, 2))
]
computed = {label: [] for label in networks}
for label, of_one in networks.items():
    for network in of_one:
        job = Job(
            run=str(network.run),
            problem=network.problem,
            num_samples=choose(256, 32),
            landscapes=[plane, *lines],
        )
        computed[label].append(run(job, progress=False))

# %% [markdown]
# The planes of the first seed, on one scale, so that they can be compared:

# %%
pictures.planes({label: of_one[0]["plane"] for label, of_one in computed.items()}, across=2)

# %%
pictures.planes({label: of_one[0]["plane"] for label, of_one in computed.items()}, across=2, kind="surface")

# %% [markdown]
# ## The numbers, over the seeds
#
# How far the loss rises on average along random filter-normalised lines, at 0.25 and at 0.5 of the length of each filter; how much of the plane lies
# less than a nat above its middle; and at how many of its points the plane is not convex, by second differences.

# %%
around = {label: study.around(networks[label], computed[label]) for label in networks}
study.table(around)

# %% [markdown]
# ## What was found
#
# On CIFAR-10: all networks learn, with held-out accuracies of 39 to 48 % where guessing has 10 %, and none is trained to the end: their training losses
# are 1.2 to 1.5. Twice the width makes for a better network, but its surroundings are neither flatter nor broader: the loss rises slightly more, in every
# seed, and it too has learned more. Without skip connections 25 % of the plane of a ResNet-20 is not convex, with them 4 %, and more in every
# seed. That is the article's contrast, though nothing here looks like its chaos of deeper networks. Those without skips are not sharper: near the
# middle their loss rises less, far from it more, as the corners of the pictures show. They have also learned least, and where a network has learned less
# there is less to lose, so that a claim on minima is not tried here at all: what is compared are surroundings on the way. Each line compares the networks
# seed by seed.

# %%
study.findings(around, images)
