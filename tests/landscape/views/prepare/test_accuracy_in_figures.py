"""Figures of landscapes with an accuracy: the scale, the caption and the points show no more than is known."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
from synthetic_surfaces import attributes as recorded
from synthetic_surfaces import axis, with_record

from landscape.surface.record_parts import AccuracyRecord
from landscape.surface.surface import OK, Surface
from landscape.views.exporting import Browser
from landscape.views.prepare.figure import prepare_figure, suggests_log
from landscape.views.prepare.words import caption

RECORD = AccuracyRecord(
    error=0.02, relative=True, population=8000, reached=0.017, relief=9.0, evaluations=171_904, points=81,
    most_samples=8000, rounds=9, stopped="reached",
)  # fmt: skip


def picture(**changes: object) -> Surface:
    """A bowl from 0.007 to 20 with an accuracy of 2 %, evaluated at every fourth point."""
    ends = np.linspace(-1, 1, 17)
    loss = 0.007 + 10 * (ends[:, None] ** 2 + ends[None, :] ** 2)
    known = np.zeros(loss.shape, np.int64)
    known[::4, ::4] = 256
    arrays = {
        "loss": loss, "loss_stderr": np.full(loss.shape, 0.05), "accuracy": np.full(loss.shape, 0.5),
        "loss_interpolation_error": np.full(loss.shape, 0.02), "samples_known": known,
    }  # fmt: skip
    made = Surface("bowl", (axis("alpha", ends), axis("beta", ends, 2)), arrays, np.full(loss.shape, OK, np.uint8))
    attributes = recorded(accuracy=replace(RECORD, **changes), origin_loss=0.007, origin_loss_stderr=0.0)
    return replace(made, attributes=attributes)


def test_losses_with_a_linear_error_are_drawn_on_a_linear_scale() -> None:
    assert suggests_log(with_record(picture(), accuracy=None))
    assert not suggests_log(picture())
    assert suggests_log(picture(scale="log"))
    assert not prepare_figure(picture()).scale.log


def test_a_logarithmic_scale_that_was_asked_for_names_the_loss_below_which_it_means_little() -> None:
    assert "losses below 0.15, the stated error, mean little" in ". ".join(prepare_figure(picture(), log=True).caption)
    assert "mean little" not in ". ".join(prepare_figure(picture(scale="log")).caption)


def test_the_caption_says_what_is_reached_in_units_of_the_loss_too() -> None:
    text = ". ".join(caption(picture(), "loss"))
    assert "True to 1.7\u00a0% of the relief (0.15) on 95\u00a0% of the area; 81 points evaluated" in text
    text = ". ".join(caption(picture(relative=False, error=0.2, reached=0.17), "loss"))
    assert "True to 0.17 in loss on 95\u00a0% of the area" in text


def test_other_observables_do_not_carry_the_promise_of_the_loss() -> None:
    text = ". ".join(caption(picture(), "accuracy"))
    assert "true to" not in text.lower()
    assert "chosen for the loss; the error of this is not stated" in text


@pytest.mark.parametrize(("stopped", "state"), [("reached", "Complete"), ("given up", "Partial")])
def test_the_state_is_that_of_the_rounds(stopped: str, state: str) -> None:
    assert any(part.startswith(state) for part in caption(picture(stopped=stopped), "loss"))


def test_a_picture_whose_rounds_go_on_is_not_complete() -> None:
    surface = picture(stopped="")
    running = with_record(surface, progress=replace(surface.record.progress, state="running"))
    assert any(part.startswith("Running") for part in caption(running, "loss"))


def test_the_stated_error_is_that_of_samples_and_of_interpolation() -> None:
    assert np.allclose(picture().stated_error, np.hypot(0.05, 0.02))
    assert not with_record(picture(), accuracy=None).stated_error.any()


def test_files_have_no_legend_entry_of_what_is_hidden() -> None:
    figure = picture().figure(kind="contour")
    assert [trace.visible for trace in figure.data if trace.name == "evaluated points"] == ["legendonly"]
    drawn = {}

    class Kaleido:
        async def calc_fig(self, figure: dict, opts: dict) -> bytes:
            drawn.update(figure)
            return b"png"

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        assert Browser(Kaleido(), loop).draw(figure, "png") == b"png"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert drawn["data"]
    assert "evaluated points" not in [trace.get("name") for trace in drawn["data"]]
