"""The recipe of a small GPT: its training on a text, and the landscapes of it."""

from __future__ import annotations

import math

import pytest
import torch

from landscape import JobError, NotFoundError, read_job, run
from landscape.model.snapshots import read_trajectory
from landscape.recipes.gpt import CONTEXT, GPT, NextByte, make_problem, read_rows, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    words = "the loss of a point is the mean over its samples, and its error follows from their spread. "
    (folder / "text.txt").write_text(words * 60)
    found = train(folder / "run", folder / "text.txt", epochs=2, batch_size=8, seed=1, intervals=[[0, 1, 2]])
    return folder, found


def test_it_learns_the_text(trained):
    folder, found = trained
    assert read_trajectory(folder / "run").numbers == (0, 1, 2)
    assert found.loss < 0.8 * math.log(256)
    assert 0 < found.accuracy < 1


def test_a_landscape_at_its_end_has_the_loss_of_its_training(trained):
    folder, found = trained
    (folder / "job.yaml").write_text(
        "run: run\nproblem: landscape.recipes.gpt:problem\nnum_samples: 4\n"
        "landscapes: [{name: end, origin: last, size: 3}]\n"
    )
    surface = run(read_job(folder / "job.yaml"))["end"]
    assert surface.loss[1, 1] == pytest.approx(found.loss, rel=1e-5)
    assert surface["perplexity"][1, 1] == pytest.approx(math.exp(surface.loss[1, 1]))


def test_no_token_sees_a_later_one():
    torch.manual_seed(0)
    model = GPT(depth=2, width=32).eval()
    tokens = torch.randint(0, 256, (2, 9))
    other = tokens.clone()
    other[:, 6:] += 1
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :6], model(other % 256)[:, :6])
        whole = NextByte(depth=2, width=32).eval()
        whole.load_state_dict(model.state_dict())
        assert torch.equal(whole(tokens), model(tokens).transpose(1, 2))
    assert model.head.weight is model.tokens.weight


def test_the_text_is_pythons_own_help_or_a_file(tmp_path):
    training, held_out = read_rows()
    assert training.shape[1] == held_out.shape[1] == CONTEXT
    assert abs(len(held_out) / (len(training) + len(held_out)) - 0.1) < 0.01
    with pytest.raises(NotFoundError, match=r"nowhere\.txt' does not exist"):
        read_rows(tmp_path / "nowhere.txt")
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(JobError, match="must have 256 bytes or more, not 5"):
        read_rows(tmp_path / "short.txt")
    assert make_problem(seed=3).derived == {"perplexity": "exp(loss)"}
