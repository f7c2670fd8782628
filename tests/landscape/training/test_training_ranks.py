"""Two, three and four ranks compute what one does, and go on to the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_scene
import torch

from landscape.model.history import read_history
from landscape.model.snapshots import read_trajectory

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("training ranks")]  # one process makes `scene`


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """The folder in which four ranks trained, and what each of them found."""
    folder = tmp_path_factory.mktemp("ranks")
    rank_scene.prepare(folder)
    # Gloo listens on the address of the host's name, which need not be reachable.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [Path(__file__).parents[3], *sys.path]))
    done = subprocess.run(
        [sys.executable, rank_scene.__file__, str(folder)],
        env=environment, stderr=subprocess.PIPE, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(rank_scene.RANKS)]


@pytest.mark.parametrize("world", [2, 4])
def test_several_ranks_take_the_steps_of_one_with_the_whole_batch(scene, tmp_path, world):
    losses, weights = rank_scene.loop(tmp_path)
    assert len(losses) == 20
    for found in scene[1][:world]:
        ranks_losses, ranks_weights = found[f"equals_one-{world}"]
        torch.testing.assert_close(ranks_weights, weights, rtol=1e-10, atol=1e-12)
        assert ranks_losses == pytest.approx(losses, rel=1e-10)
        assert ranks_losses == scene[1][0][f"equals_one-{world}"][0]


def test_three_ranks_that_were_interrupted_end_with_the_same_bits(scene):
    folder, found = scene
    for each in found[:3]:  # after the last step each has the statistics of its own share
        calm, ended = each["interrupted-3"]
        assert calm == ended
    assert read_history(folder / "cut") == read_history(folder / "calm")
    assert rank_scene.steps_told(folder / "cut") == rank_scene.in_order(6, 3)


def test_another_number_of_ranks_is_told_once_and_goes_on(scene):
    (first, told), (second, untold) = (each["fewer_ranks-2"] for each in scene[1][:2])
    assert first == second == 2
    assert not untold
    assert len(told) == 1
    assert "was trained with 3 ranks and goes on with 2" in told[0]


def test_means_and_sums_are_exact_and_each_rank_draws_numbers_of_its_own(scene):
    found = [each["means-4"] for each in scene[1]]
    exact = torch.tensor([[0.1 * (rank + 1), 1e8 * (-1) ** rank, 3.0] for rank in range(4)]).double().mean(0).float()
    for each in found:
        assert torch.equal(each["mean"], exact)
        assert each["whole"].tolist() == [6, 4 * 2**53 + 6]
        assert each["plain"] == 1.5
    assert len({each["drawn"] for each in found}) == 4


def test_what_rank_0_refuses_ends_every_rank(scene):
    first, second = (each["refusals-2"] for each in scene[1][:2])
    assert first[:-1] == second[:-1]
    assert [first[-1], second[-1]] == ["ZeroDivisionError", "LandscapeError"]
    kept, unusable, foreign, _ = first
    assert kept.startswith("keep: what must be of tensors")
    assert unusable.startswith("intervals")
    assert "holds a trajectory that this training did not make" in foreign


def test_a_recipe_on_two_ranks_takes_the_steps_of_one_also_of_second_order(scene, tmp_path):
    folder, found = scene
    for name, settings in (("smooth", rank_scene.SETTINGS), ("second", rank_scene.SECOND_ORDER)):
        alone = rank_scene.recipe(tmp_path / name, rank_scene.smooth_net, settings=settings)
        for each in found[:2]:
            loss, accuracy, weights = each["recipes-2"][name]
            assert (loss, accuracy) == (pytest.approx(alone.loss, rel=1e-10), alone.accuracy)
            torch.testing.assert_close(weights, alone.model.state_dict(), rtol=1e-10, atol=1e-12)
    histories = [read_history(run / "smooth") for run in (folder, tmp_path)]
    for name in ("loss", "accuracy", "learning_rate"):
        ranks, one = ([line.get(name, 0.0) for line in history] for history in histories)
        assert ranks == pytest.approx(one, rel=1e-10)
    assert [line["step"] for line in histories[0] if "accuracy" in line] == [4, 8, 12]
    trajectory = read_trajectory(folder / "smooth")
    assert trajectory.numbers == (0, 1, 2, 3), "what it ended with is kept, though no interval lists it"
    for each in found[:2]:
        torch.testing.assert_close(trajectory.snapshots[-1].load(), dict(each["recipes-2"]["smooth"][2]))


def test_a_recipe_with_thor_batch_norm_and_dropout_goes_on_to_the_same_bits_on_two_ranks(scene):
    folder, found = scene
    assert len({each for one in found[:2] for each in (one["recipes-2"]["normed"], one["recipes_go_on-2"])}) == 1
    assert rank_scene.steps_told(folder / "normed-cut") == rank_scene.in_order(15, 5)
