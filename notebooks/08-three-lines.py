# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Three lines, six models
#
# `landscape.plane(model, data, loss)` takes a model as it stands in memory. The data are tensors, a data set or a `DataLoader`; the loss is a name, a
# criterion, or a function of model and batch. Six kinds of networks follow, each trained here in seconds by `studies/six_models.py`.

# %%
import landscape
from studies import pictures, six_models
from studies.data import handwriting
from studies.settings import choose
from studies.shown import Table

images = handwriting(choose(1000, 128))
print(images)
asked = {"size": choose(17, 5), "num_samples": choose(128, 32), "progress": False}

# %% [markdown]
# ## Classifiers: tensors, and a loss by its name

# %%
example = six_models.cnn(images)
cnn = landscape.plane(example.model, example.data, "cross_entropy", **asked)
axes = cnn.plot()

# %%
example = six_models.resnet(images)
resnet = landscape.plane(example.model, example.data, "cross_entropy", **asked)

# %% [markdown]
# ## A language model: token ids, and `causal_lm`
#
# The loss is the mean over predicted characters, in nats; perplexity comes with it. Its embedding is tied to its output, and so it is in
# `surface.weights(alpha, beta)`, a state dict for any point of the plane.

# %%
example = six_models.gpt()
gpt = landscape.plane(example.model, example.data, "causal_lm", **asked)
weights = gpt.weights(0.5, 0.5)
print(len(weights), "tensors; tied:", weights["head.weight"].equal(weights["words.weight"]))

# %% [markdown]
# ## Physics, graphs: a function of model and batch
#
# It returns the loss of each sample, or a dict with further observables. The residuals of a differential equation need derivatives by the inputs; a
# batch of graphs of different sizes is whatever the `DataLoader` collates.

# %%
example = six_models.pinn()
pinn = landscape.plane(example.model, example.data, example.loss, **asked)
example = six_models.graph_network()
graphs = landscape.plane(example.model, example.data, example.loss, **asked)
print(pinn, graphs, sep="\n")

# %% [markdown]
# ## LoRA: only what is trained is moved

# %%
example = six_models.lora(images)
lora = landscape.plane(example.model, example.data, "cross_entropy", **asked)

# %%
planes = dict(zip(six_models.titles(), (cnn, resnet, gpt, pinn, graphs, lora), strict=True))
pictures.planes(planes, shared=False)

# %% [markdown]
# ## What next
#
# A cell that is executed again computes nothing again. `landscape.check` says whether a picture can be trusted, `landscape.sharpness` how sharp a minimum is,
# `landscape.between` what lies between two networks, `landscape.path` where a training went; `keep="runs/x"` makes a run of it that the page, all commands
# and later sessions have, and `surface.job("job.yaml")` writes the job file for the night.

# %%
checks = landscape.check(cnn)[cnn.name]
print(checks.text(cnn.name))

# %%
example = six_models.cnn(images)
measures = landscape.sharpness(
    example.model, example.data, "cross_entropy", num_samples=asked["num_samples"], progress=False
)
Table.of(
    ("measure", "value"), *((name, f"{row.value:.4g}") for name, row in measures.rows.items() if row.value is not None)
)
