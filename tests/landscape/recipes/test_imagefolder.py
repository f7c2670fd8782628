"""ResNet-50 on a few made photographs, from the folder to a landscape of its run; and the rates that were published."""

import logging
import multiprocessing

import numpy as np
import pytest
import torch
from PIL import Image

from landscape import Job, JobError, LandscapeError, NotFoundError, open_run, run
from landscape.model.history import read_history
from landscape.model.parameters import state_digest
from landscape.model.run_files import read_info, read_problem
from landscape.model.snapshots import read_trajectory
from landscape.recipes import imagefolder
from landscape.recipes.images import EVALUATED, Photographs, UnreadableImage
from landscape.recipes.settings import schedule_of
from landscape.training.thor.optimizer import SCHEDULES
from landscape.training.training import Training

COLOURS = {"blue": (40, 60, 200), "green": (50, 190, 60), "red": (210, 50, 40)}
SMALL = {
    "side": 32, "channels": 4, "zero_gamma": True, "decoders": 0, "batch_size": 6, "device": "cpu",
    "intervals": [[1, 2, 3]],
}  # fmt: skip
FIRST_ORDER = SMALL | {"channels": 1, "optimizer": "momentum"}


def write_photographs(root, train=6, val=2, size=(48, 40)):
    """Photographs of which the class is plain to see: its colour, with noise."""
    numbers = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for name, colour in COLOURS.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noise = numbers.normal(0, 25, (size[1], size[0], 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpeg")
    return root


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp("photographs"))


@pytest.fixture(scope="module")
def trained(photographs, tmp_path_factory):
    """Three epochs with THOR, at a reduced size."""
    place = tmp_path_factory.mktemp("run")
    return place, imagefolder.train(place, photographs, 3, **SMALL, frequency=4)


def digests(place):
    return {each.number: state_digest(each.load()) for each in read_trajectory(place).snapshots}


def test_a_training_records_its_network_and_data_and_its_run_has_a_landscape(photographs, trained, monkeypatch):
    place, result = trained
    info = read_info(place)
    assert (info["model"], info["optimiser"], info["steps_per_epoch"]) == ("ResNet50", "THOR", 3)
    network = {"side": 32, "channels": 4, "zero_gamma": True, "classes": 3, "images": 18}
    assert info["network"] == network | {"data": str(photographs)}
    losses = [line["loss"] for line in read_history(place) if not line.get("epoch_end")]
    assert sum(losses[6:]) < 0.9 * sum(losses[:3])
    assert 0 <= result.accuracy <= 1
    monkeypatch.delenv("LANDSCAPE_IMAGES", raising=False)
    landscape = {"name": "plane", "size": 3, "range": [-0.1, 0.1], "origin": "last"}
    run(Job(run=str(place), num_samples=6, landscapes=[landscape], problem=read_problem(place)))
    surface = open_run(place)["plane"]
    assert np.isfinite(surface.loss).all()
    assert {"loss", "accuracy", "top5"} <= set(surface.observables)
    assert surface.attributes["origin_loss"] < np.log(3)


def test_an_interrupted_training_ends_like_one_that_was_not_whoever_decodes(photographs, trained, tmp_path):
    class Stop(Exception):
        pass

    def stop(epoch, metrics):
        raise Stop

    with pytest.raises(Stop):
        imagefolder.train(tmp_path, photographs, 3, **SMALL | {"decoders": 1}, frequency=4, report=stop)
    imagefolder.train(tmp_path, photographs, 3, **SMALL, frequency=4)
    assert digests(tmp_path) == digests(trained[0])
    with pytest.raises(JobError, match="network: training in run"):
        imagefolder.train(tmp_path, photographs, 3, **SMALL | {"side": 48}, frequency=4)


@pytest.mark.faults
def test_a_decoder_that_is_killed_ends_the_training_in_words(photographs, tmp_path):
    before = multiprocessing.active_children()

    def kill(epoch, metrics):
        for process in set(multiprocessing.active_children()) - set(before):
            process.kill()
            process.join()

    options = FIRST_ORDER | {"decoders": 1}
    with pytest.raises(LandscapeError, match=r"^decoders: a process that decodes images was killed, .* fewer decoders"):
        imagefolder.train(tmp_path, photographs, 3, **options, report=kill)


def test_unreadable_images_are_refused_or_skipped(tmp_path, caplog):
    data = write_photographs(tmp_path / "data")
    for broken in ("train/red/3.jpeg", "val/blue/0.jpeg"):
        (data / broken).write_bytes(b"no image")
    options = FIRST_ORDER | {"intervals": [[0, 1, 2]]}
    with pytest.raises(UnreadableImage, match=r"red/3\.jpeg' cannot be read: .*; mend or remove it, or .*=skip$"):
        imagefolder.train(tmp_path / "run", data, 2, **options)
    with caplog.at_level(logging.WARNING, "landscape"):
        result = imagefolder.train(tmp_path / "run", data, 2, **options, unreadable="skip")
    assert result.accuracy * 5 == pytest.approx(round(result.accuracy * 5))  # of five images that are left
    assert "rank 0 skipped 1 unreadable images of training and 1 of evaluation" in caplog.text
    for path in (data / "val").rglob("*.jpeg"):
        path.write_bytes(b"")
    with pytest.raises(LandscapeError, match=r"^data: none of the held-out images can be read;"):
        imagefolder.train(tmp_path / "blind", data, 2, **options, unreadable="skip")
    with pytest.raises(UnreadableImage, match=r"val/blue/0\.jpeg' cannot be read"):
        imagefolder.make_problem(data, split="val", side=32, channels=1).data[0]


def test_folders_that_training_cannot_use(photographs, tmp_path, caplog):
    with pytest.raises(NotFoundError, match="train' is no folder"):
        imagefolder.read_folders(tmp_path)
    data = write_photographs(tmp_path / "data", 1, 1)
    (data / "val" / "red").rename(data / "val" / "yellow")
    with pytest.raises(JobError, match="the 3 classes of training: it lacks 'red' and adds 'yellow'"):
        imagefolder.read_folders(data)
    (data / "val" / "yellow").rename(data / "val" / "red")
    (data / "train" / "red" / "notes.txt").write_text("")
    with caplog.at_level(logging.WARNING, "landscape"):
        imagefolder.read_folders(data)
    assert "1 files in " in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 31}, "side: must be a whole number from 32 on, not 31"),
        ({"published": "tpu"}, "published: unknown 'tpu'; .*gpu-8"),
        ({"channels": 0}, "channels: must be a whole number from 1 on"),
        ({"optimizer": "lamb"}, "optimizer: unknown 'lamb'"),
        ({"batch_size": 0}, "batch_size: must be a whole number from 1 on, not 0"),
        ({"batch_size": 17}, "batch_size: must leave no rank one image alone at side 32, not 17 of 18 images on 1 "),
        ({"decoders": -1}, "decoders: must be a whole number from 0 on"),
        ({"momentums": 1}, "momentums"),
        ({"published": "ascend-8", "optimizer": "sgd"}, "published: must go with optimizer thor, not with 'sgd'"),
        ({"final": 0.1}, "final: must go with schedule cosine or polynomial, not with the published one"),
    ],
)
def test_options_that_are_not_usable(photographs, tmp_path, options, message):
    with pytest.raises((JobError, TypeError), match=message):
        imagefolder.train(tmp_path / "run", photographs, 2, **SMALL | options)
    assert not (tmp_path / "run" / "trajectory").exists()


def settings_with(tmp_path, epochs, steps=5004, published="gpu-8", **given):
    options = imagefolder.train.options.completed(given)
    epochs, options = imagefolder.with_published(epochs, options, published, steps)
    return imagefolder.make_settings(Training(tmp_path), epochs, options, imagefolder.INTERVALS)


@pytest.mark.parametrize(
    ("published", "epochs", "rates", "dampings"),
    [
        ("gpu-8", 40, {0: 0.05672, 20: 0.05672 * 0.6**4.9687, 39: 0.05672 * 0.22**4.9687 / 2},
         {0: 0.02345, 10: 0.02345 * 0.5467}),
        ("ascend-8", 45, {0: 0.05803, 40: 0.05803 * (13 / 53) ** 4.0839 / 4}, {10: 0.03 * 0.50036}),
    ],
)  # fmt: skip
def test_thor_is_trained_by_what_was_published(tmp_path, published, epochs, rates, dampings):
    settings = settings_with(tmp_path, None, published=published)
    rate = schedule_of(settings)
    assert (settings.epochs, settings.frequency, settings.weight_decay) == (epochs, 834, 5e-4)
    assert {epoch: rate(epoch) for epoch in rates} == pytest.approx(rates)
    assert {epoch: settings.damping(epoch) for epoch in dampings} == pytest.approx(dampings)
    assert settings.factors == SCHEDULES[published].factors


@pytest.mark.parametrize(
    ("given", "ranks", "words"),
    [
        ({}, 8, None),
        ({}, 1, "published: 'gpu-8' has rates for 32 images on each rank, on which its factors depend, not for 256"),
        ({"batch_size": 32}, 1, None),
        ({"factors": "exact"}, 8, "published: 'gpu-8' has rates for factors 'mindspore-gpu', not for 'exact'"),
        ({"factors": "exact", "learning_rate": 0.01}, 8,
         "published: 'gpu-8' has rates for factors 'mindspore-gpu', not for 'exact'"),
        ({"factors": "exact", "learning_rate": 0.01, "damping": 0.1}, 8, None),
        ({"optimizer": "momentum"}, 1, None),
    ],
)  # fmt: skip
def test_rates_are_bound_to_the_factors_that_they_were_tuned_for(caplog, given, ranks, words):
    options = imagefolder.train.options.completed(given)
    _, chosen = imagefolder.with_published(2, options, "gpu-8", 100)
    imagefolder.tell_untuned(options, chosen, "gpu-8", ranks)
    assert [record.getMessage() for record in caplog.records] == ([] if words is None else [words])


def test_other_numbers_of_epochs_stretch_what_was_published_and_options_replace_it(tmp_path):
    short = settings_with(tmp_path, 4, steps=3)
    assert short.frequency == 1
    assert schedule_of(short)(2) == pytest.approx(SCHEDULES["gpu-8"].learning_rate(20))
    assert short.damping(3) == pytest.approx(SCHEDULES["gpu-8"].damping(30))
    given = settings_with(tmp_path, 4, learning_rate=0.5, damping=0.1, frequency=7, weight_decay=0.0)
    assert schedule_of(given)(0) == 0.5
    assert (given.damping, given.frequency, given.weight_decay) == (0.1, 7, 0.0)


def test_sgd_is_trained_by_the_rates_of_goyal_et_al(tmp_path):
    settings = settings_with(tmp_path, None, optimizer="momentum", batch_size=8192)
    rate = schedule_of(settings)
    assert settings.epochs == 90
    expected = {0: 0.1, 2.5: (0.1 + 3.2) / 2, 5: 3.2, 29: 3.2, 31: 0.32, 61: 0.032, 81: 0.0032}
    assert {epoch: rate(epoch) for epoch in expected} == pytest.approx(expected)
    half = schedule_of(settings_with(tmp_path, 45, optimizer="momentum", batch_size=8192))
    assert half(15.5) == pytest.approx(0.32)


def test_an_evaluation_takes_few_images_at_a_time(photographs):
    listing, _ = imagefolder.read_folders(photographs)
    numbers = torch.arange(EVALUATED + 5) % 18
    sizes = [len(labels) for _, labels in Photographs(listing, 4).batches([numbers], None)]
    assert sizes == [EVALUATED, 5]
    assert len(Photographs(listing, 4)) == 18
