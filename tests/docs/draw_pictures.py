"""The pictures of the documentation, drawn anew by carrying out the pages that show them.

python tests/docs/draw_pictures.py                          all pictures
python tests/docs/draw_pictures.py docs/howto/trust.md      those of some pages

The tests carry out every page on small grids; this runs its Python and its shell as a reader would, in a folder of its
own, and puts the pictures beside the page, with 200 colours. `--data FOLDER`, or LANDSCAPE_DATA, names the folder with
CIFAR-10 and the weights of a ResNet-20; pages that need what is not here are named and left out. Ends with 1 where a
line that a page shows was not printed, or a picture was not drawn.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from blocks import Block, blocks_of, shell_commands  # noqa: E402

PRINTED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLOURS = 200
RETINA = 1400  # pixels: pictures of the export are drawn at twice their width
DEMO = "landscape demo"
PAGE = "landscape view"
FLAGS = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]  # of Chromium, as root without a GPU
# Per page the pictures, and the file that its code writes, or a command for those that no reader has to draw.
PICTURES = {
    "docs/gallery.md": {
        f"gallery-{name}.png": f"gallery-{name}.png"
        for name in (
            "skips", "depth", "path", "curve", "ways", "average", "optima", "bands", "surface", "snapshots", "beside",
            "over",
        )
    },
    "docs/tutorial.md": {"tutorial.png": "runs/quadrants/export/path-*.png"},
    "docs/howto/curvature.md": {
        "curvature-eigen.png": "runs/resnet20/export/eigen-*.png",
        "curvature-random.png": "runs/resnet20/export/random-*.png",
        "curvature-convexity.png": "runs/convexity/export/convexity-*.png",
    },
    "docs/howto/forecasts.md": {"forecasts.png": "runs/forecasts/export/*rmse*.png"},
    "docs/howto/graphs.md": {"graphs.png": "runs/graphs/export/*.png"},
    "docs/howto/language-models.md": {
        "language-bytes.png": "runs/bytes/export/*perplexity*.png",
        "language-smollm2.png": "runs/smollm2/export/*.png",
    },
    "docs/howto/paths.md": {"paths.png": "paths.png"},
    "docs/howto/physics.md": {"physics-burgers.png": "runs/burgers/export/minimum-topographic-log.png"},
    "docs/howto/policies.md": {"policies.png": "runs/policies/export/minimum-topographic.png"},
    "docs/howto/quantise.md": {
        "quantise-bits.png": "pictures/*bits*.png",
        "quantise-steps.png": "pictures/*steps*.png",
        "quantise-patch.png": "pictures/*patch.png",
        "quantise-surface.png": "pictures/*surface*.png",
    },
    "docs/howto/samples.md": {"samples.png": "samples.png"},
    "docs/howto/topology.md": {
        "topology.png": "runs/wave/export/plane-topographic*.png",
        "topology-barcode.png": "runs/wave/export/plane-barcode*.png",
    },
    "docs/howto/trust.md": {
        f"trust-{name}.png": f"trust-{name}.png"
        for name in (
            "coarse", "ends", "few", "holes", "path-stale", "rescaled", "rounded", "small", "stale", "swapped",
            "training-mode", "turning", "twelve", "unlucky", "unscaled", "wide",
        )
    },
    DEMO: {
        "docs/demo.png": "runs/demo/pictures/epochs-*topographic*.png",
        "docs/demo-surface.png": "runs/demo/pictures/epochs-*surface*.png",
    },
}  # fmt: skip
PICTURES[PAGE] = {name: name for name in ("docs/page-run.png", "docs/page-compare.png", "docs/howto/serve-page.png")}
PICTURES["docs/howto/inspect.md"] = {"inspect-layers.png": "pictures/broken-*first_layer*.png"}
# The network of docs/howto/inspect.md breaks at the exponential wherever it breaks: its picture is of a deeper one.
BREAKING = """
import torch
from torch import nn
from landscape import Problem

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())]
        self.first, self.blocks, self.last = nn.Linear(6, 16), nn.Sequential(*layers), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.exp(self.blocks(self.first(x))))

def problem():
    torch.manual_seed(0)
    return Problem.supervised(Net(), (torch.randn(64, 6), torch.randint(0, 3, (64,))))
"""
BREAKING_JOB = """
run: runs/broken
problem: breaking:problem
num_samples: 64
landscapes: [{name: broken, layers: true, size: 61, range: [-40, 40]}]
"""
TRAININGS = """
from landscape import Job, run
from landscape.recipes.digits import train

for name, optimizer, rate in (("sgd", "momentum", 0.02), ("adam", "adam", 0.002)):
    train(f"runs/{name}", optimizer=optimizer, learning_rate=rate, epochs=10, batch_size=64, intervals=[range(11)])
    plane = {"name": "minimum", "size": 41, "origin": "last"}
    path = {"name": "path", "size": 31, "trajectory": list(range(11))}
    run(Job(run=f"runs/{name}", problem="landscape.recipes.digits:problem", num_samples=512, landscapes=[path, plane]))
"""
ABSENT = {"a model of 93 MB": "gguf"}  # what a page says that it needs: the module that tells whether it is there


def carry_out(blocks: list[Block]) -> str:
    """What the blocks of a page print, in the folder of this process; those that only tests see are left out."""
    printed = io.StringIO()
    session: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if block.file:
            Path(block.file).write_text(block.code)
        elif block.of_tests or not can_run(block):
            continue
        elif block.language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(block.code, block.place, "exec"), session)
        elif block.language == "sh":
            for line in shell_commands(block.code):
                printed.write(output_of(shlex.split(line, comments=True)))
    return printed.getvalue()


def can_run(block: Block) -> bool:
    """Whether what a block needs beside time is here."""
    modules = [
        name for name in re.findall(r"[\w.]+", block.frameworks.partition(",")[0]) if name not in ("none", "and")
    ]
    missing = [name for name in modules if find_spec(name) is None]
    missing += [what for what, module in ABSENT.items() if what in block.not_run and find_spec(module) is None]
    if "weights and images" in block.not_run and not Path("resnet20-cifar10.safetensors").exists():
        missing.append("weights and images; name their folder by --data")
    others = block.not_run and not re.search("minute|weights and images|93 MB", block.not_run)
    if missing:
        print(f"{block.place}: left out, it needs {', '.join(missing)}", file=sys.stderr)
    return not missing and not others


def output_of(words: list[str]) -> str:
    """What a command of a page prints; `export` sets a variable, and what installs is left out."""
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value
        return ""
    if words[0] in ("pip", "make"):
        return ""
    command = {"landscape": ["-m", "cluster"], "python": []}[words[0]]
    return subprocess.run([sys.executable, *command, *words[1:]], check=True, stdout=subprocess.PIPE, text=True).stdout


def not_printed(page: Path, printed: str) -> list[str]:
    """The sentences of the page's text blocks that are nowhere in what was printed, whatever the ends of lines."""
    lines = " ".join(printed.split())
    sentences = [
        " ".join(sentence.split())
        for block in PRINTED.findall(page.read_text())
        for sentence in re.split(r"^(?= [✓!✗–] )|…$", block, flags=re.MULTILINE)
    ]
    return [sentence for sentence in sentences if sentence not in lines]


def keep(drawn: Path, picture: Path) -> None:
    """Write a picture with few colours, which takes a third of the bytes, at most at its nominal size."""
    from PIL import Image

    image = Image.open(drawn).convert("RGB")
    if image.width >= RETINA and picture.name != "demo.png" and drawn.parent.name in ("export", "pictures"):
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
    # By the usual method, which counts pixels, thin lines would get the colours of large surfaces.
    few = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


@contextlib.contextmanager
def folder_of_a_reader(data: Path | None) -> Iterator[Path]:
    """A new working folder, in which the files of the data lie under their names."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        for file in data.iterdir() if data else ():
            Path(folder, file.name).symlink_to(file.resolve())
        modules = set(sys.modules)
        try:
            yield Path(folder)
        finally:
            sys.path.remove(folder)
            for name in set(sys.modules) - modules:  # two pages may have modules of one name
                if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                    del sys.modules[name]


def draw_breaking_layers() -> None:
    """The picture of docs/howto/inspect.md, of a deeper network than its code."""
    Path("breaking.py").write_text(BREAKING)
    Path("breaking.yaml").write_text(BREAKING_JOB)
    output_of(["landscape", "run", "breaking.yaml", "--serial"])
    output_of(["landscape", "export", "runs/broken", "--to", "png", "--observable", "first_layer", "--out", "pictures"])


def draw_page(folder: Path) -> None:
    """Photograph the page: a run, two compared, and a box that a service fills."""
    from browser_page import Look, find_chromium, serving
    from playwright.sync_api import sync_playwright
    from served import serving as serving_points

    (folder / "trainings.py").write_text(TRAININGS)
    output_of(["python", "trainings.py"])
    (folder / "docs/howto").mkdir(parents=True)
    with sync_playwright() as tool, serving(folder / "runs") as address:
        chromium = tool.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        options = ["--grpc-port", "0", "--replicas", "1"]
        with Look.open(chromium, address) as look, serving_points(["runs/sgd"], folder, *options):
            run, other = look.run_id("sgd"), look.run_id("adam")
            look.page.set_viewport_size({"width": 1400, "height": 900})
            look.show("run", run=run, landscape="path", kind="topographic")
            look.until("landscapePage.exact.served")
            look.page.screenshot(path=folder / "docs/page-run.png", animations="disabled")
            look.show("compare", item=[f"{run}|minimum", f"{other}|minimum"], mode="tiled", kind="surface")
            look.page.screenshot(path=folder / "docs/page-compare.png", animations="disabled")
            look.page.set_viewport_size({"width": 1400, "height": 1400})
            look.show("run", run=run, landscape="minimum", kind="contour")
            look.until("landscapePage.exact.served")
            look.page.get_by_text("A box by numbers").click()
            for label, value in (("alpha from", -0.9), ("alpha to", 0.1), ("beta from", -0.9), ("beta to", 0.1)):
                look.page.get_by_label(label).fill(str(value))
            look.page.get_by_label("Points along a side, at most").select_option("64")
            look.page.get_by_role("button", name="Fill this box").click()
            look.until("landscapePage.exact.patch?.done > 20")
            look.picture().save(folder / "part.png")
            look.until("landscapePage.exact.patch?.state === 'whole'", seconds=600.0)  # 4,096 points
            look.picture().save(folder / "whole.png")
        chromium.close()
    put_side_by_side([folder / "part.png", folder / "whole.png"], folder / "docs/howto/serve-page.png")


def put_side_by_side(pictures: list[Path], file: Path) -> None:
    """One picture of several, from left to right."""
    from PIL import Image

    images = [Image.open(picture) for picture in pictures]
    whole = Image.new("RGB", (sum(image.width for image in images), max(image.height for image in images)), "white")
    left = 0
    for image in images:
        whole.paste(image, (left, 0))
        left += image.width
    whole.save(file)


def draw(source: str, data: Path | None) -> list[str]:
    """Carry out a page, or the demo, and keep its pictures; what is wrong, a line each."""
    page = ROOT / source
    with folder_of_a_reader(data) as folder:
        wrong = []
        if source == DEMO:
            output_of([*DEMO.split(), "--out", "runs/demo"])
        elif source == PAGE:
            draw_page(folder)
        elif "inspect" in source:
            draw_breaking_layers()
        else:
            printed = carry_out(blocks_of(page))
            # Other pages print what differs from machine to machine; their numbers are checked by the tests.
            wrong = (
                [f"{source}: not printed: {line}" for line in not_printed(page, printed)] if "trust" in source else []
            )
        for name, pattern in PICTURES[source].items():
            picture = (page.parent if page.is_file() else ROOT) / name
            drawn = sorted(folder.glob(pattern))
            if drawn:
                keep(drawn[0], picture)
                print(picture.relative_to(ROOT), picture.stat().st_size)
            else:
                wrong.append(f"{source}: {name} was not drawn: there is no {pattern}")
    return wrong


def main() -> int:
    """Carry out the pages, and put their pictures beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help=f"pages of docs/, {DEMO!r} or {PAGE!r}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("LANDSCAPE_DATA"))
    given = parser.parse_args()
    data = Path(given.data).resolve() if given.data else None
    os.environ["PYTHONPATH"] = str(ROOT)
    wrong = []
    for source in given.pages or PICTURES:
        try:
            wrong += draw(source, data)
        except Exception as error:  # the other pages are drawn all the same
            wrong.append(f"{source}: {type(error).__name__}: {error}")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
