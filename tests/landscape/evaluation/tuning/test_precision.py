"""What a lower precision costs against float32, also where the weights do not fit the device in float32."""

from __future__ import annotations

import numpy as np
import torch
from small_models import conv_problem, make_job

from landscape import run
from landscape.evaluation.evaluator import Evaluator


def bfloat16_problem():
    problem = conv_problem()
    problem.model.bfloat16()
    return problem


def job(folder, **fields):
    return make_job(folder, bfloat16_problem, [{"name": "a", "size": 3}], num_samples=8, precision="bfloat16", **fields)


def test_a_device_without_room_for_weights_in_float32_leaves_the_error_unknown(tmp_path, monkeypatch, caplog):
    expected = run(job(tmp_path / "whole", engine="eager"))["a"]
    assert expected.attributes["precision_error"]["max_abs_error"] > 0

    def no_room(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Evaluator, "twin", no_room)
    with caplog.at_level("INFO", "landscape"):
        found = run(job(tmp_path / "small", engine="eager"))["a"]
    assert found.attributes["precision_error"] is None
    assert "what bfloat16 costs is not known" in caplog.text
    assert np.array_equal(found.loss, expected.loss)
