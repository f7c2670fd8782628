# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # The path of training
#
# Training moves the weights through a space of many thousand dimensions. MindSpore's tutorial shows that path on the plane of the two principal
# components of the weights that were kept: LeNet-5 on MNIST, epochs 1 to 3 and 7 to 10; a ResNet early, while the loss falls fast, and late. Its text
# says that the early path crosses the contour lines nearly at right angles, and that late in training it flattens. Is that so here, and how much of
# the path is on the plane at all?

# %%
from landscape import Job, run
from studies import path_of_training as study
from studies import pictures
from studies.settings import choose

images = {study.LENET: study.digits(), study.RESNET: study.photos()}
print(*images.values(), sep="\n")
print("seeds", *study.seeds())

# %% [markdown]
# Three networks of each kind are trained, which differ by their seed alone: its initial weights, and the order of its images. The recipe says how, and
# at which epochs the weights are kept.

# %%
lenets, resnets = study.lenets(images[study.LENET]), study.resnets(images[study.RESNET])
for networks in (lenets, resnets):
    print(networks[0].recipe, *networks, sep="\n")

# %%
pictures.curves(
    {
        study.LENET: [pictures.smoothed(network.training_losses, 20) for network in lenets],
        study.RESNET: [pictures.smoothed(network.training_losses, 20) for network in resnets],
    },
    xlabel="step",
    ylabel="training loss, mean of 20 steps",
    log=True,
)

# %% [markdown]
# ## The planes
#
# For each interval the two principal components of its snapshots, through the last of them. The ResNet has batch norm: its running statistics are those
# of one snapshot, so that they are taken anew at each point (`recalibrate`).

# %%
planes = {}
for label, networks in {study.LENET: lenets, study.RESNET: resnets}.items():
    planes[label] = []
    for network in networks:
        job = Job(
            run=str(network.run),
            problem=network.problem,
            num_samples=choose(256, 32),
            batch_norm="eval" if label == study.LENET else "recalibrate",
            landscapes=[
                {"name": name, "trajectory": list(epochs), "origin": max(epochs), "size": choose(17, 5)}
                for name, epochs in study.intervals(label).items()
            ],
        )
        computed = run(job, progress=False)
        planes[label].append({name: computed[name] for name in study.intervals(label)})

# %% [markdown]
# ## LeNet-5
#
# The planes of the first seed. The path begins at the ring and ends at the star.

# %%
pictures.planes(planes[study.LENET][0], shared=False, across=2, wide=1.4)

# %% [markdown]
# ## ResNet, early and late

# %%
pictures.planes(planes[study.RESNET][0], shared=False, across=1, wide=1.6)

# %% [markdown]
# ## What the explained variance says
#
# Each axis says how much of the variance of the snapshots it explains. That number looks impressive until it is put beside what the same analysis
# says of a random walk, which goes nowhere in particular: its first two components explain 76 % of a long one
# ([Antognini and Sohl-Dickstein 2018](https://arxiv.org/abs/1806.08805)), and more of a short one. Three points lie in a plane always, so an interval
# of three snapshots explains 100 % whatever training did.

# %%
study.variance_table(planes)

# %% [markdown]
# ## Does the path cross the contours at right angles?
#
# The angle between each step of the path on the plane and the steepest descent of the plane's loss at the middle of the step: 0° crosses the contours
# at right angles, 90° runs along them, more climbs. LeNet's learning rate is constant, so that its late steps are noise around a place that it has
# reached; the ResNet's falls to zero, and its path goes on downhill to the end.

# %%
study.angle_table(planes)

# %% [markdown]
# ## What was found
#
# On MNIST and CIFAR-10: three snapshots explain 100 % and four hardly less than a random walk of four would, so the tutorial's intervals, epochs 1 to 3
# and 7 to 10, say nothing by their explained variance. Over all epochs the plane explains 12 to 14 points more than of a random walk as long: these paths
# are a little straighter, as they drift in one direction, but most of that impressive 90 % is what any walk would show. The early path of the ResNet
# comes nearest to crossing the contours at right angles; LeNet's epochs 1 to 3, when most of the fall is over, do not. Late, LeNet moves along the
# contours while its loss stays where it is, as the tutorial's text says; the ResNet, whose learning rate falls, still goes downhill.

# %%
study.findings(planes, images)
