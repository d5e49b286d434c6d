"""Test reading tar files of every variant, and tar files that state impossible sizes."""

import io
import json
import re
import tarfile
import time

import pytest

from detlite.apps.shards.entries import read_entries
from detlite.apps.shards.tar_files import BLOCK, Shard
from detlite.files.errors import RemoteError

SAMPLE = json.dumps({"width": 4, "height": 3, "annotations": []}).encode()
LONG = "folder/" * 20 + "0001"


def read(file, data):
    file.write_bytes(data)
    return list(read_entries(Shard(file, len(data), "")))


def tar_of(files, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("key", ["a/0001", LONG, "täst/" + LONG, 110 * "x"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_all_forms(form, key, tmp_path):
    if form == tarfile.USTAR_FORMAT and key == 110 * "x":
        pytest.skip("cannot be written")
    files = [("readme.txt", b"x"), (f"{key}.png", b"pixels"), (f"{key}.json", SAMPLE)]
    data = tar_of(files, format=form)
    [entry] = read(tmp_path / "a.tar", data)
    assert entry["name"] == f"{key}.png"
    assert data[entry["offset"] : entry["offset"] + entry["size"]] == b"pixels"
    assert entry["json"] == json.loads(SAMPLE)


def test_folders_links_and_large_files_are_skipped(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind in (("a", tarfile.DIRTYPE), ("b.png", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, 1000  # which no data follow
            tar.addfile(member)
        for name, data in (("a/1.bin", bytes(200_000)), ("a/2.jpg", b"j"), ("a/2.json", SAMPLE)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert [entry["name"] for entry in read(tmp_path / "a.tar", buffer.getvalue())] == ["a/2.jpg"]


def changed(data, field, value, position=0):
    """Change bytes of the header at `position`, and correct its checksum."""
    header = bytearray(data[position : position + BLOCK])
    header[field : field + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:position] + bytes(header) + data[position + BLOCK :]


SIZE, TYPE = 124, 156  # positions in a header
FILES = [("1.png", b"pixels"), ("1.json", SAMPLE)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\xff" * 11 + b"\x00", "has -256 bytes"),
        (b"\xff" * 12, "has -1 bytes"),
        (b"\x80" + b"\xff" * 11, "has 309485009821345068724781055 bytes"),
        (b"777777777777", "has 68719476735 bytes"),
        (b"00000009999 ", "invalid header"),
    ],
)
@pytest.mark.parametrize("kind", [b"0", b"L", b"K", b"x", b"g", b"S", b"Z"])
def test_impossible_sizes(kind, value, message, tmp_path):
    data = changed(changed(tar_of(FILES), TYPE, kind), SIZE, value)
    start = time.monotonic()
    [entry] = read(tmp_path / "a.tar", data)
    assert time.monotonic() - start < 2
    assert entry["problem"].startswith("the shard is truncated or damaged at byte 0 (")
    assert re.search(message, entry["problem"]) or kind == b"S"


@pytest.mark.parametrize(
    "record",
    [
        b"22 size=1000000000000\n", b"11 size=-5\n", b"21 GNU.sparse.major=1\n",
        b"5010 size=" + b"9" * 5000 + b"\n", b"10 size=x\n",
    ],
)  # fmt: skip
def test_pax_headers(record, tmp_path):
    extension = changed(tar_of([("pax", record)])[: 2 * BLOCK], TYPE, b"x")
    if len(record) > BLOCK:
        extension = changed(tar_of([("pax", record)])[: 11 * BLOCK], TYPE, b"x")
    [entry] = read(tmp_path / "a.tar", extension + tar_of(FILES))
    assert entry["problem"].startswith("the shard is truncated or damaged at byte ")


def test_many_extensions_and_repeated_keys(tmp_path):
    extension = changed(tar_of([("pax", b"11 path=12\n")])[: 2 * BLOCK], TYPE, b"x")
    assert len(read(tmp_path / "a.tar", 20_000 * extension + tar_of(FILES))) == 1
    assert (
        "has 2 images" in read(tmp_path / "b.tar", tar_of([("1.jpg", b""), *FILES]))[0]["problem"]
    )


def test_a_lost_connection_is_not_stored_as_a_problem_of_an_entry(tmp_path, monkeypatch):
    """The index would store the problem, and every later run would skip the image."""
    read_shard = Shard.read

    def read_or_fail(shard, start, stop, cache_bytes):
        if start == BLOCK:  # the json, after the headers
            raise RemoteError("connection lost")
        return read_shard(shard, start, stop, cache_bytes)

    monkeypatch.setattr(Shard, "read", read_or_fail)
    with pytest.raises(RemoteError, match="connection lost"):
        read(tmp_path / "a.tar", tar_of([("1.json", SAMPLE), ("1.png", bytes(200_000))]))
