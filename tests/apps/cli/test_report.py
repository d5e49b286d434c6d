"""`detlite report`: what the page says is what was measured, and it works in a browser."""

from __future__ import annotations

import json
import re

import pytest

from detlite.apps.cli.main import main
from detlite.apps.report.text import MISTAKES
from detlite.config import KEYS


def report(tmp_path, *arguments):
    """The text of the page, and its file."""
    file = tmp_path / "report.html"
    assert main(["report", *map(str, arguments), "--output", str(file), "--resamples", "100"]) == 0
    return file.read_text(), file


def rows_of(text, heading):
    """The cells of the first table after a heading, as plain text."""
    table = re.search(r"<table.*?</table>", text[text.index(heading) :], re.DOTALL).group()
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", " ", cell).split() for cell in row] for row in cells]


def test_the_page_says_what_evaluation_json_says(make_run, tmp_path):
    folder = make_run("first")
    text, _ = report(tmp_path, folder)
    stated = json.loads((folder / "evaluation.json").read_text())
    for kind, heading in (("bbox", ">Boxes"), ("segm", ">Masks")):
        rows = {row[0][0]: row for row in rows_of(text, f'id="set0-{kind}"{heading}')[1:]}
        assert rows.keys() == {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR"}
        for name, row in rows.items():
            value = stated[kind]["AR100" if name == "AR" else name]
            assert row[1][0] == f"{100 * value:.1f}"
            if len(row[1]) > 1 or name != "APl":  # of which there is one
                low, high = float(row[1][1]), float(row[1][3])
                assert low < high
                assert low - 0.05 <= 100 * value <= high + 0.05
    assert "evaluation.json has" not in text
    by_category = rows_of(text, "Categories, the weakest first")[1:]
    values = [float(row[2][0]) for row in by_category]
    assert values == sorted(values)
    named = {"cat": "cat <b>", "dog": "dog & co", "bird": "bird"}
    for row in by_category:
        value = stated["bbox"]["per_category"][named[row[0][0]]]
        assert row[2][0] == f"{100 * value:.1f}"


def test_one_file_that_holds_everything(make_run, tmp_path):
    text, file = report(tmp_path, make_run("first"))
    assert "cat &lt;b&gt;" in text
    assert "cat <b>" not in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "@import" not in text
    assert text.count("data:image/jpeg;base64,") > 20
    assert file.stat().st_size < 4_000_000
    assert "2.00 pictures/s in each process, in float32" in text
    assert "8.00 pictures/s" in text  # four in half a second
    assert "raise DATALOADER.NUM_WORKERS" in text  # 40 % of the time
    for kind in MISTAKES:
        assert f'<th scope="row">{kind}</th>' in text


def test_mistakes_that_are_not_shown_are_counted(make_run, tmp_path):
    folder = make_run("first")
    text, _ = report(tmp_path, folder)
    assert '<option value="cat &lt;b&gt;">' in text
    shown = text.count("data:image/jpeg;base64,")  # all there are, by the default of 48 a list
    text, _ = report(tmp_path, folder, "--pictures", "0")
    counts = [int(n) for n in re.findall(r"There are (\d+), of which none is shown", text)]
    assert len(counts) == 2
    assert min(counts) > 0
    assert sum(min(count, 48) for count in counts) == shown
    assert "There are none." not in text


def test_the_same_runs_give_the_same_page(make_run, tmp_path):
    folder = make_run("first")
    assert report(tmp_path, folder)[0] == report(tmp_path, folder)[0]


def test_several_runs_side_by_side(make_run, tmp_path):
    """A run with a fifth of the detections is worse beyond noise, and a copy is neither."""
    folders = [make_run("all"), make_run("few", keep=0.2), make_run("copy", trained=False)]
    text, _ = report(tmp_path, *folders)
    row = rows_of(text, 'id="set0-bbox"')[2]
    stated = [json.loads((f / "evaluation.json").read_text())["bbox"]["AP50"] for f in folders]
    assert row[1][0] == f"{100 * stated[0]:.1f}"
    assert row[2][0] == f"{100 * stated[1]:.1f}"
    assert row[3][0] == f"{100 * (stated[1] - stated[0]):+.1f}"
    assert row[3][-1] == "worse"
    assert row[5][0] == "+0.0"
    assert row[5][-2:] == ["within", "noise"]
    assert 'data-run="few"' in text


def test_a_run_without_masks_beside_one_with(make_run, tmp_path):
    text, _ = report(tmp_path, make_run("boxes", masks=False, trained=False), make_run("masks"))
    assert 'id="set0-segm"' in text
    assert len(rows_of(text, 'id="set0-segm"')[0]) == 2  # metric, one run


def test_files_of_two_evaluations(make_run, tmp_path):
    folder = make_run("mixed", masks=False)
    stated = json.loads((folder / "evaluation.json").read_text())
    stated["bbox"]["AP"] += 0.1
    stated["voc"] = {"AP50": 0.25, "per_category": {}}
    (folder / "evaluation.json").write_text(json.dumps(stated))
    text, _ = report(tmp_path, folder)
    assert f"evaluation.json has an AP of {100 * stated['bbox']['AP']:.1f} % for boxes" in text
    assert "evaluation.json also has voc AP50 25.0 %." in text
    assert "16 pictures are few" in text


def test_other_labels_are_not_compared(make_run, tmp_path):
    first, second = make_run("first", masks=False), make_run("second", masks=False)
    content = json.loads((tmp_path / "data" / "val.json").read_text())
    content["annotations"] = content["annotations"][1:]
    (tmp_path / "data" / "other.json").write_text(json.dumps(content))
    config = second / "config.yaml"
    config.write_text(config.read_text().replace("val.json", "other.json"))
    text, _ = report(tmp_path, first, second)
    assert "second was measured on other pictures or labels than first" in text
    assert rows_of(text, 'id="set0-bbox"')[1][3] == ["&ndash;"]


def test_several_data_sets(make_run, tmp_path):
    folder = make_run("first", masks=False)
    config = folder / "config.yaml"
    text = config.read_text()
    entry = re.search(r"  - annotations: val.json\n    images: images\n    name: val set\n", text)
    text = text.replace(entry.group(), entry.group() + entry.group().replace("val set", "other"))
    config.write_text(text.replace("TEST:\n  - val set\n", "TEST:\n  - val set\n  - other\n"))
    rows = json.loads((folder / "results_val set.json").read_text())
    (folder / "results_other.json").write_text(json.dumps(rows[::2]))
    stated = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps({"val set": stated, "other": {}}))
    text, _ = report(tmp_path, folder)
    assert "evaluation.json has" not in text
    ap = [rows_of(text, f'id="set{n}-bbox"')[1][1][0] for n in range(2)]
    assert ap[0] == f"{100 * stated['bbox']['AP']:.1f}"
    assert ap[1] != ap[0]


def test_keypoints(make_run, tmp_path):
    folder = make_run("first", masks=False, keypoints=True)
    text, _ = report(tmp_path, folder)
    stated = json.loads((folder / "evaluation.json").read_text())["keypoints"]
    rows = {row[0][0]: row for row in rows_of(text, 'id="set0-keypoints"')[1:]}
    assert rows.keys() == {"AP", "AP50", "AP75", "APm", "APl", "AR"}
    for name, row in rows.items():
        assert row[1][0] == f"{100 * stated[name]:.1f}"
    part = text[text.index('id="set0-keypoints"') : text.index('id="set0-wrong"')]
    assert "What goes wrong" not in part
    assert "Can scores be trusted?" in part


def test_no_detections_at_all(make_run, tmp_path):
    text, _ = report(tmp_path, make_run("none", keep=0.0, trained=False))
    assert "There are no detections." in text
    assert "There are no curves" in text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.yaml").unlink(), "holds no config.yaml, which `detlite train`"),
        (lambda f: (f / "results_val set.json").unlink(), "holds no detections on val set ("),
        (lambda f: (f / "results_val set.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "results_val set.json").write_text("{}"), "is not a list of COCO results"),
        (lambda f: (f / "results_val set.json").write_text('[{"image_id": 2}]'),
         "result 0 has no 'category_id'"),
        (lambda f: (f / "evaluation.json").write_text("[]"), "is not what `detlite test` writes"),
        (lambda f: (f / "metrics.jsonl").write_text("x"), "line 1 is not a json object"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(make_run, tmp_path, capsys, spoil, message):
    folder = make_run("first")
    spoil(folder)
    assert main(["report", str(folder), "--output", str(tmp_path / "no.html")]) == 2
    assert not (tmp_path / "no.html").exists()
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_arguments(make_run, tmp_path, capsys):
    folder = make_run("first")
    for arguments, message in (
        ([str(folder), str(folder)], "named twice"),
        ([str(folder), "--resamples", "5"], "--resamples is 5"),
        ([str(folder), "--examples", "-1"], "--examples is -1"),
    ):
        assert main(["report", *arguments, "--output", str(tmp_path / "no.html")]) == 2
        assert message in capsys.readouterr().err


def test_keys_that_it_names_exist():
    names = {key.name for key in KEYS}
    for meaning, remedy in MISTAKES.values():
        for key in re.findall(r"\b(?:MODEL|INPUT|SOLVER)\.[A-Z_.]+[A-Z]", meaning + remedy):
            assert key in names


def test_filters_in_a_browser(make_run, tmp_path, open_page):
    _, file = report(tmp_path, make_run("first"), make_run("half", keep=0.5))
    page = open_page(file)
    form = page.locator('form[data-for="set0-wrong-pictures"]')
    figures = page.locator("#set0-wrong-pictures > figure")
    total = figures.count()
    assert total > 10

    def shown():
        return [one for one in figures.all() if one.is_visible()]

    def chosen(name, value):
        form.locator(f'select[name="{name}"]').select_option(value)
        return shown()

    assert len(shown()) == total
    assert form.locator("[data-count]").text_content() == f"{total} of {total} shown"
    for name, value, field in (("category", "bird", "category"), ("kind", "background", "kind"),
                               ("run", "half", "run")):  # fmt: skip
        some = chosen(name, value)
        assert 0 < len(some) < total
        assert {one.get_attribute(f"data-{field}") for one in some} == {value}
        assert form.locator("[data-count]").text_content() == f"{len(some)} of {total} shown"
        assert len(chosen(name, "")) == total
    form.locator('input[name="from"]').fill("0.7")
    some = shown()
    assert 0 < len(some) < total
    assert all(float(one.get_attribute("data-score")) >= 0.7 for one in some)
    assert form.locator("output").first.text_content() == "0.70"
    form.locator('input[name="to"]').fill("0.6")
    assert shown() == []
    # Curves: one category at a time.
    curves = page.locator("#set0-bbox-curves > div")
    assert curves.count() == 4
    assert [one.is_visible() for one in curves.all()] == [True, False, False, False]
    page.locator('form[data-for="set0-bbox-curves"] select').select_option("bird")
    assert curves.nth(3).is_visible() != curves.nth(0).is_visible()
    assert [one.is_visible() for one in curves.all()].count(True) == 1


def test_pictures_load_and_links_lead_somewhere(make_run, tmp_path, open_page):
    _, file = report(tmp_path, make_run("first"))
    page = open_page(file)
    page.locator("img").evaluate_all("all => all.forEach(one => one.loading = 'eager')")
    page.wait_for_function("[...document.images].every(one => one.complete)")
    sizes = page.locator("img").evaluate_all("all => all.map(one => one.naturalWidth)")
    assert min(sizes) > 100
    targets = page.locator('a[href^="#"]').evaluate_all(
        "all => all.map(one => document.getElementById(one.hash.slice(1)) !== null)"
    )
    assert targets
    assert all(targets)
    ids = page.locator("[id]").evaluate_all("all => all.map(one => one.id)")
    assert len(set(ids)) == len(ids)


TINY = """
_BASE_: {root}/configs/_base_/from_scratch_fpn.yaml
OUTPUT_DIR: {output}
DATASETS:
  ROOT: {data}
  CATALOG:
    - {{name: shapes_train, type: shapes, path: shapes, split: train, images: 4, seed: 1}}
    - {{name: shapes_val, type: shapes, path: shapes, split: val, images: 4, seed: 1}}
  TRAIN: [shapes_train]
  TEST: [shapes_val]
MODEL:
  MASK_ON: True
  DEVICE: cpu
  RESNETS: {{NORM: BN, STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 8, BACKBONE_OUT_CHANNELS: 16}}
  RPN: {{PRE_NMS_TOP_N_TEST: 100, FPN_POST_NMS_TOP_N_TEST: 30}}
  ROI_HEADS: {{SCORE_THRESH: 0.0, DETECTIONS_PER_IMG: 20}}
  ROI_BOX_HEAD: {{NUM_CLASSES: 6, MLP_HEAD_DIM: 16}}
  ROI_MASK_HEAD: {{CONV_LAYERS: [16]}}
INPUT: {{MIN_SIZE_TRAIN: [96], MIN_SIZE_TEST: 96}}
DATALOADER: {{NUM_WORKERS: 0}}
SOLVER: {{MAX_ITER: 2, IMS_PER_BATCH: 2, STEPS: [], LOG_PERIOD: 1}}
TEST: {{IMS_PER_BATCH: 2}}
"""


def test_folders_of_a_training_and_of_a_test(repo_root, tmp_path):
    """What the commands themselves leave is what a report reads."""
    file, trained, tested = tmp_path / "a.yaml", tmp_path / "trained", tmp_path / "tested"
    file.write_text(TINY.format(root=repo_root, data=tmp_path, output=trained))
    assert main(["train", "--config", str(file)]) == 0
    weight = str(trained / "model_final.pth")
    options = ["MODEL.WEIGHT", weight, "OUTPUT_DIR", str(tested)]
    assert main(["test", "--config", str(file), *options]) == 0
    text, _ = report(tmp_path, trained, tested)
    assert "evaluation.json has" not in text
    assert "2 iterations of 2 pictures" in text
    assert text.count("pictures/s in each process") == 2
    row = rows_of(text, 'id="set0-segm"')[1]
    assert row[3][0] == "+0.0"
    kept = (trained / "config.yaml").read_text()
    assert main(["test", "--config", str(file), "MODEL.WEIGHT", weight]) == 0
    assert (trained / "config.yaml").read_text() == kept
