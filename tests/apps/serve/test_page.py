"""Test the page in a browser: keyboard, mouse, and errors."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detlite.inference.predictor import Predictor
from detlite.structures.masks.formats import encode_bitmap

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("hypercorn")
playwright = pytest.importorskip("playwright.sync_api")

from detlite.apps.serve.app import build_app  # noqa: E402
from detlite.apps.serve.requests import Limits  # noqa: E402
from tests.apps.serve.clients import serving  # noqa: E402

expect = playwright.expect


@pytest.fixture
def server(predictor: Predictor, request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """Serve on a free port until `stop()`, with a threshold of 0.5 or the parameter."""
    threshold = getattr(request, "param", 0.5)
    app = build_app(predictor, Limits(threshold=threshold, bytes=50_000, pixels=1_000_000))
    with ExitStack() as stack:
        port = stack.enter_context(serving(app))
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}/", stop=stack.close)


@pytest.fixture
def page(chromium: Any, server: SimpleNamespace) -> Iterator[Any]:
    """Load the page, and check that it has no errors and sends requests only to its server."""
    page = chromium.new_page(viewport={"width": 1100, "height": 700})
    page.set_default_timeout(10_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda entry: entry.type == "error" and problems.append(entry.text))
    allowed = (server.url, "blob:", "data:")
    page.on("request", lambda sent: sent.url.startswith(allowed) or problems.append(sent.url))
    page.goto(server.url)
    yield page
    page.close()
    # The browser logs every response that is not 200.
    assert [problem for problem in problems if "Failed to load resource" not in problem] == []


def choose(page: Any, name: str, media_type: str, body: bytes) -> None:
    page.set_input_files("#file", {"name": name, "mimeType": media_type, "buffer": body})


def pixel(page: Any, x: int, y: int) -> list[int]:
    """Return the color of a pixel of the image."""
    code = """([x, y]) => {
        const scale = canvas.width / result.width;
        const data = context.getImageData(scale * (x + 0.5), scale * (y + 0.5), 1, 1).data;
        return [...data].slice(0, 3);
    }"""
    return page.evaluate(code, [x, y])


@pytest.mark.slow
def test_detections_and_download(page, image_file):
    choose(page, "photo.png", "image/png", image_file(300, 400))
    expect(page.locator("#list li")).to_have_count(1)
    assert page.inner_text("#status") == "photo.png: 1 of 2 objects shown."
    assert page.inner_text("#list li").split("\n") == ["square", "0.90"]
    assert pixel(page, 300, 200) == [0, 0, 0]
    red, green, blue = pixel(page, 40, 30)  # white, tinted by the mask
    assert min(red, green, blue) < 220

    # Lower the threshold by keyboard to its minimum, and raise it to 0.35.
    page.focus("#threshold")
    page.keyboard.press("Home")
    assert page.inner_text("#shown_threshold") == "0.05"
    assert page.locator("#list li").count() == 2
    assert pixel(page, 300, 200) != [0, 0, 0]  # the mask of the whole image
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.locator("#list li").count() == 1
    page.keyboard.press("Tab")
    with page.expect_download() as downloading:
        page.keyboard.press("Enter")
    assert downloading.value.suggested_filename == "photo.json"
    content = json.loads(Path(downloading.value.path()).read_text())
    assert (content["file_name"], content["width"], content["height"]) == ("photo.png", 400, 300)
    (detection,) = content["detections"]
    assert detection.keys() == {
        "category", "category_id", "score", "bbox", "segmentation", "area", "rotated_box",
        "keypoints",
    }  # fmt: skip
    assert detection["bbox"] == pytest.approx([20, 10, 40, 40])


@pytest.mark.parametrize("server", [0.0], indirect=True)
def test_threshold_is_the_servers_until_it_is_changed(page, image_file):
    choose(page, "first.png", "image/png", image_file())
    expect(page.locator("#list li")).to_have_count(2)
    page.fill("#threshold", "0.4")
    choose(page, "second.png", "image/png", image_file())
    expect(page.locator("#status")).to_contain_text("second.png: 1 of 2")
    assert page.inner_text("#shown_threshold") == "0.40"


def test_dropped_image(page, image_file):
    code = """bytes => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(bytes)], 'dropped.png', {type: 'image/png'}));
        dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, cancelable: true}));
    }"""
    page.evaluate(code, list(image_file()))
    expect(page.locator("#list li")).to_have_count(1)
    assert page.inner_text("#status").startswith("dropped.png")


def test_page_decodes_masks_of_pycocotools(page):
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (7, 5), (90, 61)):
        bitmap = (rng.random(shape) < 0.5) | (np.arange(shape[1]) > shape[1] // 2)
        counts = encode_bitmap(bitmap)["counts"]
        runs = page.evaluate("decodeRuns", counts)
        values = np.arange(len(runs)) % 2 == 1
        assert (bitmap == np.repeat(values, runs).reshape(shape[::-1]).T).all()


@pytest.mark.parametrize(
    ("name", "media_type", "body", "message"),
    [
        ("notes.txt", "text/plain", b"hello", "cannot read notes.txt. Choose an image of type"),
        ("broken.png", "image/png", b"hello", "What to do: send a valid image"),
        ("large.png", "image/png", bytes(60_000), "60 kB, but the limit of the server is 50 kB"),
    ],
)
def test_errors_are_shown(page, name, media_type, body, message):
    choose(page, name, media_type, body)
    expect(page.locator("#problem")).not_to_be_empty()
    assert message in page.inner_text("#problem")
    assert page.locator("#list li").count() == 0
    assert page.is_hidden("#canvas")
    assert page.is_disabled("#download")


@pytest.mark.slow
def test_stopped_server(page, server, image_file):
    server.stop()
    choose(page, "photo.png", "image/png", image_file())
    expect(page.locator("#problem")).not_to_be_empty()
    assert "The server does not respond" in page.inner_text("#problem")


@pytest.mark.slow
def test_second_image_replaces_a_pending_one(page, predictor, image_file):
    predictor.model.gate.clear()
    choose(page, "first.png", "image/png", image_file(60, 120))
    time.sleep(0.2)
    choose(page, "second.png", "image/png", image_file(90, 100))
    predictor.model.gate.set()
    expect(page.locator("#list li")).to_have_count(1)
    assert page.inner_text("#status").startswith("second.png")
    assert page.evaluate("result.height") == 90
