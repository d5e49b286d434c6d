"""Test `detlite report`: the numbers of the page, and its behavior in a browser."""

import json
import re
import shutil
from pathlib import Path

import pytest

from detlite.apps.cli.main import main
from detlite.apps.report import charts
from detlite.apps.report.analysis.error_types import ERROR_TYPES
from detlite.config import KEYS
from detlite.engine.run_files import run_lock
from tests.builders import (
    coco_content,
    coco_detection,
    coco_object,
    write_shapes_config,
    write_text,
)

from .conftest import SCREENS


def build_report(file, *arguments):
    """Build a page of runs and return its text."""
    arguments = [*map(str, arguments), "--output", str(file), "--resamples", "100"]
    assert main(["report", *arguments]) == 0
    return file.read_text()


def table_after(text, heading):
    """Return the cells of the first table after a heading, each as a list of words."""
    table = re.search(r"<table.*?</table>", text[text.index(heading) :], re.DOTALL).group()
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", " ", cell).split() for cell in row] for row in cells]


def draw_no_charts(patch):
    """Replace charts, which take most of the time of a report."""
    patch.setattr(charts, "_svg", lambda figure, title: "<svg></svg>")


@pytest.fixture(autouse=True)
def without_charts(monkeypatch):
    """Draw charts only in `comparison_page`, which is built before this fixture."""
    draw_no_charts(monkeypatch)


@pytest.fixture(scope="session")
def run(make_shared_run):
    """Return the folder of a run, which tests must not change."""
    return make_shared_run("first")


@pytest.fixture(scope="session")
def page(run, tmp_path_factory):
    """Return the file of a report about `run`, without charts."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        draw_no_charts(patch)
        build_report(file, run)
    return file


@pytest.fixture(scope="session")
def runs(run, make_shared_run):
    """Return `run`, a run with a fifth of its detections, and a copy of it without curves."""
    return [run, make_shared_run("few", keep=0.2), make_shared_run("copy", trained=False)]


@pytest.fixture(scope="session")
def comparison_page(runs, tmp_path_factory):
    """Return the file of a report about `runs`."""
    file = tmp_path_factory.mktemp("comparison") / "report.html"
    build_report(file, *runs)
    return file


@pytest.fixture
def run_copy(run, tmp_path):
    """Return a copy of `run`, which the test may change."""
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.mark.slow
def test_metrics_equal_evaluation_json(run, page):
    text = page.read_text()
    recorded = json.loads((run / "evaluation.json").read_text())
    for kind, heading in (("bbox", ">Boxes"), ("segm", ">Masks")):
        rows = {row[0][0]: row for row in table_after(text, f'id="set0-{kind}"{heading}')[1:]}
        assert rows.keys() == {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR"}
        for name, row in rows.items():
            value = 100 * recorded[kind]["AR100" if name == "AR" else name]
            assert row[1][0] == f"{value:.1f}"
            if len(row[1]) > 1 or name != "APl":  # there is only one large object
                low, high = float(row[1][1]), float(row[1][3])
                assert low - 0.05 <= value <= high + 0.05
    assert "evaluation.json has" not in text
    by_category = table_after(text, "Categories by ascending AP")[1:]
    names = {"cat": "cat <b>", "dog": "dog & co", "bird": "bird"}
    expected = recorded["bbox"]["per_category"]
    values = [100 * expected[names[row[0][0]]] for row in by_category]
    assert values == sorted(values)
    assert [row[2][0] for row in by_category] == [f"{value:.1f}" for value in values]


def test_page_is_one_complete_file(page):
    text = page.read_text()
    assert "cat &lt;b&gt;" in text
    assert "cat <b>" not in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "@import" not in text
    assert text.count("data:image/jpeg;base64,") > 20
    for name in ERROR_TYPES:
        assert f'<th scope="row">{name}</th>' in text


def test_hidden_errors_are_counted(run, page, tmp_path):
    text = page.read_text()
    assert '<option value="cat &lt;b&gt;">' in text
    shown = text.count("data:image/jpeg;base64,")
    text = build_report(tmp_path / "report.html", run, "--examples", "0")
    counts = [int(n) for n in re.findall(r"There are (\d+). None is shown", text)]
    assert min(counts) > 0
    assert sum(min(count, 48) for count in counts) + 6 == shown  # --examples 48, and six images
    assert "<p>None.</p>" not in text


def test_default_output(runs, run_copy, capsys):
    arguments = ["--resamples", "100", "--examples", "0"]
    assert main(["report", str(run_copy), *arguments]) == 0
    assert main(["report", str(run_copy), str(runs[1]), *arguments]) == 0
    for name in ("report.html", "comparison.html"):
        assert (run_copy / name).exists()
    assert capsys.readouterr().out.count(str(run_copy)) == 2


def test_results_of_other_frameworks(run, make_run, tmp_path, error_of):
    """COCO files of a run lead to the same numbers as the run."""
    boxes = make_run("boxes", masks=False) / "results_val set.json"
    files = [tmp_path / "theirs.json", tmp_path / "boxes.json"]
    for source, file in zip((run / "results_val set.json", boxes), files, strict=True):
        shutil.copy(source, file)
    truth = tmp_path / "data" / "val.json"
    text = build_report(tmp_path / "report.html", "--truth", truth, "--results", *files)
    recorded = json.loads((run / "evaluation.json").read_text())
    for kind, columns in (("bbox", 4), ("segm", 2)):  # one file has no masks
        row = table_after(text, f'id="set0-{kind}"')[1]
        assert row[1][0] == f"{100 * recorded[kind]['AP']:.1f}"
        assert len(row) == columns
    assert "data:image/jpeg" in text
    shutil.rmtree(tmp_path / "data" / "images")
    text = build_report(tmp_path / "report.html", "--truth", truth, "--results", files[1])
    assert "None is shown" in text
    assert "data:image/jpeg" not in text
    files[0].write_text('[{"image_id": 1, "category_id": 99, "bbox": [0, 0, 1, 1], "score": 1}]')
    error = error_of("report", "--truth", truth, "--results", files[0])
    assert "image_id 1 is not in the ground truth" in error


def test_options_of_results(tmp_path, error_of):
    boxes = [[30 * k, 10, 20, 20] for k in range(3)]
    content = coco_content([coco_object(box) for box in boxes])
    content["annotations"].append(coco_object([5, 5, 9, 9], category=7, id=9))
    write_text(truth := tmp_path / "truth.json", json.dumps(content))
    rows = [coco_detection(box, 0.9 - 0.1 * k) for k, box in enumerate(boxes)]
    write_text(results := tmp_path / "results.json", json.dumps(rows))
    arguments = ["--truth", truth, "--results", results]
    advice = ["DATASETS.ON_BAD_ANNOTATION", "skip"]
    assert f"set {' '.join(advice)} (skip_bad=True" in error_of("report", *arguments)
    for options, ap in ((["--skip-bad", "--max-detections", 2], "66.3"), (advice, "100.0")):
        text = build_report(tmp_path / "report.html", *arguments, *options)
        assert table_after(text, 'id="set0-bbox"')[1][1][0] == ap
    options = [*arguments, "--skip-bad", "--iou-thresholds", 0.6, 0.3]
    assert "IoU thresholds must increase" in error_of("report", *options)


@pytest.mark.slow
def test_comparison_of_runs(runs, comparison_page):
    """A run with a fifth of the detections is worse; a copy is within noise."""
    text = comparison_page.read_text()
    row = table_after(text, 'id="set0-bbox"')[2]
    first, few, _ = (json.loads((f / "evaluation.json").read_text())["bbox"]["AP50"] for f in runs)
    values = [f"{100 * first:.1f}", f"{100 * few:.1f}", f"{100 * (few - first):+.1f}"]
    assert [cell[0] for cell in row[1:4]] == values
    assert row[3][-1] == "worse"
    assert (row[5][0], row[5][-2:]) == ("+0.0", ["within", "noise"])
    assert 'data-run="few"' in text


@pytest.mark.slow
def test_run_without_masks_and_run_without_detections(make_run, tmp_path):
    boxes = make_run("boxes", masks=False, trained=False)
    text = build_report(tmp_path / "a.html", boxes, make_run("none", keep=0.0, trained=False))
    assert len(table_after(text, 'id="set0-segm"')[0]) == 2  # metric, one run
    assert "There are no detections." in text


@pytest.mark.slow
def test_inconsistent_evaluation_and_other_labels(make_run, tmp_path):
    first, second = make_run("first", masks=False), make_run("second", masks=False)
    recorded = json.loads((first / "evaluation.json").read_text())
    recorded["bbox"]["AP"] += 0.1
    recorded["voc"] = {"AP50": 0.25, "per_category": {}}
    (first / "evaluation.json").write_text(json.dumps(recorded))
    content = json.loads((tmp_path / "data" / "val.json").read_text())
    content["annotations"] = content["annotations"][1:]
    (tmp_path / "data" / "other.json").write_text(json.dumps(content))
    config = second / "config.yaml"
    config.write_text(config.read_text().replace("val.json", "other.json"))
    text = build_report(tmp_path / "report.html", first, second)
    assert f"evaluation.json has an AP of {100 * recorded['bbox']['AP']:.1f} % for boxes" in text
    header, *values = table_after(text, "Settings and metrics")
    assert ["voc", "AP50", "(%)"] in header
    assert ["25.0"] in values[0]
    assert "The dataset has only 16 images" in text
    for number, name in enumerate(("first", "second")):
        assert f'<h2 id="set{number}">val set of {name}: ' in text
        assert len(table_after(text, f'id="set{number}-bbox"')[1]) == 2  # metric, one run


@pytest.mark.slow
def test_two_datasets(make_run, tmp_path):
    folder = make_run("first", masks=False)
    config, text = folder / "config.yaml", (folder / "config.yaml").read_text()
    entry = "  - annotations: val.json\n    images: images\n    name: val set\n"
    text = text.replace(entry, entry + entry.replace("val set", "other"))
    config.write_text(text.replace("TEST:\n  - val set\n", "TEST:\n  - val set\n  - other\n"))
    rows = json.loads((folder / "results_val set.json").read_text())
    (folder / "results_other.json").write_text(json.dumps(rows[::2]))
    recorded = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps({"val set": recorded, "other": {}}))
    text = build_report(tmp_path / "report.html", folder)
    assert "evaluation.json has" not in text
    ap, other = (table_after(text, f'id="set{n}-bbox"')[1][1][0] for n in range(2))
    assert ap == f"{100 * recorded['bbox']['AP']:.1f}" != other


def test_keypoints(make_run, tmp_path):
    folder = make_run("first", masks=False, keypoints=True)
    text = build_report(tmp_path / "report.html", folder)
    recorded = json.loads((folder / "evaluation.json").read_text())["keypoints"]
    rows = table_after(text, 'id="set0-keypoints"')[1:]
    names = ("AP", "AP50", "AP75", "APm", "APl", "AR")
    expected = [([name], f"{100 * recorded[name]:.1f}") for name in names]
    assert [(row[0], row[1][0]) for row in rows] == expected
    section = text[text.index('id="set0-keypoints"') : text.index('id="set0-false-positives"')]
    assert "Error types" not in section
    assert "Calibration of scores" in section


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda f: (f / "config.yaml").unlink(), "contains no config.yaml: name the OUTPUT_DIR"),
        (lambda f: (f / "results_val set.json").unlink(), "contains no detections on val set ("),
        (lambda f: (f / "results_val set.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "results_val set.json").write_text("{}"), "a list of COCO results is"),
        (lambda f: (f / "results_val set.json").write_text('[{"image_id": 2}]'),
         "result 0 is not in COCO's results format (Object missing required field `category_id`)"),
        (lambda f: (f / "evaluation.json").write_text("[]"), "not written by `detlite test`"),
        (lambda f: (f / "metrics.jsonl").write_text("x"), "metrics.jsonl: cannot be read"),
    ],
)  # fmt: skip
def test_invalid_runs(run_copy, tmp_path, error_of, corrupt, message):
    corrupt(run_copy)
    assert message in error_of("report", run_copy, "--output", tmp_path / "no.html")
    assert not (tmp_path / "no.html").exists()


def test_tables_of_runs(runs, run_command, error_of, capsys):
    assert run_command("compare", *runs, "--format", "markdown") == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.startswith("| run | bbox AP (%) | bbox AP50 (%) |")
    assert row.startswith("| first, few, copy | ")
    assert "contains no config.yaml" in error_of("compare", runs[0], runs[0].parent)


def test_invalid_arguments(run, tmp_path, error_of):
    file = tmp_path / "page.html"
    for arguments, message in (
        ([run, run], "named twice"),
        ([run, "--resamples", "5"], "--resamples: 5: must be at least 100"),
        ([run, "--examples", "-1"], "--examples: -1: must be at least 0"),
        ([run, "--truth", file], "or one --truth and its --results"),
        (["--truth", file], "or one --truth and its --results"),
        (["--results", file], "or one --truth and its --results"),
    ):
        assert message in error_of("report", *arguments, "--output", file)
    with run_lock(tmp_path, name="page.html"):
        error = error_of("report", run, "--output", file)
    assert "another run is writing to this folder" in error


def test_advice_names_existing_keys(repo_root):
    text = (repo_root / "detlite/apps/drawing/templates/report.html").read_text()
    keys = set(re.findall(r"\b(?:MODEL|INPUT|SOLVER)\.[A-Z_.]+[A-Z]", text))
    assert {"MODEL.ROI_HEADS.NMS", "INPUT.MIN_SIZE_TRAIN"} <= keys <= {key.name for key in KEYS}


@pytest.mark.slow
def test_filters_in_a_browser(comparison_page, open_page):
    page = open_page(comparison_page)
    form = page.locator('form[data-for="set0-false-positive-images"]')
    figures = page.locator("#set0-false-positive-images > figure")
    total = figures.count()
    assert total > 10

    def visible():
        shown = [figure for figure in figures.all() if figure.is_visible()]
        assert form.locator("[data-count]").text_content() == f"{len(shown)} of {total} shown"
        return shown

    assert len(visible()) == total
    for name, value in (("category", "bird"), ("kind", "background"), ("run", "few")):
        form.locator(f'select[name="{name}"]').select_option(value)
        assert 0 < len(visible()) < total
        assert {figure.get_attribute(f"data-{name}") for figure in visible()} == {value}
        form.locator(f'select[name="{name}"]').select_option("")
    form.locator('input[name="from"]').fill("0.7")
    assert 0 < len(visible()) < total
    assert all(float(figure.get_attribute("data-score")) >= 0.7 for figure in visible())
    assert form.locator("output").first.text_content() == "0.70"
    form.locator('input[name="to"]').fill("0.6")
    assert visible() == []


@pytest.mark.slow
def test_images_links_and_the_first_screen_in_a_browser(page, comparison_page, open_page):
    opened = open_page(comparison_page)
    opened.locator("img").evaluate_all("all => all.forEach(image => image.loading = 'eager')")
    opened.wait_for_function("[...document.images].every(image => image.complete)")
    sizes = opened.locator("img").evaluate_all("all => all.map(image => image.naturalWidth)")
    assert min(sizes) > 100
    targets = opened.locator('a[href^="#"]').evaluate_all(
        "all => all.map(link => document.getElementById(link.hash.slice(1)) !== null)"
    )
    assert targets
    assert all(targets)
    ids = opened.locator("[id]").evaluate_all("all => all.map(element => element.id)")
    assert len(set(ids)) == len(ids)
    opened = open_page(page)
    for screen in SCREENS:
        opened.set_viewport_size(screen)
        assert opened.locator(".headline").first.bounding_box()["y"] < 150
        assert opened.locator(".examples img").first.bounding_box()["y"] < 700
    opened.emulate_media(color_scheme="dark")
    color = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert int(re.search(r"\d+", color).group()) < 60
    opened.emulate_media(media="print")
    assert opened.locator("nav").first.is_hidden()


@pytest.mark.slow
def test_report_of_train_and_test(tmp_path):
    """The report can read what `detlite train` and `detlite test` write."""
    trained, tested = tmp_path / "trained", tmp_path / "tested"
    file = write_shapes_config(tmp_path / "a.yaml", tmp_path)
    assert main(["train", "--config", str(file), "OUTPUT_DIR", str(trained)]) == 0
    weights = str(trained / "model_final.pth")
    test = ["test", "--config", str(file), "--weights", weights, "OUTPUT_DIR"]
    assert main([*test, str(tested)]) == 0
    text = build_report(tmp_path / "report.html", trained, tested)
    assert "evaluation.json has" not in text
    row = table_after(text, 'id="set0-segm"')[1]
    assert row[3][0] == "+0.0"
    config = (trained / "config.yaml").read_text()
    assert main([*test, str(trained)]) == 0
    assert (trained / "config.yaml").read_text() == config


@pytest.mark.slow
def test_a_set_with_two_names_is_one_set(make_run, tmp_path):
    first, second = make_run("first", masks=False), make_run("second", masks=False, keep=0.2)
    config = second / "config.yaml"
    config.write_text(config.read_text().replace("val set", "test"))
    (second / "results_val set.json").rename(second / "results_test.json")
    text = build_report(tmp_path / "report.html", first, second)
    assert ">val set, test: 16 images" in text
    assert 'id="set1"' not in text
    assert re.search("first (is better than|and) second .*points of AP for boxes", text)
    assert text.count("What to do next for first:") == 1
