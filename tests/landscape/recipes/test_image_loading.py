"""Batches of images: the same pixels for any number of worker processes and ranks; what is unreadable, as asked."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from landscape.core.errors import JobError
from landscape.recipes.images import (
    EvaluatedImages,
    ImageLoader,
    UnreadableImage,
    central_crop,
    crop_draws,
    list_images,
    normalise,
    random_crop,
    read_crop,
)

SIDE = 8
DAMAGED = (3, 4, 11)


def write_images(root, count=12, damaged=()):
    numbers = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class{number // 5}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = numbers.integers(0, 256, (5, 7, 3), np.uint8)
        path = folder / f"{number:03}.png"
        Image.fromarray(pixels).resize((20 + number, 24)).save(path)
        if number in damaged:
            path.write_bytes(path.read_bytes()[:60])
    return list_images(root)


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), damaged=DAMAGED)


def expected(listing, number, *, epoch=None, drawn_for=None, seed=0):
    """One image, read by itself."""

    def choose(width, height):
        if epoch is None:
            return central_crop(width, height, SIDE)
        return random_crop(width, height, crop_draws(seed, epoch, number if drawn_for is None else drawn_for))

    return torch.from_numpy(read_crop(listing.path(number), SIDE, choose))


def test_batches_are_read_in_the_order_asked_for(listing):
    loader = ImageLoader(listing, SIDE, seed=5)
    asked = [torch.tensor([3, 11]), torch.tensor([7]), torch.tensor([0, 3, 5])]
    for epoch in (0, 1, None):
        for numbers, batch in zip(asked, loader.batches(asked, epoch), strict=True):
            assert torch.equal(batch.labels, torch.from_numpy(listing.labels)[numbers])
            images = [expected(listing, int(number), epoch=epoch, seed=5) for number in numbers]
            assert torch.equal(batch.images, torch.stack(images))
            assert batch.unreadable == ()


def test_neither_worker_processes_nor_ranks_change_a_pixel(listing):
    """Two epochs by two ranks with a worker process each, beside those of one rank that reads by itself."""
    plain = ImageLoader(listing, SIDE)
    loaders = [ImageLoader(listing, SIDE, decoders=1) for _ in range(2)]
    state = torch.get_rng_state()
    for epoch in range(2):
        order = torch.randperm(len(listing), generator=torch.Generator().manual_seed(epoch)).split(5)
        whole = list(plain.batches(order, epoch))
        parts = [
            list(loader.batches([batch.tensor_split(2)[rank] for batch in order], epoch))
            for rank, loader in enumerate(loaders)
        ]
        for batch, *of_ranks in zip(whole, *parts, strict=True):
            assert torch.equal(batch.images, torch.cat([part.images for part in of_ranks]))
            assert torch.equal(batch.labels, torch.cat([part.labels for part in of_ranks]))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_that_was_left_early_leaves_nothing_in_the_next(listing):
    loader = ImageLoader(listing, SIDE, decoders=1)
    asked = [torch.tensor([number]) for number in range(10)]
    next(iter(loader.batches(asked, 0)))
    found = [batch.images[0] for batch in loader.batches(asked[5:], 1)]
    assert torch.equal(torch.stack(found), torch.stack([expected(listing, n, epoch=1) for n in range(5, 10)]))


@pytest.mark.parametrize("decoders", [0, 1])
def test_unreadable_images_are_refused_by_path(damaged, decoders):
    loader = ImageLoader(damaged, SIDE, decoders=decoders)
    with pytest.raises(
        UnreadableImage, match=r"^image .*class0/003\.png' cannot be read: .*; mend or remove it, or .*skip$"
    ):
        list(loader.batches([torch.tensor([2, 3])], 0))


def test_a_skipped_image_has_the_next_readable_one_stand_in_for_it_in_training(damaged, caplog):
    loader = ImageLoader(damaged, SIDE, unreadable="skip")
    numbers = torch.tensor([3, 0, 11])
    with caplog.at_level(logging.WARNING, "landscape"):
        first, second = loader.batches([numbers, numbers], 2)
    standing_in = [(5, 3), (0, 0), (0, 11)]  # 4 is unreadable too, and the listing goes round
    images = [expected(damaged, number, epoch=2, drawn_for=drawn_for) for number, drawn_for in standing_in]
    assert torch.equal(first.images, torch.stack(images))
    assert torch.equal(second.images, first.images)
    assert first.labels.tolist() == [1, 0, 0]
    assert loader.skipped == set(DAMAGED)
    assert [record.getMessage().endswith(": skipped") for record in caplog.records] == [True] * 3


def test_a_skipped_image_is_left_out_of_evaluation(damaged):
    loader = ImageLoader(damaged, SIDE, unreadable="skip")
    part, none = loader.batches([torch.tensor([3, 0, 11, 6]), torch.tensor([3])])
    assert torch.equal(part.images, torch.stack([expected(damaged, 0), expected(damaged, 6)]))
    assert part.labels.tolist() == [0, 1]
    assert none.images.shape == (0, 3, SIDE, SIDE)
    assert loader.skipped == {3, 11}


def test_a_folder_of_nothing_but_unreadable_images_ends_the_search(tmp_path):
    listing = write_images(tmp_path, 6, damaged=range(6))
    with pytest.raises(UnreadableImage, match=r"cannot be read: .*; nor can the 5 before it"):
        list(ImageLoader(listing, SIDE, unreadable="skip").batches([torch.tensor([2])], 0))


def test_of_many_unreadable_images_ten_are_named(tmp_path, caplog):
    listing = write_images(tmp_path, 14, damaged=range(13))
    loader = ImageLoader(listing, SIDE, unreadable="skip")
    with caplog.at_level(logging.WARNING, "landscape"):
        list(loader.batches([torch.arange(14)]))
    assert (len(caplog.records), len(loader.skipped)) == (10, 13)
    assert caplog.records[-1].getMessage().endswith("further ones are counted only")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 0}, "side: must be a whole number from 1 on, not 0"),
        ({"decoders": -1}, "decoders: must be a whole number from 0 on, not -1"),
        ({"unreadable": "ignore"}, "unreadable: unknown 'ignore'; .*refuse"),
    ],
)
def test_arguments_that_are_not_usable(listing, options, message):
    with pytest.raises(JobError, match=message):
        ImageLoader(listing, **options)


def test_the_images_of_a_landscape_are_those_of_evaluation(listing):
    images = EvaluatedImages(listing, SIDE)
    image, label = images[7]
    assert len(images) == 12
    assert torch.equal(image, normalise(expected(listing, 7)))
    assert (label.item(), label.dtype) == (1, torch.int64)
