"""The shares of the ranks make up each batch exactly, whatever the number of ranks."""

import itertools

import pytest
import torch

from landscape.core.errors import JobError
from landscape.training.distributed import epoch_order, share_of, shares, steps_in
from landscape.training.training import Training

CASES = list(itertools.product((1, 2, 3, 7, 20, 64), (1, 2, 3, 5, 8)))


@pytest.mark.parametrize(("count", "world"), CASES)
def test_weighted_means_of_shares_average_to_the_mean_of_the_batch(count, world):
    values = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    cut = [share_of(count, rank, world) for rank in range(world)]
    means = [float(values[start:stop].mean()) * weight for start, stop, weight in cut]
    assert sum(means) / world == pytest.approx(float(values.mean()), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize(("count", "world"), CASES)
def test_shares_are_contiguous_and_of_sizes_that_differ_by_one_at_most(count, world):
    cut = [share_of(count, rank, world) for rank in range(world)]
    if count < world:
        assert set(cut) == {(0, count, 1.0)}
        return
    ends = [stop for _, stop, _ in cut]
    assert [start for start, _, _ in cut] == [0, *ends[:-1]]
    assert ends[-1] == count
    sizes = {stop - start for start, stop, _ in cut}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("count", "batch_size", "world"), [(10, 4, 3), (10, 3, 2), (5, 8, 2), (9, 4, 4), (7, 1, 2)])
def test_each_epoch_shows_every_sample_once_in_the_batches_of_one_rank(count, batch_size, world):
    order = epoch_order(count, seed=3, epoch=2)
    whole = list(shares(order, batch_size, 0, 1))
    assert len(whole) == steps_in(count, batch_size)
    assert sorted(torch.cat([share.index for share in whole]).tolist()) == list(range(count))
    by_rank = [list(shares(order, batch_size, rank, world)) for rank in range(world)]
    for batch, *parts in zip(whole, *by_rank, strict=True):
        joined = torch.cat([part.index for part in parts]) if batch.samples >= world else parts[-1].index
        assert torch.equal(joined, batch.index)
        assert {(part.number, part.samples) for part in parts} == {(batch.number, len(batch.index))}


def test_an_order_follows_from_seed_and_epoch_alone(tmp_path):
    training, other = Training(tmp_path, seed=1), Training(tmp_path, seed=2)
    orders = [torch.cat([share.index for share in training.batches(50, 8, epoch)]) for epoch in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[0], torch.cat([share.index for share in other.batches(50, 8, 0)]))
    rest = list(training.batches(50, 8, 0, start=4))
    assert [share.number for share in rest] == [4, 5, 6]
    assert torch.equal(torch.cat([share.index for share in rest]), orders[0][32:])
    assert torch.cat([share.index for share in training.batches(50, 8, 0, shuffle=False)]).tolist() == list(range(50))


WRONG = [("count", 0), ("batch_size", 0), ("batch_size", 2.0), ("epoch", -1), ("start", True)]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_numbers_that_make_no_batches_are_refused(tmp_path, field, value):
    with pytest.raises(JobError, match=rf"^{field}: must be a whole number from [01] on, not"):
        Training(tmp_path).batches(**{"count": 10, "batch_size": 2, "epoch": 0, field: value})
