# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Batch size 64 and 256
#
# Small batches are said to end in broad minima, large ones in sharp minima, and broad minima to generalise better. Li et al. 2018 showed that the
# picture from which this was read, the line between both minima, misleads: it measures both in one unit although their weights differ in size.
# The article that many tutorials follow draws three pictures of a two-layer network on MNIST: the line between the minima of batch 64 and of batch
# 256, the plane around each with filter-normalised directions, and the line from the initial weights through the trained ones, with α from −20 to 20.
# Here they are, each with a number over the seeds beside it.

# %%
from landscape import Job, run
from studies import batch_size as study
from studies import pictures
from studies.settings import choose

images = study.data()
print(images)
print("seeds", *study.seeds())

# %% [markdown]
# Both networks of a seed begin at the same weights, and see as many images: the larger batch makes a quarter of the steps, at the same learning rate.

# %%
pairs = study.pairs(images)
for pair in pairs:
    print(*pair, sep="\n")

# %% [markdown]
# ## The line between both minima

# %%
lines = []
for small, large in pairs:
    job = Job(
        run=str(small.run),
        problem=small.problem,
        num_samples=choose(256, 32),
        landscapes=[
            {
                "name": "line-to-256",
                "origin": "last",
                "directions": [{"kind": "towards", "target": str(large.last)}],
                "range": [-0.5, 1.5],
                "size": choose(31, 9),
            }
        ],
    )
    lines.append(run(job)["line-to-256"])
pictures.lines({"each seed": lines}, log=True, marks={"batch 64": 0, "batch 256": 1})

# %%
pictures.lines({"each seed": lines}, observable="accuracy", marks={"batch 64": 0, "batch 256": 1})

# %% [markdown]
# ## The plane around each
#
# Two random directions, each filter of which is as long as the filter that it moves. Both planes have the same directions, samples and contour lines.

# %%
planes = {}
for network in pairs[0]:
    job = Job(
        run=str(network.run),
        problem=network.problem,
        num_samples=choose(256, 32),
        landscapes=[{"name": "plane", "origin": "last", "range": [-1, 1], "size": choose(11, 5)}],
    )
    planes[network.recipe.label] = run(job)["plane"]
pictures.planes(planes)

# %%
study.table(study.numbers(pairs))

# %% [markdown]
# ## From the initial weights, α from −20 to 20
#
# At 0 the network is untrained, at 1 it is trained. What the article draws is mostly what lies far outside both: there the loss grows as the weights do.

# %%
far, near = {}, {}
for network in pairs[0]:
    line = {"origin": "first", "directions": [{"kind": "towards", "target": "last"}]}
    job = Job(
        run=str(network.run),
        problem=network.problem,
        num_samples=choose(256, 32),
        landscapes=[
            {"name": "from-initial-20", "range": [-20, 20], "size": choose(41, 9), **line},
            {"name": "from-initial-3", "range": [-3, 3], "size": choose(25, 9), **line},
        ],
    )
    computed = run(job)
    far[network.recipe.label], near[network.recipe.label] = computed["from-initial-20"], computed["from-initial-3"]
pictures.lines(far, log=True, xlabel="alpha: 0 initial, 1 trained")

# %% [markdown]
# Between −1 and 3 the same line says more: how the loss falls from the initial weights to the trained ones, and how far it goes on being low behind them.

# %%
pictures.lines(near, log=True, marks={"initial": 0, "trained": 1})

# %% [markdown]
# ## What was found
#
# On MNIST: after four epochs batch 256 has made a quarter of the steps, and is not trained as far: its held-out loss is three times that of batch 64, its accuracy
# five points lower. From its end the loss falls all the way to the end of batch 64. There is no barrier, and no second minimum on that line: both lie in one
# valley, at different places of the same way down, and the familiar picture of a broad minimum beside a sharp one does not show. Beyond its ends the line
# rises sooner behind batch 256, and filter-normalised lines rise half as much around batch 64. So the numbers agree with the claim; but they compare a
# network that is trained with one that is on its way. The line from −20 to 20 shows little of either: its losses reach thousands and more, since weights
# twenty times as long give outputs that are larger by far.

# %%
study.findings(pairs, lines, images)
