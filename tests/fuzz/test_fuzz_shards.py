"""Almost valid shards lead to entries and problems."""

import io
import itertools
import json
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detlite.apps.shards.entries import read_entries
from detlite.apps.shards.tar_files import BLOCK, Shard
from tests.fuzz.inputs import mutated, mutated_bytes, unexpected_values

SAMPLE = {
    "image_id": 3, "width": 40, "height": 30,
    "annotations": [{"id": 1, "category_id": 2, "bbox": [1, 2, 3, 4]}],
}  # fmt: skip
NAMES = ("a/0001.png", "a/0001.json", "long/" * 30 + "2.jpg", "long/" * 30 + "2.json", "täst/3.cls")
_numbers = itertools.count()


def tar_of(sample: object, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name in NAMES:
            data = json.dumps(sample).encode() if name.endswith(".json") else bytes(700)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


VALID = [tar_of(SAMPLE, form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
_FIELDS = [(0, 100), (124, 12), (136, 12), (156, 1), (257, 8), (345, 155), (386, 12), (483, 12)]


@st.composite
def with_changed_headers(draw: st.DrawFn) -> bytes:
    """Change fields of headers, and correct their checksums."""
    data = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        start = BLOCK * draw(st.integers(0, len(data) // BLOCK - 1))
        field, length = draw(st.sampled_from(_FIELDS))
        value = draw(
            st.binary(max_size=length)
            | st.sampled_from([b"\xff" * 12, b"\x80" + b"\xff" * 11, b"7" * 12, b"", *b"LKxgSX12"])
            .map(lambda one: one if isinstance(one, bytes) else bytes([one]))
        )[:length]  # fmt: skip
        data[start + field : start + field + len(value)] = value
        header = data[start : start + BLOCK]
        header[148:156] = b" " * 8
        data[start + 148 : start + 156] = b"%06o\0 " % (sum(header) % 8**6)
    return bytes(data)


@pytest.fixture
def check(tmp_path, bounded):
    """Return a function that reads a shard with these bytes."""

    def read(data: bytes) -> list[dict[str, object]]:
        file = tmp_path / f"{next(_numbers)}.tar"
        file.write_bytes(data)
        with bounded():
            entries = list(read_entries(Shard(file, len(data), "")))
        file.unlink()
        for entry in entries:
            if "problem" in entry:
                assert "\n" not in entry["problem"]
                assert len(entry["problem"]) < 1000
            else:
                assert 0 <= entry["offset"] <= entry["offset"] + entry["size"] <= len(data)
        json.dumps(entries)
        return entries

    return read


def test_unchanged_shards_are_valid(check):
    for data in VALID:
        assert [entry["name"] for entry in check(data)] == [NAMES[0], NAMES[2]]


@given(data=st.sampled_from(VALID).flatmap(mutated_bytes))
@example(data=b"")
@example(data=b"\0" * BLOCK)
def test_bytes(data, check):
    check(data)


@given(data=with_changed_headers())
def test_headers(data, check):
    check(data)


@given(sample=mutated(SAMPLE) | unexpected_values())
def test_samples(sample, check):
    check(tar_of(sample))
