"""What `keep` writes is read back to the bit or not at all, and what does not fit is refused in a line."""

import logging
import random
import resource
import shutil
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from users_training import Words, digest_of_training, train

from landscape.core.errors import JobError, LandscapeError
from landscape.core.folders import open_folder
from landscape.model.history import read_history
from landscape.model.run_files import checkpoint_numbers, checkpoint_path, read_info
from landscape.model.snapshots import read_trajectory
from landscape.training.kept_files import (
    NAMES,
    checkpoint_digest,
    generator_states,
    read_last,
    seed_generators,
    set_generator_states,
    write_checkpoint,
)
from landscape.training.training import Training


class Stop(Exception):
    """The training is interrupted."""


def stop_at(last: int):
    def after(step: int) -> None:
        if step == last:
            raise Stop

    return after


def interrupted(run, at: int = 5, **options) -> None:
    with pytest.raises(Stop):
        train(Training(run), after=stop_at(at), **options)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """An undisturbed training, and the digest of its weights."""
    run = tmp_path_factory.mktemp("calm")
    return run, digest_of_training(run)


@pytest.fixture(scope="module")
def halted(tmp_path_factory):
    """A training that was interrupted after its fifth step: checkpoints of steps 3 and 4."""
    run = tmp_path_factory.mktemp("halted")
    interrupted(run)
    return run


@pytest.fixture
def halfway(halted, tmp_path):
    return shutil.copytree(halted, tmp_path / "run")


# -- values ----------------------------------------------------------------------------------------------------------


def test_values_come_back_as_they_were(tmp_path):
    shared = torch.arange(6.0)
    values = {
        "tensors": {"half": shared.bfloat16(), "none": torch.empty(0, 3), "whole": shared.int()},
        "nested": [1, -2.5, "text", None, True, (3, [float("inf")]), OrderedDict(b=1, a=2)],
        "view": shared[2:4], "number": np.float32(0.25),
    }  # fmt: skip
    Training(tmp_path).keep(**values)
    done = Training(tmp_path).resume()
    assert list(done) == list(values)
    assert done["nested"] == [1, -2.5, "text", None, True, (3, [float("inf")]), {"b": 1, "a": 2}]
    assert done["number"] == 0.25
    assert done["view"].tolist() == [2.0, 3.0]
    for name, tensor in values["tensors"].items():
        assert torch.equal(done["tensors"][name], tensor)
        assert done["tensors"][name].dtype == tensor.dtype


@pytest.mark.parametrize(
    ("value", "words"),
    [(object(), r"what must be of tensors, .* not object"), ([{1}], r"what\[0\] must be of tensors, .* not set"),
     ({"a": np.zeros(2)}, r"what\['a'\] must be .* not ndarray"), ({(1, 2): 3}, "keys that are text or numbers"),
     (torch.eye(2).to_sparse(), "dense tensor")],
)  # fmt: skip
def test_values_that_cannot_be_read_back_are_refused_before_anything_is_written(tmp_path, value, words):
    with pytest.raises(JobError, match=f"^keep: .*{words}"):
        Training(tmp_path).keep(good=1, what=value)
    assert not list(tmp_path.iterdir())


def test_the_generators_go_on_where_they_were():
    seed_generators(1)
    random.gauss(0, 1), np.random.standard_normal()  # noqa: NPY002  # each keeps a second number for the next call
    states = generator_states(torch.device("cpu"))

    def drawn():
        return torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1)  # noqa: NPY002

    expected = drawn()
    seed_generators(1, rank=1)
    assert drawn() != expected
    set_generator_states(states, torch.device("cpu"))
    assert drawn() == expected


# -- going on --------------------------------------------------------------------------------------------------------


def test_a_training_goes_on_to_the_same_bits_without_gaps_and_doubles(calm, halfway):
    assert digest_of_training(halfway) == calm[1]
    assert read_history(halfway) == read_history(calm[0])
    assert [line["step"] for line in read_history(halfway)] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert read_trajectory(halfway).numbers == (0, 2, 3, 4, 5, 6)
    made = [{k: v for k, v in read_info(run).items() if k != "created"} for run in (halfway, calm[0])]
    assert made[0] == made[1]


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_wherever_it_was_interrupted_it_ends_alike(calm, tmp_path, at):
    interrupted(tmp_path, at)
    assert digest_of_training(tmp_path) == calm[1]
    assert read_history(tmp_path) == read_history(calm[0])


def test_the_last_two_are_kept_and_nothing_of_dead_writers(halfway):
    folder = open_folder(halfway)
    assert checkpoint_numbers(folder) == [3, 4]
    left = halfway / "checkpoints" / ".step-00000005-4194303-0123abcd.partial.pt"
    left.write_bytes(b"torn")
    (halfway / "checkpoints" / "notes.txt").write_text("a user's own")
    digest_of_training(halfway)
    assert sorted(path.name for path in (halfway / "checkpoints").iterdir()) == [
        "notes.txt", "step-00000004.pt", "step-00000006.pt",
    ]  # fmt: skip


def test_without_a_collector_checkpoints_are_numbered_by_batches_or_one_by_one(tmp_path):
    for run, numbers in (("batches", [10, 15]), ("none", [2, 3])):
        training = Training(tmp_path / run)
        for epoch in range(3):
            if run == "batches":
                assert len(list(training.batches(10, 2, epoch))) == 5
            training.keep(epoch=epoch)
        assert checkpoint_numbers(open_folder(tmp_path / run)) == numbers
        again = Training(tmp_path / run)
        assert again.resume() == {"epoch": 2}
        assert again.steps_done == (15 if run == "batches" else 0)


def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path):
    training = Training(tmp_path)
    training.resume()
    training.keep(number=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as a full disk, a write fails in the middle
        with pytest.raises(LandscapeError, match=r"step-00000002\.pt' cannot be written: File too large; .*make room"):
            training.keep(number=torch.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001.pt"]
    assert Training(tmp_path).resume() == {"number": 1}


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_wherever_a_byte_is_flipped_the_values_are_right_or_those_of_before(halfway, caplog):
    path = halfway / checkpoint_path(4)
    whole = path.read_bytes()
    right = {name: read_last(open_folder(halfway)).values[name]["embed.weight"].tolist() for name in ("model",)}
    passed_over = 0
    for place in range(0, len(whole), 397):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        last = read_last(open_folder(halfway))
        passed_over += last.step == 3
        assert last.step == 3 or last.values["model"]["embed.weight"].tolist() == right["model"]
    assert passed_over > 10


@pytest.mark.parametrize("length", [0, 1, 500, -1])
def test_a_torn_last_checkpoint_is_passed_over_with_a_line(calm, halfway, caplog, length):
    path = halfway / checkpoint_path(4)
    path.write_bytes(path.read_bytes()[:length])
    with caplog.at_level(logging.WARNING, "landscape"):
        assert digest_of_training(halfway) == calm[1]
    assert [record.getMessage().partition(" is damaged")[0] for record in caplog.records] == [f"checkpoint '{path}'"]
    assert caplog.messages[0].endswith("the training goes on from step 3")
    assert read_history(halfway) == read_history(calm[0])


@pytest.mark.parametrize(("name", "value"), [("generators", []), ("values", None), ("step", "4"), ("world", -1)])
def test_a_last_checkpoint_without_what_a_training_needs_is_passed_over(halfway, name, value):
    path = halfway / checkpoint_path(4)
    saved = torch.load(path, weights_only=True) | {name: value}
    torch.save(saved | {"digest": checkpoint_digest({each: saved[each] for each in NAMES})}, path)
    assert read_last(open_folder(halfway)).step == 3


def test_a_later_checkpoint_that_was_passed_over_goes_with_the_next_one(halfway):
    shutil.copy(halfway / checkpoint_path(3), halfway / checkpoint_path(9))
    (halfway / checkpoint_path(9)).write_bytes(b"torn")
    digest_of_training(halfway)
    assert checkpoint_numbers(open_folder(halfway)) == [4, 6]


def test_a_last_checkpoint_that_is_a_link_to_nothing_is_passed_over(calm, halfway, caplog):
    path = halfway / checkpoint_path(4)
    path.unlink()
    path.symlink_to(halfway / "gone")
    assert digest_of_training(halfway) == calm[1]
    assert f"checkpoint '{path}' is damaged (it is a link that leads nowhere)" in caplog.text


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_in_place_of_a_checkpoint_is_named(halfway, overwrite):
    path = halfway / checkpoint_path(4)
    path.unlink()
    path.mkdir()
    with pytest.raises(JobError, match=f"^checkpoint '{path}' must be a file, not a folder; move it away, then start"):
        Training(halfway, overwrite=overwrite).resume()


def test_a_history_that_is_gone_is_told(halfway, caplog):
    (halfway / "history.jsonl").unlink()
    with caplog.at_level(logging.WARNING, "landscape"):
        digest_of_training(halfway)
    assert caplog.messages == [
        f"history '{halfway / 'history.jsonl'}' is gone, with the steps up to 4; it begins anew there"
    ]
    assert [line["step"] for line in read_history(halfway)] == [5, 6, 6]


def test_where_all_are_damaged_it_says_so(halfway):
    for number in (3, 4):
        (halfway / checkpoint_path(number)).write_bytes(b"no checkpoint")
    with pytest.raises(JobError, match=r"step-00000004\.pt' is damaged .*one before it is too; restore one, or begin"):
        train(Training(halfway))


def test_a_checkpoint_of_a_newer_version_or_of_another_program_is_told(halfway, tmp_path):
    saved = torch.load(halfway / checkpoint_path(4), weights_only=True)
    torch.save({**saved, "format": "landscape-checkpoint-2"}, halfway / checkpoint_path(4))
    with pytest.raises(JobError, match=r"is of format 'landscape-checkpoint-2', which this version does not read"):
        train(Training(halfway))
    torch.save({"state_dict": {}}, halfway / checkpoint_path(4))
    assert Training(halfway).resume()["epoch"] == 1  # that of step 3


# -- what does not fit -----------------------------------------------------------------------------------------------


def wider() -> nn.Module:
    model = Words()
    model.norm = nn.BatchNorm1d(4)
    return model


FOREIGN = "does not fit what was trained: "
MISFITS = [
    (lambda: {"model": wider()}, rf"^model: {FOREIGN}.* norm\.weight \(3,\) where the model has \(4,\)"),
    (lambda: {"model": nn.Linear(2, 2)}, rf"^model: {FOREIGN}.* missing weight, bias"),
    (lambda: {"optimizer": torch.optim.SGD(Words().parameters(), 0.1)}, "^optimizer: .* with AdamW, not SGD; change"),
    (lambda: {"optimizer": torch.optim.AdamW(nn.Linear(1, 1).parameters())}, f"^optimizer: {FOREIGN}"),
    (lambda: {"scaler": torch.amp.GradScaler("cpu")}, "^scaler: must be in the checkpoint .* holds model, optimizer, "),
    (lambda: {"noise": Words()}, "^noise: .* begun with a value of type float, not Words"),
]


@pytest.mark.parametrize(("objects", "words"), MISFITS)
def test_what_does_not_fit_is_refused_in_a_line(halted, objects, words):
    with pytest.raises(JobError, match=words) as refused:
        Training(halted).resume(**objects())
    assert "\n" not in str(refused.value)


def test_another_number_of_ranks_is_told_and_generators_begin_anew(halfway, caplog):
    folder = open_folder(halfway)
    last = read_last(folder)
    write_checkpoint(folder, 4, replace(last, world=3, generators=last.generators * 3))
    with caplog.at_level(logging.WARNING, "landscape"):
        assert Training(halfway).resume()["epoch"] == 1
    drawn = torch.rand(())
    assert "was trained with 3 ranks and goes on with 1" in caplog.text
    seed_generators(0)
    assert torch.rand(()) == drawn


def test_calls_in_another_order_are_refused(halfway):
    model = Words()
    shutil.rmtree(halfway / "trajectory")
    with pytest.raises(JobError, match="holds checkpoints; call resume before collector"):
        Training(halfway).collector(model, intervals=[[1, 2, 3]])
    training = Training(halfway)
    training.resume()
    training.collector(model, intervals=[[0, 2, 3]])
    with pytest.raises(JobError, match="resume: must be called before the collector is made"):
        training.resume()


def test_a_run_of_another_training_is_refused_and_overwritten_when_asked(calm, halfway):
    shutil.rmtree(halfway / "checkpoints")
    with pytest.raises(JobError, match="holds a trajectory that this training did not make"):
        train(Training(halfway))
    train(Training(halfway, overwrite=True))
    assert read_history(halfway) == read_history(calm[0])
    # Stopped right away, it goes on as one that has overwritten.
    with pytest.raises(Stop):
        train(Training(halfway, overwrite=True), after=stop_at(1))
    assert digest_of_training(halfway) == calm[1]


@pytest.mark.parametrize("resumes", [True, False])
def test_checkpoints_that_were_to_go_are_gone_before_the_first_of_a_new_training(halfway, resumes):
    """As `overwrite` leaves them when it is killed between its mark and the deletions: the last one is of step 4."""
    (halfway / "checkpoints" / "begun").touch()
    training, model = Training(halfway), Words()
    if resumes:
        assert training.resume(model=model) == {}
    else:
        training.collector(model, intervals=[[0, 2, 3]])
    assert [path.name for path in (halfway / "checkpoints").iterdir()] == ["begun"]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", True])
def test_seeds_that_not_every_generator_takes_are_refused(tmp_path, seed):
    with pytest.raises(JobError, match=r"^seed: must be"):
        Training(tmp_path, seed=seed)
    assert len(list(Training(tmp_path, seed=2**64 - 1).batches(4, 2, 7))) == 2


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(LandscapeError, match="cannot be written"):
        Training(tmp_path / "run").keep(epoch=1)


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(JobError, match="device: cuda is asked for"):
        Training(tmp_path, device="cuda")
