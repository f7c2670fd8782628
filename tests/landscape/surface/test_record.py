"""The record of a landscape: every field comes back from a real store, and what is damaged is refused or left out."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from landscape.core.errors import LandscapeError
from landscape.core.grid import Grid, axis_coordinates
from landscape.core.plan import Plan
from landscape.core.text import digest
from landscape.model.parameters import layout
from landscape.store.format import NewArrays
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record, parse, parse_axis, plain
from landscape.surface.record_entries import (
    BarrierRecord,
    BitsRecord,
    Check,
    Checks,
    ComparedRecord,
    ConnectionRecord,
    ConvexityRecord,
    FoundAxis,
    FoundRange,
    LayersRecord,
    StepsRecord,
    WayRecord,
)
from landscape.surface.record_parts import (
    CheckRecord,
    EngineChoice,
    Failure,
    ImportRecord,
    OwnModelRecord,
    PackedCopyRecord,
    PrecisionError,
    ProgressRecord,
    Provenance,
    RandomData,
    TermRecord,
    TrialRecord,
    WorkerRecord,
)

IDENTITY = {"origin": "a" * 64, "observables": ["loss"], "num_samples": 7, "samples": "b" * 64, "seed": 3}
TRIALS = (
    TrialRecord(engine="eager", batch_size=8, samples_per_second=12.5, over_best=1.0, spread=0.1),
    TrialRecord(engine="compile", batch_size=8, refused="fails: no compiler"),
)
WORKER = WorkerRecord(name="w-1", host="h", node="f" * 32, pid=7, device="cpu", tasks=3, points=30, seconds=1.5)
# A value of every field that is written for a landscape, and one that is malformed.
WRITTEN: dict[str, tuple[Any, Any]] = {
    "job": ({"engine": "auto", "batch_size": None, "threads": 2, "landscapes": [{"name": "a"}]}, [1]),
    "defaults": (2, "2"),
    "position": (0, -1),
    "identity": (IDENTITY, "x"),
    "digest": (digest(IDENTITY), 7),
    "sample_set": ("c" * 64, 7),
    "num_samples": (7, 7.5),
    "precision": ("bfloat16", None),
    "batch_norm": ("eval", 3),
    "seed": (3, "3"),
    "observables": (["loss"], ["loss", "loss"]),
    "moment_rows": (["loss", "loss-rise"], ["loss", 3]),
    "keep_samples": (True, "yes"),
    "weighted": (True, 1),
    "convexity": (ConvexityRecord(steps=60, parameters=9, second_derivatives="autograd"), {"steps": 0}),
    "rounded": (["fc1.weight"], ["fc1.weight", 3]),
    "moving_weights": ({"alpha": 0.75}, {"alpha": "most"}),
    "layers": (
        LayersRecord(layers=("fc1", "relu()"), weights=("fc1.weight",), rules={"relu_zeros": 0.5}),
        {"layers": [3]},
    ),
    "terms": ({"edge": TermRecord(weight=2.0, samples=3)}, {"edge": 3}),
    "derived": ({"perplexity": "exp(loss)"}, {"perplexity": 2}),
    "cosine": ([[1.0, 0.25], [0.25, 1.0]], [["x"]]),
    "checks": (
        Checks(
            when="2026-11-20T12:00:00+00:00", version="0.1.0", points=9, evaluations=130, seconds=1.5, deep=True,
            results=(
                Check(
                    number="8b", name="cell", state="holds", text="t", remedy="r", value=0.5,
                    numbers={"alpha": 1.0, "beta": None},
                ),
            ),
        ),
        {"seconds": "long"},
    ),
    "connection": (
        ConnectionRecord(
            when="2026-11-20T12:00:00+00:00", version="0.1.0", curve="bezier", t=(0.0, 0.5, 1.0), epochs=(0.5,),
            on_line=WayRecord(
                values={"loss": (0.0, 2.0, None)}, columns={"least": 0.0},
                barriers={"entezari": BarrierRecord(height=2.0, alpha=0.5)},
            ),
            on_curve=WayRecord(), evaluations=5, settings={"points": 3},
        ),
        {"curve": "circle"},
    ),
    "compared": (
        ComparedRecord(
            when="2026-11-20T12:00:00+00:00", version="0.1.0", samples=7, unrounded={"loss": 0.5},
            bits=(BitsRecord(bits=4, values={"loss": None}, difference=0.1, stderr=0.01),),
            steps=StepsRecord(axis="alpha", at=(-0.1, 0.1), unrounded=(0.5, 0.5), rounded=(0.6, None)),
        ),
        {"bits": [{"bits": "four"}]},
    ),
    "own_model": (
        OwnModelRecord(state="accepted", text="t", point=(0.5,), losses={"origin": ("0x1.0p+0", "nan")}),
        {"state": 3},
    ),
    "origin": ("epoch 3", 3),
    "origin_step": (3, "3"),
    "went_on_to": ("epoch 12", 12),
    "snapshots": ({"last": 3, "runs/sgd@last": 12}, {"last": "3"}),
    "plan": (Plan(8, 1, "cpu").record(), None),
    "provenance": (
        Provenance(
            created="2026-11-20T12:00:00+00:00", host="h", platform="Linux", versions={"torch": "2"}, model="M",
            parameters=9, batch_norm_layers=0, others={"later": [1]},
            engine=EngineChoice(
                engine="eager", batch_size=8, seconds_per_point=0.1, trials=TRIALS, processes=2, cached=True, since="x"
            ),
        ),
        3,
    ),
    "failures": ((Failure("tile (0, 1)", 3, "w-1", "ValueError: bad", "Traceback", "h", "f"),), [{"task": 1}]),
    "random_data": (RandomData(fields=("x",), unseeded=(), checked=16, unchecked=""), {"fields": 3}),
    "precision_error": (PrecisionError(max_abs_error=0.1, max_rel_error=0.01, points=3), {"max_rel_error": "x"}),
    "found_range": (
        FoundRange(target=0.1, rule="least", axes=(FoundAxis(radius=0.2, change=0.2, end="target"),), evaluations=17),
        {"target": 0.1},
    ),
    "check": (CheckRecord(point=(0.1, -0.2), values={"loss": (0.1).hex()}, processor="p", repeatable=False), 7),
    "packed": (PackedCopyRecord(file="packed/0f.landscape", digest="0f", files={"a": "files/0-a"}), {"file": 7}),
    "imported": (ImportRecord(file="a.h5", format="HDF5", digest="00"), 7),
    "computed_tile": ((9, 3), [9, -3]),
    "origin_loss": (0.5, "0.5"),
    "origin_loss_stderr": (None, []),
    "guessing": (2.3, "2.3"),
    "progress": (
        ProgressRecord(
            state="partial", tiles_done=1, tiles=2, points_done=3, points=4, seconds=0.5, rate=2.0, workers=1,
            by_worker=(WORKER,), retries=1, reduced_batches={"tile (0, 1)": 4}, updated="2026-11-20T12:00:00+00:00",
        ),
        {"seconds": -1},
    ),
}  # fmt: skip
WHOLE = {name: value for name, (value, _) in WRITTEN.items()}
REFUSED = {
    "job": "job: must be a JSON object",
    "identity": "identity: must be a JSON object",
    "digest": "digest: must be text",
    "plan": "plan: must be a JSON object",
    "observables": "observables: must be different names",
    "moment_rows": "moment_rows: must be a list of text",
    "keep_samples": "keep_samples: must be true or false",
}
STAYS = (
    "seed",
    "weighted",
    "convexity",
    "rounded",
    "moving_weights",
    "layers",
    "terms",
    "derived",
    "random_data",
    "found_range",
    "check",
    "imported",
    "computed_tile",
)  # malformed, they count as absent and are not touched


def make_store(folder: Path, **changes: Any) -> LandscapeStore:
    """A landscape with nothing computed that records every field, with these in place of the usual ones."""
    grid = Grid(("alpha",), (axis_coordinates(3, -1, 1),))
    direction = {"w": torch.ones(2)}
    axes = [{"kind": "random", "label": "axis"}]
    new = NewArrays(
        grid, (2,), ["loss"], axes, [direction], layout(direction, ["w"]),
        moment_rows=["loss", "loss-rise"], sample_index=np.arange(7), kept_samples=WHOLE["num_samples"],
    )  # fmt: skip
    return LandscapeStore.create(str(folder), "a", new, Record().changed(**WHOLE | changes))


def document_of(folder: Path) -> Path:
    return folder / "landscapes.zarr" / "a" / "zarr.json"


def edit(folder: Path, **entries: Any) -> None:
    """Damage a landscape's own document; the root's copy of it is taken away, so that it cannot help."""
    (folder / "landscapes.zarr" / "zarr.json").unlink()
    document = json.loads(document_of(folder).read_text())
    document["attributes"].update(entries)
    document_of(folder).write_text(json.dumps(document))


def test_the_table_has_every_field() -> None:
    # The store writes the first three; a level of refinement and a landscape with an accuracy have the last two.
    stored = {each.name for each in fields(Record)} - {"attributes", "schema_version", "name", "level", "accuracy"}
    assert set(WRITTEN) == stored


@pytest.mark.parametrize("level", [7, {"number": 0, "stride": 1}, {"number": 1, "stride": 2, "blocks": [[0]]}])
def test_a_level_that_does_not_say_which_blocks_it_holds_is_refused(tmp_path: Path, level: Any) -> None:
    make_store(tmp_path)
    edit(tmp_path, level=level)
    with pytest.raises(LandscapeError, match="level: must say which blocks it holds"):
        LandscapeStore.open(str(tmp_path), "a")


def test_every_field_comes_back_from_a_store_as_it_was_written(tmp_path: Path) -> None:
    make_store(tmp_path)
    found = LandscapeStore.open(str(tmp_path), "a")
    assert (found.record.schema_version, found.record.name) == (1, "a")
    assert found.own_problems == ()
    for name, value in WHOLE.items():
        assert plain(getattr(found.record, name)) == plain(value), name
    assert found.record.progress == WHOLE["progress"]
    assert found.record.provenance == WHOLE["provenance"]
    assert found.record.failures == WHOLE["failures"]
    assert (found.identity.samples, found.plan.engine, found.job.threads) == ("b" * 64, "eager", 2)


@pytest.mark.long
@pytest.mark.parametrize("name", WRITTEN)
def test_a_field_is_changed_on_disk_and_nothing_else_is(tmp_path: Path, name: str) -> None:
    store = make_store(tmp_path)
    edit(tmp_path, later={"of": ["a later version"]})
    before = json.loads(document_of(tmp_path).read_text())["attributes"]
    store = LandscapeStore.open(str(tmp_path), "a", write=True)
    store.update_attributes(**{name: WHOLE[name]})
    assert json.loads(document_of(tmp_path).read_text())["attributes"] == before
    assert store.attributes == before


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_damaged_is_refused_or_left_out_and_written_anew(tmp_path: Path, name: str) -> None:
    make_store(tmp_path)
    bad = WRITTEN[name][1]
    edit(tmp_path, **{name: bad})
    if name in REFUSED:
        with pytest.raises(LandscapeError, match=REFUSED[name]):
            LandscapeStore.open(str(tmp_path), "a")
        return
    found = LandscapeStore.open(str(tmp_path), "a")
    assert getattr(found.record, name) == getattr(Record(), name)
    assert all(plain(getattr(found.record, other)) == plain(WHOLE[other]) for other in WHOLE if other != name)
    if name in STAYS:
        assert found.own_problems == ()
        assert found.attributes[name] == bad
        return
    assert [problem.endswith(f"{name}: is malformed and left out") for problem in found.own_problems] == [True]
    mended = LandscapeStore.open(str(tmp_path), "a", write=True)
    mended.update_attributes(**{name: WHOLE[name]})
    again = LandscapeStore.open(str(tmp_path), "a")
    assert plain(getattr(again.record, name)) == plain(WHOLE[name])
    assert again.own_problems == ()


def test_failures_that_are_whole_stay_beside_one_that_is_not(tmp_path: Path) -> None:
    make_store(tmp_path)
    sound = plain(WHOLE["failures"])
    edit(tmp_path, failures=[{**sound[0], "later": 1}, {"task": "tile (1,)"}, 7])
    found = LandscapeStore.open(str(tmp_path), "a")
    assert found.record.failures == WHOLE["failures"]
    assert found.attributes["failures"] == sound
    assert len(found.own_problems) == 1


def test_a_record_is_changed_by_values_of_its_types_or_by_their_json() -> None:
    progress = WHOLE["progress"]
    assert Record().changed(progress=progress) == Record().changed(progress=plain(progress))
    with pytest.raises(TypeError, match="'progres'"):
        Record().changed(progres=progress)
    with pytest.raises(TypeError, match="'check'"):
        Record().changed(check=progress)
    assert Record().changed(check=7).check is None
    assert Record().changed(check=7).has_check


@pytest.mark.parametrize(
    ("guessing", "loss", "told"),
    [
        (2.0, 1.99, ", no better than guessing (2)"),
        (2.0, 1.0, ""),
        (None, 1.0, ""),
        (np.nan, 1.0, ""),
        (-np.inf, 1.0, ""),
    ],
)
def test_a_loss_is_compared_with_guessing_where_that_is_known(guessing, loss, told) -> None:
    """A document may hold NaN and infinity, which no status can show as a number."""
    assert Record.of({"guessing": guessing, "origin_loss": loss}).guessing_in_words == told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = sorted({key for value in WHOLE.values() if isinstance(plain(value), dict) for key in plain(value)})


@pytest.mark.long
@settings(max_examples=40)  # of documents with several entries each
@given(st.dictionaries(st.sampled_from([*WRITTEN, "later"]), JSON | st.dictionaries(st.sampled_from(WORDS), JSON)))
def test_any_document_is_parsed_and_what_is_sound_comes_back(document: dict[str, Any]) -> None:
    record, malformed = parse(document)
    assert repr(record.attributes) == repr(document)
    assert set(malformed) <= set(document)
    for name in set(WRITTEN) - set(malformed):
        assert getattr(record, name) is not None or document.get(name) is None
    for name in malformed:
        if name != "failures":
            assert getattr(record, name) == getattr(Record(), name)
    again = Record().changed(**{name: value for name, value in document.items() if name != "later"})
    assert repr(again.progress) == repr(record.progress)
    json.dumps(plain(record.progress))
    assert isinstance(parse_axis(document)[0].label, str)
