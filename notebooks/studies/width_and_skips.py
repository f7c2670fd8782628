"""Width and skip connections, after Li et al. 2018: ResNets of two widths, and with and without skips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from landscape.recipes.resnet import ResNet
from landscape.surface.surface import Surface
from studies.data import StudyData, photographs
from studies.findings import Finding, Findings
from studies.networks import Network, Recipe, train
from studies.quantities import OverSeeds, hollow_share, in_how_many, low_share, mean_rise
from studies.settings import choose
from studies.shown import Table

STUDY = "width-and-skips"
NEAR, FAR = 0.25, 0.5  # along the lines, in the length of each filter
LOW = 1.0  # nat above the middle
LAST = 20  # steps whose training loss says how far a network is trained

Shape = tuple[int, int, bool]  # depth, width, skip connections
SHAPES: dict[str, Shape] = {
    "ResNet-8, width 1": (8, 1, True),
    "ResNet-8, width 2": (8, 2, True),
    "ResNet-20 with skips": (20, 1, True),
    "ResNet-20 without skips": (20, 1, False),
}
FEW_SHAPES: dict[str, Shape] = {
    "ResNet-8, width 1": (8, 1, True),
    "ResNet-8 without skips": (8, 1, False),
}


@dataclass(frozen=True)
class Around:
    """What surrounds the networks of one kind, a number for each seed.

    Attributes:
        accuracy, loss: held out.
        trained: the mean training loss of the last steps.
        near, far: the mean rise along random filter-normalised lines at 0.25 and at 0.5.
        low: the share of the plane that lies less than a nat above its middle.
        hollow: the share of the plane that is not convex.
    """

    label: str
    accuracy: OverSeeds
    loss: OverSeeds
    trained: OverSeeds
    near: OverSeeds
    far: OverSeeds
    low: OverSeeds
    hollow: OverSeeds


def shapes() -> dict[str, Shape]:
    """The kinds of networks by their labels."""
    return choose(SHAPES, FEW_SHAPES)


def seeds() -> tuple[int, ...]:
    """Those of the trainings."""
    return choose((0, 1, 2), (0, 1))


def data() -> StudyData:
    """The images of this study."""
    return photographs(choose(2000, 64), halved=True)


def networks_of(images: StudyData, label: str) -> list[Network]:
    """The networks of a kind, one for each seed; all kinds are trained alike."""
    depth, width, shortcuts = shapes()[label]
    epochs = choose(16, 2)
    # Without the warm-up, and at a higher rate, the deep networks hardly learn in so few steps.
    options = {"epochs": epochs, "batch_size": choose(64, 32), "learning_rate": 0.05, "warmup_epochs": 2,
               "weight_decay": 5e-4}  # fmt: skip
    build = partial(ResNet, depth, width, shortcuts=shortcuts)
    return train(STUDY, Recipe(label, build, images, options, [[0, epochs // 2, epochs]]), seeds())


def around(trained: Sequence[Network], computed: Sequence[Mapping[str, Surface]]) -> Around:
    """What surrounds the networks of one kind, by the landscapes of each: a plane, and lines from −0.5 to 0.5."""
    planes = [landscapes["plane"] for landscapes in computed]
    lines = [[line for line in landscapes.values() if len(line.axes) == 1] for landscapes in computed]
    return Around(
        trained[0].recipe.label,
        OverSeeds(tuple(network.accuracy for network in trained)),
        OverSeeds(tuple(network.loss for network in trained)),
        OverSeeds(tuple(float(network.training_losses[1][-LAST:].mean()) for network in trained)),
        OverSeeds(tuple(mean_rise(of_one, NEAR) for of_one in lines)),
        OverSeeds(tuple(mean_rise(of_one, FAR) for of_one in lines)),
        OverSeeds(tuple(low_share(surface, LOW) for surface in planes)),
        OverSeeds(tuple(hollow_share(surface) for surface in planes)),
    )


def table(around_of: Mapping[str, Around]) -> Table:
    """A line for each kind of network."""
    heads = (
        "network", "held-out accuracy", "held-out loss", f"training loss, last {LAST} steps",
        f"rise at {NEAR}", f"rise at {FAR}", "plane below a nat", "plane not convex",
    )  # fmt: skip
    rows = (
        (
            label, _percent(each.accuracy), each.loss, each.trained, each.near, each.far, _percent(each.low),
            _percent(each.hollow),
        )
        for label, each in around_of.items()
    )  # fmt: skip
    return Table.of(heads, *rows)


def _percent(share: OverSeeds) -> str:
    return f"{_hundred(share)} %"


def findings(around_of: Mapping[str, Around], images: StudyData) -> Findings:
    """What is to be said of the claims on width, in a study in full, and on skip connections at each depth."""
    kinds = list(around_of.values())
    found = []
    if len(kinds) > 2:
        narrow, wide = kinds[:2]
        found = [
            _finding("minima of wider networks are flatter", f"rise at {FAR}", wide, narrow, "far", images),
            _finding(
                "minima of wider networks are broader", "share of the plane below a nat", narrow, wide, "low", images
            ),
        ]
    pairs = zip(kinds[2::2], kinds[3::2], strict=True) if found else [(kinds[0], kinds[1])]
    for skips, plain in pairs:
        found += [
            _finding("without skip connections minima are sharper", f"rise at {FAR}", skips, plain, "far", images),
            _finding(
                "without skip connections the surface is less convex", "share of the plane that is not convex",
                skips, plain, "hollow", images,
            ),
        ]  # fmt: skip
    return Findings.of(*found)


def _hundred(share: OverSeeds) -> OverSeeds:
    return OverSeeds(tuple(100 * value for value in share.values))


def _finding(claim: str, what: str, less: Around, more: Around, name: str, images: StudyData) -> Finding:
    """The claim that a number is less around the first kind of networks than around the second one."""
    first, second = getattr(less, name), getattr(more, name)
    said = [_percent(each) if name in ("low", "hollow") else str(each) for each in (first, second)]
    text = f"{what}: {said[0]} in {less.label}, {said[1]} in {more.label}"
    return Finding(claim, text, len(first.values), f"{images.name}, 16 × 16", in_how_many(first, second))
