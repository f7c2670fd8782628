"""Every optimiser, schedule and option by which recipes train; what is wrong is refused by name."""

import inspect
import itertools
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from landscape.core.errors import JobError
from landscape.job.reading import read_job
from landscape.model.history import log_end, read_history, went_on_to
from landscape.model.parameters import state_digest
from landscape.model.run_files import read_info
from landscape.model.snapshots import read_trajectory
from landscape.recipes import digits
from landscape.recipes.data import Arrays
from landscape.recipes.settings import OPTIMIZERS, SCHEDULES, Settings, make_optimizer, schedule_of
from landscape.recipes.table import RECIPES, recipe
from landscape.recipes.training import SettingsOf, fit, training_of
from landscape.training.training import Training

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(30, 5, generator=GENERATOR)
LABELS = (INPUTS[:, 0] > 0).long()
COLLECT = {"unit": "epoch", "intervals": [[0, 1, 2]]}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def trained(run, report=None, problem=None, **options):
    data = Arrays((INPUTS, LABELS))
    settings = Settings(**{"epochs": 2, "batch_size": 8, "learning_rate": 0.05, "collect": COLLECT, **options})
    return fit(Training(run, seed=settings.seed), net, data, data, settings, problem=problem, report=report)


class Stop(Exception):
    """The training is interrupted."""


def stop_after(steps):
    """A damping that counts the steps, or a schedule: a function of the loop's that stops it within an epoch."""
    taken = itertools.count()

    def rate(epochs_done):
        if next(taken) == steps:
            raise Stop
        return 0.05

    return rate


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_each_optimiser_learns_and_goes_on_within_an_epoch(tmp_path, optimizer):
    options = {"optimizer": optimizer, "weight_decay": 1e-3, "checkpoint_steps": 1, "epochs": 4}
    options |= {"frequency": 3} if optimizer == "thor" else {}
    options["schedule"] = stop_after(-1)
    whole = trained(tmp_path / "whole", **options)
    assert whole.loss < nn.functional.cross_entropy(net()(INPUTS), LABELS)
    with pytest.raises(Stop):
        trained(tmp_path / "cut", **options | {"schedule": stop_after(6)})
    ended = trained(tmp_path / "cut", **options)
    assert (ended.loss, ended.accuracy) == (whole.loss, whole.accuracy)
    assert state_digest(ended.model.state_dict()) == state_digest(whole.model.state_dict())


@pytest.mark.parametrize(("unit", "end"), [("epoch", 4), ("step", 16)])
def test_the_weights_that_a_recipe_ends_with_are_kept(tmp_path, unit, end):
    ended = trained(tmp_path, epochs=4, collect={"unit": unit, "intervals": [[0, 1, 2]]})
    trajectory = read_trajectory(tmp_path)
    assert trajectory.numbers == (0, 1, 2, end)
    assert state_digest(trajectory.snapshots[-1].load()) == state_digest(ended.model.state_dict())
    assert went_on_to(log_end(tmp_path), trajectory.snapshots[-1]) == ""
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    trained(tmp_path, epochs=4, collect={"unit": unit, "intervals": [[0, 1, 2]]})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "all was done"


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_a_finished_recipe_whose_end_is_gone_keeps_it_when_it_is_called_again(tmp_path, unit):
    options = {"epochs": 4, "collect": {"unit": unit, "intervals": [[0, 1, 2]]}}
    ended = trained(tmp_path, **options)
    history = read_history(tmp_path)
    end = Path(read_trajectory(tmp_path).snapshots[-1].path)
    end.unlink()  # as a user may
    again = trained(tmp_path, **options)
    assert (again.loss, again.accuracy) == (ended.loss, ended.accuracy)
    trajectory = read_trajectory(tmp_path)
    assert Path(trajectory.snapshots[-1].path) == end
    assert state_digest(trajectory.snapshots[-1].load()) == state_digest(ended.model.state_dict())
    assert (trajectory.snapshots[-1].step, trajectory.snapshots[-1].epoch) == (16, 4)
    assert read_history(tmp_path) == history
    assert went_on_to(log_end(tmp_path), trajectory.snapshots[-1]) == ""


def test_a_recipe_that_is_interrupted_has_no_last_weights_until_it_ends(tmp_path):
    options = {"epochs": 4, "checkpoint_steps": 1}
    with pytest.raises(Stop):
        trained(tmp_path, **options, schedule=stop_after(14))
    assert read_trajectory(tmp_path).numbers == (0, 1, 2)
    assert went_on_to(log_end(tmp_path), read_trajectory(tmp_path).snapshots[-1]) == "epoch 3"
    trained(tmp_path, **options, schedule=stop_after(-1))
    assert read_trajectory(tmp_path).numbers == (0, 1, 2, 4)


def test_intervals_that_nobody_gave_stay_those_that_the_training_was_begun_with(tmp_path):
    def stop(epoch, metrics):
        raise Stop

    begun, now = ({"unit": "epoch", "intervals": [each]} for each in ([0, 1, 2], [2, 3, 4]))
    with pytest.raises(Stop):
        trained(tmp_path, epochs=4, collect=begun, report=stop)
    with pytest.raises(JobError, match=r"^collect: training in run .* was begun with"):
        trained(tmp_path, epochs=4, collect=now)
    trained(tmp_path, epochs=4, collect=now, default_intervals=True)
    assert read_info(tmp_path)["collect_landscape"]["intervals"] == [[0, 1, 2]]
    assert read_trajectory(tmp_path).numbers == (0, 1, 2, 4)


def test_default_intervals_are_of_epochs_where_steps_are_counted(tmp_path):
    trained(tmp_path, epochs=3, collect={"unit": "step", "intervals": [[0, 1, 2]]}, default_intervals=True)
    assert read_trajectory(tmp_path).numbers == (0, 4, 8, 12), "an epoch has four steps"
    again = {"unit": "step", "intervals": [[1, 2, 3]]}
    trained(tmp_path, epochs=3, collect=again, default_intervals=True)
    assert read_trajectory(tmp_path).numbers == (0, 4, 8, 12)
    shutil.rmtree(tmp_path / "trajectory")
    trained(tmp_path, epochs=3, collect={"unit": "step", "intervals": [[0, 1, 2]]}, default_intervals=True)
    assert read_trajectory(tmp_path).numbers == (0, 4, 8, 12), "it begins anew"


def test_weight_decay_is_l2_and_momentum_none_where_none_is_asked():
    chosen = [make_optimizer(net(), Settings(1, 1, 0.1, weight_decay=0.25, optimizer=name), 1) for name in OPTIMIZERS]
    assert [optimizer.param_groups[0]["weight_decay"] for optimizer in chosen] == [0.25] * 5
    assert [optimizer.param_groups[0].get("momentum") for optimizer in chosen] == [0, 0.9, None, None, 0.9]
    assert [type(optimizer).__name__ for optimizer in chosen] == ["SGD", "SGD", "Adagrad", "Adam", "THOR"]


def test_the_damping_of_thor_may_follow_the_epochs():
    optimizer = make_optimizer(net(), Settings(1, 1, 0.1, optimizer="thor", damping=lambda epoch: 1 + epoch), 10)
    assert optimizer.damping_schedule(5) == 1.5


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_each_schedule_begins_with_the_scaled_rate_and_warms_up_to_it(name):
    settings = Settings(10, 256, 0.1, schedule=name, milestones=(5,), base_batch=64)
    assert schedule_of(settings)(0) == pytest.approx(0.4)
    warm = schedule_of(Settings(10, 256, 0.1, schedule=name, milestones=(5,), base_batch=64, warmup_epochs=2))
    assert warm(0) == pytest.approx(0.1)
    assert warm(2) == schedule_of(settings)(2)
    assert schedule_of(Settings(10, 8, 0.1, schedule=lambda epoch: 7.0, base_batch=1))(3) == 7.0


def test_the_history_has_the_accuracy_of_every_so_many_steps_and_the_seconds(tmp_path):
    trained(tmp_path, log_every=3, epochs=3)
    history = read_history(tmp_path)
    steps = [line for line in history if not line.get("epoch_end")]
    assert [line["step"] for line in steps if "accuracy" in line] == [3, 6, 9, 12]
    assert all(0 <= line.get("accuracy", 0) <= 1 for line in steps)
    seconds = [line["seconds"] for line in steps]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0
    assert all(line["samples_per_second"] > 0 for line in history if line.get("epoch_end"))


def test_accuracies_and_seconds_go_on_after_an_interruption(tmp_path):
    options = {"log_every": 4, "checkpoint_steps": 1, "epochs": 3}
    trained(tmp_path / "whole", **options, schedule=stop_after(-1))
    with pytest.raises(Stop):
        trained(tmp_path / "cut", **options, schedule=stop_after(6))
    trained(tmp_path / "cut", **options, schedule=stop_after(-1))
    found, expected = (
        [{name: line.get(name) for name in ("step", "loss", "accuracy")} for line in read_history(tmp_path / run)]
        for run in ("cut", "whole")
    )
    assert found == expected
    seconds = [line["seconds"] for line in read_history(tmp_path / "cut") if "seconds" in line]
    assert seconds == sorted(seconds)


def test_label_smoothing_is_of_training_alone(tmp_path):
    plain, smooth = (trained(tmp_path / str(each), label_smoothing=each, learning_rate=1e-9) for each in (0.0, 0.3))
    assert plain.loss == pytest.approx(smooth.loss, rel=1e-5)
    first = [read_history(tmp_path / each)[0]["loss"] for each in ("0.0", "0.3")]
    assert first[0] != pytest.approx(first[1], rel=1e-3)


WRONG = [
    ({"optimizer": "adamm"}, r"optimizer: unknown 'adamm'; did you mean 'adam'\? known: sgd, momentum, adagrad, "),
    ({"optimizer": ["sgd"]}, r"optimizer: unknown \['sgd'\]; "),
    ({"schedule": "cosin"}, r"schedule: unknown 'cosin'; did you mean 'cosine'\?"),
    ({"schedule": "steps"}, "milestones: must list the epochs"),
    ({"base_batch": 0}, "base_batch: must be a whole number from 1 on, not 0"),
    ({"checkpoint_steps": 1.5}, "checkpoint_steps: must be a whole number"),
    ({"weight_decay": -1}, "weight_decay: must be a number from 0 on, not -1"),
    ({"learning_rate": 10**400}, "learning_rate: must be a positive number, not a number of 1329 bits"),
    ({"schedule": "steps", "milestones": (30, 10)}, r"milestones: must ascend, not \(30, 10\)"),
    ({"schedule": "steps", "milestones": (float("nan"), 2)}, "milestones: must be finite numbers of epochs"),
    ({"label_smoothing": 1.5}, "label_smoothing: must be at most 1, not 1.5"),
    ({"batch_size": 0}, "batch_size: must be a whole number from 1 on, not 0"),
    ({"warmup_epochs": float("nan")}, "warmup_epochs: must be a number"),
    ({"damping": 0.1}, "damping: must go with optimizer thor, not with 'momentum', where it does nothing; "),
    ({"optimizer": "adam", "momentum": 0.5}, "momentum: must go with optimizer momentum or thor, not with 'adam'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_options_that_are_wrong_are_refused_by_name(tmp_path, options, words):
    with pytest.raises(JobError, match=f"^{words}"):
        trained(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_changed_settings_are_refused_and_those_that_change_no_weight_are_not(tmp_path):
    trained(tmp_path)
    with pytest.raises(JobError, match=r"^weight_decay: training in run .* was begun with 0\.0, not 0\.1; change it"):
        trained(tmp_path, weight_decay=0.1)
    trained(tmp_path, checkpoint_steps=3, log_every=2)


def test_a_run_remembers_the_callback_of_its_landscapes(tmp_path):
    trained(tmp_path / "run", problem="landscape.recipes.digits:problem")
    job = tmp_path / "job.yaml"
    job.write_text("run: run\n")
    assert read_job(job).problem == "landscape.recipes.digits:problem"
    job.write_text("run: run\nproblem: mine:problem\n")
    assert read_job(job).problem == "mine:problem"
    trained(tmp_path / "other")
    for run in ("other", "absent"):
        job.write_text(f"run: {run}\n")
        with pytest.raises(JobError, match="problem"):
            read_job(job)


def test_an_optimiser_leaves_no_hook_on_the_model(tmp_path):
    model = trained(tmp_path, optimizer="thor").model
    assert not any(module._forward_hooks for module in model.modules())


def test_the_seed_of_a_training_is_that_of_its_recipe(tmp_path):
    training = Training(tmp_path, seed=3)
    assert training_of(training, seed=3) is training_of(training) is training
    with pytest.raises(JobError, match="seed: must be that of the training, 3, not 4"):
        training_of(training, seed=4)
    with pytest.raises(JobError, match="seed: must be that of the training, 3, not 0"):
        fit(training, net, Arrays((INPUTS, LABELS)), Arrays((INPUTS, LABELS)), Settings(2, 8, 0.1, collect=COLLECT))


def test_snapshots_that_training_ends_before_are_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "landscape"):
        trained(tmp_path / "whole")
        assert not caplog.messages
        trained(tmp_path / "epochs", collect={"unit": "epoch", "intervals": [[0, 1, 2], [7, 8, 9]]})
        trained(tmp_path / "steps", collect={"intervals": [[0, 8, 9]]})
    assert caplog.messages == [
        "intervals: training ends at epoch 2, before epochs 7-9",
        "intervals: training ends at step 8, before steps 9",
    ]


def test_a_loss_that_is_not_finite_is_told_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "landscape"):
        trained(tmp_path, learning_rate=1e38)
    large, lost = caplog.messages
    assert large == "learning_rate: 1e+38 is above 1000, which hardly lowers a loss"
    assert re.fullmatch(r"the loss of step \d is not finite; a smaller learning_rate may help", lost)


def test_the_table_has_functions_of_a_training_with_all_options():
    for name, entry in RECIPES.items():
        parameters = inspect.signature(recipe(name)).parameters
        assert next(iter(parameters)) == "run"
        assert {*Settings(1, 1, 1.0).plain()} - {"epochs", "collect", "network"} <= {*parameters}
        assert entry.problem.endswith(":problem")
        assert entry.about
    with pytest.raises(JobError, match="recipe: unknown 'lenet'; did you mean 'lenet-"):
        recipe("lenet")
    with pytest.raises(TypeError, match="unexpected keyword argument 'optimiser'"):
        digits.train("nowhere", optimiser="sgd")


def test_a_second_order_training_takes_the_options_of_its_optimiser():
    options = {"balance": True, "average": 0.5, "first_order": 20.0, "clip": 0.1}
    options |= {"refresh": "thor", "growth": 2.0, "frequency": 3}
    made = make_optimizer(net(), Settings(2, 8, 0.05, optimizer="thor", **options), 4)
    assert (made.balance, made.average, made.first_order, made.clip) == (True, 0.5, 20, 0.1)
    assert (made.calendar.growth, made.calendar.longest, made.factors) == (2, 4, "exact")
    published = Settings(2, 8, 0.05, optimizer="thor", factors="mindspore-gpu")
    assert make_optimizer(net(), published, 4).factors == "mindspore-gpu"
    with pytest.raises(JobError, match=r"^refresh: unknown 'thorr'"):
        make_optimizer(net(), Settings(2, 8, 0.05, optimizer="thor", refresh="thorr"), 4)


def test_a_setting_that_an_older_version_did_not_know_has_its_default(tmp_path):
    settings = SettingsOf(Training(tmp_path), Settings(2, 8, 0.05, optimizer="thor"))
    begun = settings.state_dict()
    del begun["balance"]
    settings.load_state_dict(begun)
    with pytest.raises(JobError, match=r"^balance: training in run .* was begun with False, not True"):
        SettingsOf(Training(tmp_path), Settings(2, 8, 0.05, optimizer="thor", balance=True)).load_state_dict(begun)
