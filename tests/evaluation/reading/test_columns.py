"""Columns of COCO files: the values of `json`, and no columns for what is not in COCO's format."""

import json
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detlite import ops
from detlite.evaluation import Results, evaluate_coco
from detlite.evaluation.reading.columns import Columns
from detlite.evaluation.reading.entries import read_columns
from detlite.files.errors import DataError
from tests.builders import coco_content, coco_object

ENTRY = '{"image_id": 1, "category_id": 2, "score": 0.5, "bbox": [1, 2, 3.5, 4]}'


def parse(text: str | bytes) -> tuple[Columns, Any] | None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        return read_columns(Path(file.name))


def columns_of(rows: Any) -> Columns:
    parsed = parse(json.dumps(rows))
    assert parsed
    return parsed[0]


@pytest.fixture(autouse=True)
def _with_kernel():
    if not hasattr(torch.ops.detlite, "read_annotations"):
        pytest.skip("the columns are read by a kernel")


def test_numbers_are_those_of_json():
    rng = random.Random(0)
    bits = (struct.unpack("d", rng.randbytes(8))[0] for _ in range(5000))
    texts = [repr(value) for value in bits if abs(value) < 1e308]
    texts += [repr(rng.random() * 10 ** rng.randint(-25, 25)) for _ in range(5000)]
    texts += [repr(float(np.float32(640 * rng.random()))) for _ in range(5000)]
    texts += [f"{2 * rng.getrandbits(53) + 1}.0" for _ in range(1000)]  # halfway between two
    digits = (str(rng.randrange(10 ** rng.randint(1, 22))) for _ in range(4000))
    texts += [f"{whole}.{fraction}" for whole, fraction in zip(digits, digits, strict=True)]
    texts += ["0", "-0", "-0.0", "0e5", "0.000", "1E+5", "-1.5e-3", "0.1e-400", "12345678"]
    texts += ["9007199254740993", "9999999999999999999", "9999999999999999999e-19"]
    parsed = parse("[" + ",".join(f'{{"score": {text}}}' for text in texts) + "]")
    assert parsed
    scores = parsed[0].numbers[:, 0]
    assert [repr(value) for value in scores.tolist()] == [repr(float(text)) for text in texts]


def test_fields_of_annotations():
    polygons = [[1, 2, 3, 4, 5, 6.5], [0, 0, 9, 0, 9, 9, 0, 9]]
    rows = [
        {"id": 5, "image_id": 7, "category_id": -3, "iscrowd": 0, "area": 3, "bbox": [1, 2, 3, 4],
         "segmentation": polygons, "attributes": {"a": [1, {"b": None}], "c\\\"": "}, {é"}},
        {"segmentation": {"counts": [3, 2, 7], "size": [3, 4]}, "iscrowd": 1, "flag": True},
        {"segmentation": {"size": [3, 4], "counts": "a\\b"}, "keypoints": [1, 2.5, 2],
         "num_keypoints": 1},
    ]  # fmt: skip
    text = json.dumps({"info": {"annotations": [1]}, "annotations": rows, "images": []}, indent=1)
    parsed = parse(text)
    assert parsed
    columns, rest = parsed
    assert rest == {"info": {"annotations": [1]}, "annotations": [], "images": []}
    assert columns.integers.tolist() == [[7, -3, 5, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert columns.numbers[0].tolist() == [0, 3, 1, 2, 3, 4, 0]
    assert columns.corners.tolist() == [*polygons[0], *polygons[1]]
    assert columns.polygon_lengths.tolist() == [6, 8]
    assert columns.polygons.tolist() == [2, 0, 0]
    assert columns.sizes.tolist() == [[0, 0], [3, 4], [3, 4]]
    assert columns.text.tobytes() == b"327a\\b"
    assert columns.text_lengths.tolist() == [0, 3, 3]
    assert columns.keypoints.tolist() == [1, 2.5, 2]
    assert columns.has("text").tolist() == [False, False, True]
    assert columns.has("iscrowd").tolist() == [True, True, False]
    scored = columns_of([{"score": 0.5, "mask_score": 0.25}, {"score": 1}])
    assert scored.numbers[:, [0, 6]].tolist() == [[0.5, 0.25], [1, 0]]
    assert scored.has("mask_score").tolist() == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[", "[1]", "[{}] 1", "[{},]", "[{} {}]", '{"annotations": 3}', "\ufeff[{}]",
        '{"annotations": [], "annotations": []}', '[{"score": NaN}]', '[{"score": 01}]',
        '[{"score": 1.}]', '[{"score": .5}]', '[{"score": 1e}]', '[{"score": 1e999}]',
        '[{"score": null}]', '[{"score": 1, "score": 2}]', '[{"mask_score": "1"}]',
        '[{"image_id": 1.0}]',
        '[{"image_id": true}]', '[{"image_id": 01}]', '[{"image_id": 9223372036854775808}]',
        '[{"bbox": [1, 2, 3]}]', '[{"bbox": [1, 2, 3, 4, 5]}]', '[{"segmentation": [1, 2]}]',
        '[{"segmentation": {"size": [3, 4]}}]', '[{"segmentation": "mask.png"}]',
        '[{"segmentation": {"size": [3, 4], "counts": [3, 4]}}]',
        '[{"segmentation": {"size": [3, 4], "counts": [13, -1]}}]',
        '[{"segmentation": {"size": [0, 4], "counts": ""}}]',
        '[{"segmentation": {"size": [3, 4], "counts": "a\\n"}}]',
        '[{"segmentation": {"size": [3, 4], "counts": "a\\"}}]', '[{"segmentation": [], "seg',
        '[{"other": "\\x"}]', '[{"other": "\\uZZZZ"}]',
        '[{"other": "a', '[{"a\\u0062": 1}]',
        '[{"other": ' + "[" * 200 + "]" * 200 + "}]",
    ],
)  # fmt: skip
def test_other_formats_have_no_columns(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["annotations"][0].pop("image_id"), "image_id None is not in"),
        (lambda content: content["annotations"][0].pop("category_id"), "category_id None is not"),
        (lambda content: content["annotations"][0].update(image_id=9), r"annotation 1 \(image 9\)"),
        (lambda content: content["annotations"][0].update(bbox=[1, 2]), r"bbox is \[1, 2\]"),
        (lambda content: content["annotations"][0].update(bbox={"x": 1}), "bbox is {'x': 1}"),
        (lambda content: content["images"][0].update(id="x"), "image_id 1 is not in 'images'"),
        (lambda content: content["images"][0].update(id=2**63), "image_id 1 is not in 'images'"),
    ],
)
def test_errors_of_files_name_the_entry(tmp_path, change, message):
    content = coco_content([coco_object([1, 2, 3, 4])])
    change(content)
    (tmp_path / "truth.json").write_text(json.dumps(content))
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(DataError, match=message):
        evaluate_coco(tmp_path / "truth.json", str(tmp_path / "results.json"), ["bbox"])


def test_boxes_need_no_image_sizes_or_valid_masks(tmp_path):
    truth = {"id": 1, "image_id": 0, "category_id": 0, "iscrowd": 1, "bbox": [1, 2, 3, 4]}
    truth |= {"area": 12, "segmentation": [[1, 2, 4, 2, 4, 6]]}
    content = {"images": [{"id": 0}], "categories": [{"id": 0}], "annotations": [truth]}
    content["annotations"] = [truth, truth | {"id": 2, "iscrowd": 0}]
    entry = {"image_id": 0, "category_id": 0, "score": 1, "bbox": [1, 2, 3, 4]}
    (tmp_path / "results.json").write_text(json.dumps([entry | {"segmentation": None}]))
    for size in ({}, {"height": 9, "width": 9}):
        content["images"][0] |= size
        (tmp_path / "truth.json").write_text(json.dumps(content))
        metrics = evaluate_coco(tmp_path / "truth.json", tmp_path / "results.json", ["bbox"])
        assert metrics["bbox"]["AP"] == pytest.approx(1)


def test_damaged_utf8_has_no_columns():
    text = bytearray(f"[{ENTRY}]".replace("score", "scoré").encode())
    assert parse(bytes(text))
    text[text.index(0xC3)] = 0xFF
    assert parse(bytes(text)) is None


def test_mask_scores_need_a_kernel_that_reads_them(monkeypatch):
    """Compiled kernels may be older than the Python code of a checkout."""
    columns = ops.read_annotations(torch.tensor([*f"[{ENTRY}]".encode()], dtype=torch.uint8))
    columns[3] = columns[3][:, :6]
    monkeypatch.setattr(ops, "read_annotations", lambda _: columns)
    assert parse(f"[{ENTRY}]") is None


def test_no_prefix_is_a_list():
    text = json.dumps([json.loads(ENTRY) | {"segmentation": {"size": [3, 4], "counts": "3\\9"}}])
    assert parse(text)
    assert not any(parse(text[:size]) for size in range(len(text)))


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_chunks_do_not_change_the_columns(chunk):
    # An entry seems to begin within texts and nested objects.
    rows = [
        {"note": "}, {" * (n % 5), "nested": [{"id": 1}, {"id": 2}][: n % 3], "id": n + 1,
         "segmentation": [[n, 2, 3, 4.5, 5, 6]] * (n % 4)}
        for n in range(50)
    ]  # fmt: skip
    plain = [{"id": n} for n in range(50)]
    for value in (rows, plain, {"annotations": plain, "categories": plain}):
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        expected = ops.read_annotations(text)
        assert expected[0][0] >= 0
        for own, other in zip(ops.read_annotations(text, chunk), expected, strict=True):
            assert torch.equal(own, other)


def test_operator_refuses_other_tensors():
    for text, chunk in ((torch.zeros(3), 1), (torch.zeros(1, 3, dtype=torch.uint8), 1)):
        with pytest.raises(RuntimeError, match="read_annotations: text must"):
            ops.read_annotations(text, chunk)
    with pytest.raises(RuntimeError, match="chunk_bytes must be positive"):
        ops.read_annotations(torch.zeros(3, dtype=torch.uint8), 0)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_files_give_the_expected_metrics(data_root, kind):
    folder = data_root / "data" / "cocoeval_val2014_100"
    expected = json.loads((folder / "expected.json").read_text())
    truth = folder / "annotations" / "instances_val2014_100.json"
    results = folder / "results" / f"instances_val2014_fake{kind}100_results.json"
    metrics = evaluate_coco(truth, results, [kind])[kind]
    values = [metrics[name] for name in expected["order"]]
    assert values == pytest.approx(expected[kind], rel=0, abs=1e-12)
    rows = json.loads(results.read_text())
    assert metrics == evaluate_coco(truth, Results.from_coco(rows, [kind]), [kind])[kind]
