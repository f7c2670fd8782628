"""Each reader against bytes built by hand, and what it says of files that are not what they should be."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from landscape.core.errors import JobError, LandscapeError, NotFoundError
from landscape.recipes import cifar10, data, digits, mnist
from landscape.recipes.data import SampleDraws

NUMBERS = np.random.default_rng(0)


def idx(array: np.ndarray, code: int = 0x08) -> bytes:
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(data.IDX_TYPES[code]).tobytes()


def write_mnist(folder, count=5, end="", dot="-"):
    images = NUMBERS.integers(0, 256, (count, 28, 28), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    for stem in ("train", "t10k"):
        for name, array in ((f"images{dot}idx3", images), (f"labels{dot}idx1", labels)):
            content = idx(array)
            path = folder / f"{stem}-{name}-ubyte{end}"
            path.write_bytes(gzip.compress(content, mtime=0) if end else content)
    return images, labels


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("dot", ["-", "."])
def test_mnist_raw_and_packed(tmp_path, end, dot):
    images, labels = write_mnist(tmp_path, end=end, dot=dot)
    for split in ("train", "test"):
        found = mnist.read_mnist(tmp_path, split)
        assert np.array_equal(found[0], images)
        assert found[1].dtype == torch.int64
        assert np.array_equal(found[1], labels)


@given(st.sampled_from(sorted(data.IDX_TYPES)), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_idx_of_every_type_and_shape(tmp_path_factory, code, shape):
    array = NUMBERS.integers(0, 100, shape)
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(idx(array, code))
    assert np.array_equal(data.read_idx(path), array)


@pytest.mark.parametrize(
    "content",
    [b"", b"no idx file", idx(np.zeros((2, 3)))[:-1], idx(np.zeros((2, 3))) + b"\0", bytes([0, 0, 8, 3, 0, 0]),
     gzip.compress(idx(np.zeros((9, 9))), mtime=0)[:-9], b"\x1f\x8b and not gzip", bytes([0, 0, 7, 1, 0, 0, 0, 0]),
     bytes([0, 0, 8, 2]) + b"\xff" * 8],
)  # fmt: skip
def test_files_that_are_no_whole_idx_files(tmp_path, content):
    (tmp_path / "array").write_bytes(content)
    with pytest.raises(JobError, match=r"data: .*array' (is no idx|must have|cannot be read)"):
        data.read_idx(tmp_path / "array")


def test_a_folder_without_mnist(tmp_path):
    with pytest.raises(NotFoundError, match="has no file train-images-idx3-ubyte"):
        mnist.read_mnist(tmp_path)
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3)))
    with pytest.raises(JobError, match="N images and N labels"):
        mnist.read_mnist(tmp_path)
    with pytest.raises(JobError, match=r"unknown 'tset'; did you mean 'test'\?"):
        mnist.read_mnist(tmp_path, "tset")


def test_both_scalings_of_mnist():
    images = torch.from_numpy(NUMBERS.integers(0, 256, (3, 28, 28), np.uint8))
    black = (0 - 0.1307) / 0.3081
    padded = mnist.scale(images, "pad")
    assert padded.shape == (3, 1, 32, 32)
    expected = np.full((3, 32, 32), black)
    expected[:, 2:30, 2:30] = (images.numpy() / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(padded[:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)

    resized = mnist.scale(images, "resize")[:, 0].numpy() * 0.3081 + 0.1307
    np.testing.assert_allclose(resized, by_hand(images.numpy() / 255), rtol=1e-4, atol=1e-5)
    with pytest.raises(JobError, match="scaling: unknown 'crop'"):
        mnist.scale(images, "crop")


# SHA-256 of what MindSpore 2.7.0's `vision.Resize((32, 32))` makes of the images below; `make test-mindspore` asks it.
RESIZED_BY_MINDSPORE = "b7e7eebb5c6f23c4ac3d758d9a5de59f82405eda742b18fe1340bce5e68b428e"


def test_pixels_resized_as_uint8_are_mindspores():
    rows, columns = np.arange(28)[:, None], np.arange(28)
    images = np.stack([rows * columns * 7 + rows * 37 + columns * factor for factor in range(11, 19)]).astype(np.uint8)
    normalised = mnist.scale(torch.from_numpy(images), "resize-uint8")[:, 0]
    pixels = ((normalised * 0.3081 + 0.1307) * 255).round().to(torch.uint8)
    assert torch.equal(normalised, (pixels / 255 - 0.1307) / 0.3081)
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest() == RESIZED_BY_MINDSPORE


def by_hand(images: np.ndarray) -> np.ndarray:
    """Bilinear 28 → 32: output pixel centre (i + 1/2)·28/32 − 1/2 in the input, edges held."""
    places = np.clip((np.arange(32) + 0.5) * 28 / 32 - 0.5, 0, 27)
    low = np.floor(places).astype(int)
    high, part = np.minimum(low + 1, 27), places - low
    rows = images[:, low] * (1 - part)[:, None] + images[:, high] * part[:, None]
    return rows[:, :, low] * (1 - part) + rows[:, :, high] * part


def write_cifar(folder, name, count=4):
    labels = np.arange(count, dtype=np.uint8)
    images = NUMBERS.integers(0, 256, (count, 3, 32, 32), np.uint8)
    records = [bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True)]
    (folder / name).write_bytes(b"".join(records))
    return images, labels


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10_binary(tmp_path, inner):
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    first, second = (write_cifar(folder, f"data_batch_{k}.bin") for k in (1, 2))
    test = write_cifar(folder, "test_batch.bin", 3)
    images, labels = cifar10.read_cifar10(tmp_path, "train")
    assert np.array_equal(images, np.concatenate([first[0], second[0]]))
    assert np.array_equal(labels, np.concatenate([first[1], second[1]]))
    assert np.array_equal(cifar10.read_cifar10(tmp_path, "test")[0], test[0])


def test_cifar10_npz(tmp_path):
    images, labels = write_cifar(tmp_path, "test_batch.bin")
    np.savez(tmp_path / "one.npz", images=images.transpose(0, 2, 3, 1), labels=labels)
    np.savez(tmp_path / "keras.npz", x_train=images, y_train=labels[:, None], x_test=images[:1], y_test=labels[:1])
    for name, split, count in (("one", "train", 4), ("one", "test", 4), ("keras", "train", 4), ("keras", "test", 1)):
        found = cifar10.read_cifar10(tmp_path / f"{name}.npz", split)
        assert np.array_equal(found[0], images[:count])
        assert np.array_equal(found[1], labels[:count])


def test_files_that_are_not_cifar10(tmp_path):
    with pytest.raises(NotFoundError, match=r"has no data_batch_\*\.bin"):
        cifar10.read_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3074)
    with pytest.raises(JobError, match="records of 3073 bytes, not 3074"):
        cifar10.read_cifar10(tmp_path, "test")
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    with pytest.raises(JobError, match="is no npz file, or is cut off"):
        cifar10.read_cifar10(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", pictures=np.zeros(3))
    with pytest.raises(JobError, match="must hold x_train and y_train or images and labels, not pictures"):
        cifar10.read_cifar10(tmp_path / "other.npz")
    np.savez(tmp_path / "small.npz", images=np.zeros((2, 28, 28), np.uint8), labels=np.zeros(2))
    with pytest.raises(JobError, match="uint8 images of 32×32×3"):
        cifar10.read_cifar10(tmp_path / "small.npz")


def test_augmentation_shifts_and_mirrors_and_nothing_else():
    images = torch.from_numpy(NUMBERS.integers(1, 256, (64, 3, 32, 32), np.uint8))
    numbers = torch.arange(64)
    found = cifar10.augment(images, SampleDraws(0, 3, numbers))
    # Each image has its own draws, whatever batch it is in; another epoch and another seed have others.
    some = numbers[10:20].flip(0)
    assert torch.equal(found[some], cifar10.augment(images[some], SampleDraws(0, 3, some)))
    for draws in (SampleDraws(0, 4, numbers), SampleDraws(1, 3, numbers)):
        assert (found != cifar10.augment(images, draws)).flatten(1).any(1).sum() > 55
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    seen = set()
    for image, original in zip(found, padded, strict=True):
        seen.add(next(
            (row, column, mirrored)
            for row in range(9) for column in range(9) for mirrored in (False, True)
            if torch.equal(image.flip(2) if mirrored else image, original[:, row : row + 32, column : column + 32])
        ))  # fmt: skip
    assert len({place[:2] for place in seen}) > 20
    assert {mirrored for *_, mirrored in seen} == {False, True}


@settings(max_examples=20)
@given(st.integers(0, 2**63), st.integers(0, 100), st.integers(1, 1000))
def test_draws_are_in_their_range_and_evenly_spread(seed, epoch, bound):
    draws = SampleDraws(seed, epoch, torch.arange(4000))
    numbers = draws.integers(0, bound)
    assert 0 <= int(numbers.min()) <= int(numbers.max()) < bound
    # Six standard deviations of the mean of as many uniform numbers.
    assert abs(float(numbers.double().mean()) - (bound - 1) / 2) <= 6 * bound / 12**0.5 / 4000**0.5
    others = draws.integers(1, 2**32)
    assert abs(float(torch.corrcoef(torch.stack([draws.integers(0, 2**32), others]).double())[0, 1])) < 0.1


def test_digits_are_normalised_and_split_for_good():
    pytest.importorskip("sklearn")
    (images, targets), (held_out, _) = digits.read_digits()
    assert (images.shape, held_out.shape) == ((1437, 1, 32, 32), (360, 1, 32, 32))
    assert (targets.dtype, images.dtype) == (torch.int64, torch.float32)
    assert abs(float(images.mean())) < 1e-3
    assert abs(float(images.std()) - 1) < 1e-3
    assert sorted(torch.unique(targets).tolist()) == list(range(10))
    assert torch.equal(digits.read_digits()[1][0], held_out)


def test_without_scikit_learn_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(LandscapeError, match=r"pip install 'loss-landscape-cluster\[recipes\]'"):
        digits.read_digits()


def with_labels(tmp_path, labels, count=2):
    np.savez(tmp_path / "data.npz", images=np.zeros((count, 32, 32, 3), np.uint8), labels=labels)
    return tmp_path / "data.npz"


@pytest.mark.parametrize(
    ("labels", "value"),
    [([3, 10], "10"), ([-1, 0], "-1"), ([0, 1.5], r"1\.5"), (["cat", "dog"], "'cat'"), ([float("nan"), 1], "nan")],
)
def test_labels_that_are_none_of_the_classes(tmp_path, labels, value):
    with pytest.raises(JobError, match=rf"must hold labels that are whole numbers from 0 to 9, not {value}; leave out"):
        cifar10.read_cifar10(with_labels(tmp_path, np.array(labels)))


def test_labels_of_mnist_that_are_none_of_its_classes(tmp_path):
    write_mnist(tmp_path)
    count = len(mnist.read_mnist(tmp_path)[1])
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.full(count, 11, np.uint8)))
    with pytest.raises(JobError, match="labels that are whole numbers from 0 to 9, not 11"):
        mnist.read_mnist(tmp_path)


@pytest.mark.parametrize("shape", [(3, 32, 32), (0, 28, 28)])
def test_images_of_another_size_than_mnists(tmp_path, shape):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros(shape, np.uint8)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(shape[0], np.uint8)))
    with pytest.raises(JobError, match="must hold uint8 images of 28×28, not uint8"):
        mnist.read_mnist(tmp_path)


def test_npz_files_that_are_damaged_or_of_one_array(tmp_path):
    whole = with_labels(tmp_path, np.arange(2)).read_bytes()
    np.savez_compressed(tmp_path / "small.npz", images=NUMBERS.bytes(9000), labels=np.arange(2))
    squeezed = (tmp_path / "small.npz").read_bytes()
    np.save(tmp_path / "array.npy", np.zeros(3))
    damaged = {
        "half": (whole[: len(whole) // 2], "is no npz file, or is cut off; "),
        "flipped": (whole[:2000] + b"x" * 100 + whole[2100:], "cannot be read: Bad CRC-32"),
        "squeezed": (squeezed[:3000] + b"x" * 100 + squeezed[3100:], "cannot be read: "),
        "empty": (b"", "is no npz file"),
        "array": ((tmp_path / "array.npy").read_bytes(), "is no npz file"),
    }
    for name, (content, reason) in damaged.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(JobError, match=rf"{name}\.npz' {reason}"):
            cifar10.read_cifar10(tmp_path / f"{name}.npz")
    with pytest.raises(JobError, match="cannot be read: Object arrays cannot be loaded"):
        cifar10.read_cifar10(with_labels(tmp_path, np.array([0, "a"], object)))


def test_cifar10_in_npz_files_of_a_folder(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        with_labels(tmp_path, np.arange(count), count).rename(tmp_path / f"cifar10-{split}-{count}.npz")
    assert len(cifar10.read_cifar10(tmp_path)[1]) == 3
    assert len(cifar10.read_cifar10(tmp_path, "test")[1]) == 2
