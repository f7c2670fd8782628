# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # The first landscape of your own model
#
# Five minutes, from a model and a training loop of your own to a picture that says how far it can be trusted. Nothing here belongs to the
# studies but the choice of images; replace model, data and loop by yours.

# %%
import torch
from torch import nn

import landscape
from landscape import TrajectoryCollector
from landscape.surface.record_entries import MARKS
from studies import pictures
from studies.data import handwriting
from studies.settings import choose, folder_of
from studies.shown import Table

images = handwriting(choose(2000, 128))
print(images)
inputs, labels = images.training
folder = folder_of("first-landscape", images.slug)

# %% [markdown]
# ## Your model and your loop
#
# Any module, any optimiser. The collector keeps the weights at the epochs that `intervals` lists, and a line of the history for each step.

# %%
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
epochs = choose(8, 3)
collector = TrajectoryCollector(folder, model, optimizer, unit="epoch", intervals=[range(epochs + 1)], overwrite=True)
for _ in range(epochs):
    for batch in torch.randperm(len(labels)).split(64):
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        collector.step(loss)
    collector.end_epoch()
held_out = (model(images.held_out[0]).argmax(1) == images.held_out[1]).float().mean()
print(f"held-out accuracy {held_out:.1%} after {epochs} epochs")

# %% [markdown]
# ## Two landscapes
#
# A plane of two random directions around the trained weights, and the plane that the path of training lies in best. `keep` makes them landscapes of the
# run that the collector has begun, for `landscape view` and every other command; without it they last as long as this notebook.

# %%
asked = {"num_samples": choose(512, 64), "size": choose(31, 7), "keep": folder, "progress": False}
around = landscape.plane(model, (inputs, labels), "cross_entropy", **asked)
path = landscape.path(model, folder, (inputs, labels), "cross_entropy", **asked)
print(around, path, sep="\n")

# %%
pictures.planes({"around the trained weights": around, "along the path": path}, shared=False)

# %% [markdown]
# In JupyterLab, VS Code and Colab a cell that ends with `around` shows the same landscape as a live figure, and `landscape view` serves the page
# of the whole run. Here is the surface as a picture, which GitHub draws as well:

# %%
pictures.planes({"around the trained weights": around}, kind="surface")

# %% [markdown]
# ## Can it be trusted?
#
# Checks say so; `landscape check` prints the same. A tick holds, an exclamation mark is a reservation, a cross fails, a dash could not be judged; what
# has no mark is told for your information.

# %%
checks = landscape.check(around)[around.name]
Table.of(("", "check", "what was found"), *((MARKS[check.state], check.name, check.text) for check in checks.results))
