"""Addresses that nobody's page makes, and damaged runs behind right ones: each is answered by a figure or a sentence."""

from __future__ import annotations

import contextlib
import io
import random
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from cases import Case, Step
from fuzz_damage import damage
from judging import Ended
from nasty import SCALARS
from scene import Scene

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

PAGE = "page"  # a step that asks the page, and is no command
LANDSCAPES = ("plane", "path", "line")
FIGURE = (
    "landscape", "kind", "observable", "log", "levels", "exact", "zmin", "zmax", "clip", "scale", "theme", "uncertainty", "extrema",
    "max",
)  # fmt: skip
PARAMETERS = {
    "run": (), "figure": FIGURE, "csv": FIGURE, "thumbnail": ("landscape", "observable"), "job": ("landscape", "box", "size"),
    "history": ("unit", "log", "theme", "landscape"), "runs": (), "looks": (), "differences": ("item",),
    "compare": ("item", "item", "mode", "kind", "observable", "log", "levels", "exact", "scale", "lock", "theme"),
}  # fmt: skip
RIGHT = {
    "landscape": LANDSCAPES, "kind": ("contour", "topographic", "surface", "curve", "slices", ""), "log": ("auto", "0", "1"),
    "observable": ("loss", "accuracy", "loss_stderr"), "levels": ("1", "7", "60"), "exact": ("0", "1"), "zmin": ("0", "-1"),
    "zmax": ("3", "1e9"), "clip": ("50", "99"), "scale": ("viridis", "rdbu"), "theme": ("light", "dark"), "max": ("2", "3"),
    "uncertainty": ("0", "1"), "extrema": ("0", "1"), "box": ("0,1", "0,1,-1,1"), "size": ("5", "5,5"), "unit": ("step", "epoch"), "lock": ("0", "1"),
    "mode": ("tiled", "overlay", "difference"), "item": tuple(f"{{run}}|{name}" for name in LANDSCAPES),
}  # fmt: skip
MOST_SHOWN = 8000  # characters of a value: a longer address is refused as a whole


def addresses(chance: random.Random, scene: Scene) -> Case:
    """Several addresses, each with one or a few values that no control of the page has."""
    asked = tuple(_address(chance) for _ in range(8))
    return Case(" ".join(asked)[:300], [Step((PAGE, *asked))])


def damaged(chance: random.Random, scene: Scene) -> Case:
    """Right addresses of a run of which one to three files are damaged."""
    spoilt = damage(chance, scene)
    asked = tuple(_address(chance, wrong=0.0) for _ in range(10))
    return Case(spoilt.what, [Step((PAGE, "api/run?run={run}", *asked))])


def _address(chance: random.Random, wrong: float = 0.3) -> str:
    question = chance.choice(list(PARAMETERS))
    names = [name for name in PARAMETERS[question] if chance.random() < 0.6 or name in ("landscape", "box", "item")]
    pairs = [("run", "{run}")] if question not in ("runs", "looks", "compare", "differences") else []
    pairs += [(name, chance.choice(RIGHT[name])) for name in names]
    if pairs and chance.random() < wrong * 2:
        k = chance.randrange(len(pairs))
        pairs[k] = (pairs[k][0], str(chance.choice(SCALARS))[:MOST_SHOWN])
    if chance.random() < wrong / 2:
        pairs.append((chance.choice([*RIGHT, "nothing", ""]), str(chance.choice(SCALARS))[:MOST_SHOWN]))
    query = "&".join(f"{quote(name)}={quote(value, safe='{}')}" for name, value in pairs)
    return f"api/{question}" + (f"?{query}" if query else "")


def ask(addresses: Sequence[str], folder: Path) -> Ended:
    """The answers to addresses: as a command that says their sentences, and has failed where one is no answer at all."""
    from page_client import asking

    from landscape.core.http import Guard
    from landscape.page.server import make_app
    from landscape.store.status import identifier, open_place

    started, guard, said, code = time.monotonic(), Guard("t"), [], 0
    run, err = folder / "run", io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(err):
        warnings.simplefilter("ignore")
        with asking(make_app([open_place(str(folder))], guard), f"{guard.cookie}=t") as client:
            while client.json("/api/runs")["scanning"]:
                time.sleep(0.01)
            for address in addresses:
                reply = client.get("/" + address.replace("{run}", identifier(str(run))))
                if reply.status not in (200, 400, 404, 410, 503):
                    said.append(f"Traceback (most recent call last): {reply.status} for {address}"[:400])
                elif reply.status != 200:
                    said.append(reply.error)
                    code = 1
    # One question at a time is answered; their sentences are judged as if each were a command's.
    return Ended(code, "", "\n".join(dict.fromkeys(said[:7])), time.monotonic() - started)


KINDS = {"addresses": (addresses, 2), "a damaged run": (damaged, 1)}
