"""What a folder of classes holds: sorted, without other kinds of files, through links that may lead in a circle."""

import os

import pytest

from landscape.core.errors import JobError, NotFoundError
from landscape.recipes.images import list_images


def write(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def names_of(listing):
    return [os.path.relpath(listing.path(number), listing.root) for number in range(len(listing))]


def test_classes_and_images_are_sorted_by_name(tmp_path):
    write(tmp_path, "n02/b.JPEG", "n02/a.jpg", "n01/z.png", "n10/deep/er/ünï.jpeg", "n10/c.jpeg")
    listing = list_images(tmp_path)
    assert listing.classes == ("n01", "n02", "n10")
    assert names_of(listing) == ["n01/z.png", "n02/a.jpg", "n02/b.JPEG", "n10/c.jpeg", "n10/deep/er/ünï.jpeg"]
    assert listing.labels.tolist() == [0, 1, 1, 2, 2]
    assert listing.ignored == 0


def test_other_files_are_counted_and_hidden_ones_are_not_there(tmp_path):
    write(tmp_path, "cat/a.png", "cat/notes.txt", "cat/Thumbs.db", "dog/b.png", "README", ".git/c.png", "dog/._b.png")
    listing = list_images(tmp_path)
    assert (names_of(listing), listing.ignored) == (["cat/a.png", "dog/b.png"], 3)


def test_links_are_followed_once_and_one_that_leads_nowhere_is_an_image_that_cannot_be_read(tmp_path):
    write(tmp_path / "root", "cat/a.png", "dog/b.png")
    write(tmp_path / "elsewhere", "fox/c.png")
    cats = tmp_path / "root" / "cat"
    (cats / "round").symlink_to(cats)
    (cats / "up").symlink_to(tmp_path / "root")
    (cats / "itself.png").symlink_to(cats / "itself.png")
    (cats / "nowhere.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "root" / "fox").symlink_to(tmp_path / "elsewhere" / "fox")
    listing = list_images(tmp_path / "root")
    assert listing.classes == ("cat", "dog", "fox")
    cats_names = ["cat/a.png", "cat/itself.png", "cat/nowhere.png"]
    assert names_of(listing) == [*cats_names, "dog/b.png", "fox/c.png"]


def test_a_name_that_is_no_text_is_kept_as_it_is(tmp_path):
    (tmp_path / "cat").mkdir()
    path = os.fsencode(tmp_path / "cat") + b"/\xff.png"
    try:
        with open(path, "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes text only")
    assert os.fsencode(list_images(tmp_path).path(0)) == path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.png"], "must hold a folder of images for each class, and holds no folder"),
        (["cat/a.png", "dog/a.txt", "dog/b.csv"], "class 'dog' of .* must hold images, and holds 2 other files; add"),
        (["cat/a.png", "dog/.hidden"], "class 'dog' of .* holds 0 other files"),
    ],
)
def test_folders_that_are_not_laid_out_in_classes(tmp_path, files, message):
    write(tmp_path, *files)
    with pytest.raises(JobError, match=f"^data: .*{message}"):
        list_images(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(NotFoundError, match="nowhere' is no folder; name one with a folder of images for each class"):
        list_images(tmp_path / "nowhere")


def test_classes_that_differ_from_those_of_training(tmp_path):
    write(tmp_path / "val", "ant/a.png", "bee/b.png")
    assert list_images(tmp_path / "val", ("ant", "bee")).classes == ("ant", "bee")
    many = ("ant", *(f"class{number}" for number in range(8)))
    with pytest.raises(JobError, match=r"the 9 classes of training: it lacks 'class0', .* and 3 more and adds 'bee'$"):
        list_images(tmp_path / "val", many)
