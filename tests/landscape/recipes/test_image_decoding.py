"""Crops of made images against closed forms and Pillow alone: every kind of pixels, upright, at every size of JPEG."""

import sys

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from landscape.core.errors import LandscapeError
from landscape.recipes.images import Crop, UnreadableImage, central_crop, read_crop

ORIENTATION = 0x0112


def whole(width, height):
    return Crop(0, 0, width, height)


def middle(side):
    return lambda width, height: central_crop(width, height, side)


def ramp(width, height):
    """Red rises from left to right, green from top to bottom, blue is 77: float64 [height, width, 3]."""
    red = np.broadcast_to(250 * np.arange(width) / (width - 1), (height, width))
    green = np.broadcast_to(250 * np.arange(height)[:, None] / (height - 1), (height, width))
    return np.stack([red, green, np.full((height, width), 77.0)], -1)


def picture(width, height):
    return Image.fromarray(ramp(width, height).round().astype(np.uint8))


def saved(folder, image, name="image.png", **options):
    image.save(folder / name, **options)
    return folder / name


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_crop_of_a_linear_ramp_is_a_linear_ramp(tmp_path, mirrored):
    """The mean of a linear function over a symmetric kernel is its value in the middle: known for each pixel."""
    path = saved(tmp_path, picture(251, 126))
    crop = Crop(40.5, 20.25, 120, 60, mirrored)
    image = read_crop(path, 20, lambda width, height: crop)
    centres = (np.arange(20) + 0.5) / 20
    red, green = crop.left + 120 * centres - 0.5, (crop.top + 60 * centres - 0.5) * 2
    assert (image.dtype, image.shape) == (np.uint8, (3, 20, 20))
    assert np.abs(image[0] - (red[::-1] if mirrored else red)).max() <= 1
    assert np.abs(image[1] - green[:, None]).max() <= 1
    assert (image[2] == 77).all()


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (257, 256), (97, 640), (32, 32)])
@pytest.mark.parametrize("side", [224, 64])
def test_evaluation_is_resizing_and_cutting_by_pillow(tmp_path, size, side):
    """As it is written down: the shorter side resized to 256/224 of `side`, then the middle cut out of the result."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    path = saved(tmp_path, Image.fromarray(noise))
    shorter = round(side * 256 / 224)
    width, height = (shorter if edge == min(size) else int(shorter * edge / min(size)) for edge in size)
    resized = Image.open(path).resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    expected = np.asarray(resized.crop((left, top, left + side, top + side))).transpose(2, 0, 1)
    # Pillow rounds between the two axes, and which of them it resizes first depends on the size: a grey level.
    assert np.abs(read_crop(path, side, middle(side)).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["image.jpeg", "image.png", "image.tif"])
def test_images_are_turned_upright(tmp_path, orientation, name):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = saved(tmp_path, picture(60, 40), name, exif=exif)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    sizes = []

    def everything(width, height):
        sizes.append((width, height))
        return whole(width, height)

    image = read_crop(path, 16, everything)
    assert sizes == [upright.size]
    expected = np.asarray(upright.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(image, expected)


@pytest.mark.parametrize("orientation", [pytest.param(1, marks=pytest.mark.faults), 6])
@pytest.mark.parametrize("size", [(1024, 768), (515, 1031), (131, 130)])
def test_a_large_jpeg_decoded_at_a_part_of_its_size_is_the_same_picture(tmp_path, size, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = saved(tmp_path, picture(*size), "image.jpeg", quality=95, exif=exif)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
    box = (upright.width // 8, upright.height // 8, upright.width // 8 * 7, upright.height // 8 * 7)
    expected = np.asarray(upright.resize((16, 16), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)
    image = read_crop(path, 16, lambda *_: Crop(box[0], box[1], box[2] - box[0], box[3] - box[1]))
    assert np.abs(image.astype(int) - expected).max() <= 2


def grey(value, bits=8):
    return np.full((8, 8), value, {8: np.uint8, 16: np.uint16, 32: np.int32}[bits])


def palette(colour, **info):
    image = Image.new("P", (8, 8), 3)
    image.putpalette([0, 0, 0] * 3 + list(colour) + [0, 0, 0] * 252)
    image.info.update(info)
    return image


@pytest.mark.parametrize(
    ("image", "name", "colour"),
    [
        (Image.fromarray(grey(90)), "grey.jpeg", (90, 90, 90)),
        (Image.new("1", (8, 8), 1), "bits.png", (255, 255, 255)),
        (Image.fromarray(grey(0x5A00 + 17, 16)), "deep.png", (0x5A, 0x5A, 0x5A)),
        (Image.fromarray(grey(0xFFFF, 16)), "deep.tif", (255, 255, 255)),
        (Image.fromarray(grey(0x1234, 32)), "wide.tif", (0x12, 0x12, 0x12)),
        (Image.new("LA", (8, 8), (50, 7)), "veil.png", (50, 50, 50)),
        (Image.new("RGBA", (8, 8), (10, 20, 30, 0)), "clear.png", (10, 20, 30)),
        (palette((200, 100, 50)), "palette.png", (200, 100, 50)),
        (palette((200, 100, 50)), "palette.gif", (200, 100, 50)),
        (palette((200, 100, 50), transparency=b"\xff\xff\xff\x01"), "clear-palette.png", (200, 100, 50)),
        (Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "print.jpeg", (0, 255, 255)),
        (Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "black.tif", (0, 0, 0)),
        (Image.new("YCbCr", (8, 8), (120, 128, 128)), "video.jpeg", (120, 120, 120)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_pixels_becomes_red_green_and_blue(tmp_path, image, name, colour):
    found = read_crop(saved(tmp_path, image, name), 4, whole)
    assert np.abs(found.astype(int) - np.reshape(colour, (3, 1, 1))).max() <= 2


def test_the_colours_of_a_jpeg_for_print_are_those_of_pillow(tmp_path):
    numbers = np.random.default_rng(1).integers(0, 256, (2, 2, 4), np.uint8)
    path = saved(tmp_path, Image.fromarray(numbers, "CMYK").resize((64, 64)), "image.jpeg")
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
    assert np.array_equal(read_crop(path, 32, whole), expected.transpose(2, 0, 1))


def truncated(folder):
    content = saved(folder, picture(64, 64), "whole.jpeg").read_bytes()
    (folder / "image.jpeg").write_bytes(content[: len(content) // 2])


def broken_chunk(folder):
    content = bytearray(saved(folder, picture(64, 64), "whole.png").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (folder / "image.jpeg").write_bytes(bytes(content))


def bomb(folder):
    """A PNG that says it is 50,000 pixels wide and high, in a hundred bytes."""
    header = bytes.fromhex("0000c3500000c3500802000000")
    with open(folder / "image.jpeg", "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        PngImagePlugin.putchunk(file, b"IHDR", header)
        PngImagePlugin.putchunk(file, b"IDAT", b"")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: None, "No such file or directory"),
        (lambda folder: (folder / "image.jpeg").mkdir(), "Is a directory"),
        (lambda folder: (folder / "image.jpeg").write_bytes(b""), "it is empty"),
        (lambda folder: (folder / "image.jpeg").write_text("<html>not found</html>"), "it is of no known format"),
        (lambda folder: saved(folder, Image.fromarray(np.ones((4, 4), np.float32)), "image.jpeg", format="TIFF"),
         "grey values are floating-point numbers"),
        (lambda folder: saved(folder, Image.fromarray(grey(-5, 32)), "image.jpeg", format="TIFF"), "more than 16 bits"),
        (truncated, "[Tt]runcated"),
        (broken_chunk, "broken|checksum|decompress|unrecognized"),
        (bomb, r"2500000000 pixels\) exceeds limit of 178956970 pixels"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_read_is_named(tmp_path, make, reason):
    make(tmp_path)
    with pytest.raises(UnreadableImage, match=reason) as raised:
        read_crop(tmp_path / "image.jpeg", 4, whole)
    assert str(raised.value).startswith(f"image '{tmp_path / 'image.jpeg'}' cannot be read: ")
    assert "\n" not in str(raised.value)


def test_a_large_image_of_which_pillow_only_warns_is_read_without_a_word(tmp_path, monkeypatch):
    path = saved(tmp_path, picture(40, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert read_crop(path, 4, whole).shape == (3, 4, 4)


def test_damaged_metadata_are_no_reason_to_leave_a_picture_out(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "a description"
    path = saved(tmp_path, picture(32, 32), "image.jpeg", exif=exif)
    content = path.read_bytes()
    start = content.index(b"Exif\0\0") + 6
    path.write_bytes(content[: start + 10] + b"\xff\xff" + content[start + 12 :])
    assert read_crop(path, 4, whole).shape == (3, 4, 4)


def test_without_pillow_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(LandscapeError, match=r"Pillow, which is not installed: pip install .*\[images\]"):
        read_crop("a.png", 4, whole)
