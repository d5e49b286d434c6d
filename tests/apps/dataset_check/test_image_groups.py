"""Tests of which images belong together."""

import numpy as np
import pytest

from detlite.apps.dataset_check.fingerprints import FINGERPRINT
from detlite.apps.dataset_check.image_groups import group_images
from detlite.files.errors import DataError


def images(names, change=1.0, seed=0):
    """Return rows of a COCO file, and fingerprints that change by a fraction from one to the next.

    A name that has another folder or text than the one before is of another scene.
    """
    rng, prints = np.random.default_rng(seed), np.zeros(len(names), FINGERPRINT)
    level = np.zeros((16, 16))
    for n, name in enumerate(names):
        same = n and name.rstrip(".0123456789png") == names[n - 1].rstrip(".0123456789png")
        new = rng.normal(0, 40, (16, 16))
        level = (1 - change) ** 0.5 * level + change**0.5 * new if same else new
        prints[n] = True, int(rng.integers(1 << 62)), (128 + level).clip(0, 255)
    return [{"file_name": name, "height": 96, "width": 96} for name in names], prints


def groups(*arguments, **settings):
    found = group_images(*arguments, **settings)
    return [np.flatnonzero(found.labels == n).tolist() for n in np.unique(found.labels)], str(found)


def test_photos_with_numbers_are_no_sequence():
    """Five pairs of duplicates among photos of a name with numbers are no frames of a video."""
    rows, prints = images([f"raccoon-{n}.png" for n in range(200)])
    prints[10:20:2] = prints[11:20:2]
    found, text = groups(rows, prints)
    assert len(found) == 195
    assert text == "10 nearly identical images stay together"


@pytest.mark.parametrize("name", ["{v}cam_{k:05}.png", "clip{v}/{k}.png", "{k}_cam{v}.png"])
def test_frames_and_slices(name):
    places = [(v, k) for v in range(6) for k in range(20)]
    rows, prints = images([f"scene{'abcdef'[v]}{k}.png" for v, k in places], change=0.4)
    for row, (v, k) in zip(rows, places, strict=True):
        row["file_name"] = name.format(v=v, k=k)
    found, text = groups(rows, prints)
    assert len(found) >= 5  # neighbors of two scenes may be alike by chance
    assert all(len(group) % 20 == 0 for group in found)
    assert "consecutive frames or slices stay together" in text


def test_a_single_stack_is_cut_into_consecutive_parts():
    rows, prints = images([f"{n}.png" for n in range(30)], change=0.3)
    rng = np.random.default_rng(1)
    order = rng.permutation(30)
    found = group_images([rows[n] for n in order], prints[order])
    parts = {tuple(sorted(order[found.labels == n].tolist())) for n in np.unique(found.labels)}
    assert found.cut
    assert parts == {tuple(range(k, k + 6)) for k in range(0, 30, 6)}
    assert "cut into 5 consecutive parts" in str(found)


@pytest.mark.parametrize("size", [2, 4, 6, 12])
def test_large_groups_are_cut(size):
    """A third of the images can be used for evaluation, but not half of them."""
    rows, prints = images([f"{'abcdefghijkl'[n]}.png" for n in range(12)])
    found = group_images(rows, prints[np.arange(12) // size])
    assert found.cut == (size > 4)
    if not found.cut:
        assert found.labels.tolist() == (np.arange(12) // size * size).tolist()


def test_augmented_copies():
    names = [f"train/{'abcdef'[n]}_1_jpg.rf.{n:030x}{k}a.jpg" for n in range(6) for k in range(3)]
    found, text = groups(*images(names))
    assert found == [[n, n + 1, n + 2] for n in range(0, 18, 3)]
    assert text == "18 augmented copies stay together"


@pytest.mark.parametrize("name", ["{v}_{x}_{y}_{r}_{b}.png", "{v}__1__{x}___{y}.png"])
def test_tiles(name):
    def names(step, size=96):
        return [
            name.format(v="abcdef"[v], x=x, y=y, r=x + size, b=y + size)
            for v in range(6) for x in (0, step) for y in (0, step)
        ]  # fmt: skip

    found, text = groups(*images(names(72)))
    assert found == [[*range(n, n + 4)] for n in range(0, 24, 4)]
    assert text == "24 tiles of larger images stay together"
    if "{r}" in name:  # numbers that are no corners of such images
        rows, prints = images(names(72))
        assert len(groups([row | {"width": 48} for row in rows], prints)[0]) == 24
    else:
        assert len(groups(*images(names(1)))[0]) == 24


def test_groups_that_a_user_names():
    rows, prints = images([f"p{n % 5}_{n}.png" for n in range(20)])
    expected = [[*range(n, 20, 5)] for n in range(5)]
    found, text = groups(rows, prints, group_by=r"p\d")
    assert (found, text) == (expected, r"20 images grouped by p\d stay together")
    for n, row in enumerate(rows):
        row["patient"] = n % 5
    assert groups(rows, prints, group_by="patient")[0] == expected


@pytest.mark.parametrize(
    ("group_by", "problem"),
    [
        ("q", "20 of 20 images have no such member .*, such as p0_0.png"),
        ("p[0-3]", "4 of 20 images"),
        ("(", "not a regular expression"),
        ("p", "all images have the value p"),
    ],
)
def test_names_of_groups_that_do_not_fit(group_by, problem):
    rows, prints = images([f"p{n % 5}_{n}.png" for n in range(20)])
    with pytest.raises(DataError, match=problem):
        group_images(rows, prints, group_by)


def test_names_without_a_meaning():
    names = ["", "/", ".", "..", "a/", "9" * 5000, ".rf.0123456789", "_1_2_3_4", "\ud800.png"] * 2
    assert len(groups(*images(names))[0]) == len(names)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_images(count):
    found = group_images(*images([f"{n}.png" for n in range(count)]))
    assert found.labels.tolist() == [*range(count)]
    assert str(found) == f"none of {count} images resembles another one"
