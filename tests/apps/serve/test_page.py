"""The page in a browser: with the keyboard, with the mouse, and when something is wrong."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detlite.inference.predictor import Predictor

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
uvicorn = pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")

from detlite.apps.serve import Limits, build_app  # noqa: E402

expect = playwright.expect


class Server:
    """The service in a thread, on a free port of the loopback."""

    def __init__(self, app: Any) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, args=([self.socket],))
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.socket.close()


@pytest.fixture
def server(predictor: Predictor) -> Iterator[Server]:
    server = Server(build_app(predictor, Limits(bytes=50_000, pixels=1_000_000)))
    yield server
    server.stop()


@pytest.fixture
def page(chromium: Any, server: Server) -> Iterator[Any]:
    """The page, loaded; nothing may go wrong in it, and it asks nobody but its server."""
    page = chromium.new_page(viewport={"width": 1100, "height": 700})
    page.set_default_timeout(10_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on(
        "request",
        lambda asked: (
            None
            if asked.url.startswith((server.url, "blob:", "data:"))
            else problems.append(asked.url)
        ),
    )
    page.goto(server.url)
    yield page
    page.close()
    # The browser itself notes every answer that is not 200.
    assert [one for one in problems if "Failed to load resource" not in one] == []


def choose(page: Any, name: str, kind: str, body: bytes) -> None:
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": body})


def pixel(page: Any, x: int, y: int) -> list[int]:
    """The colour at a place of the picture."""
    code = """([x, y]) => {
        const scale = canvas.width / answer.width;
        const data = context.getImageData(scale * (x + 0.5), scale * (y + 0.5), 1, 1).data;
        return [...data].slice(0, 3);
    }"""
    return page.evaluate(code, [x, y])


def test_from_a_picture_to_its_json(page: Any, picture: Callable[..., bytes]) -> None:
    choose(page, "photo.png", "image/png", picture(300, 400))
    expect(page.locator("#list li")).to_have_count(1)
    assert page.inner_text("#status") == "photo.png: 1 of 2 objects shown."
    assert page.inner_text("#list li").split("\n") == ["square", "0.90"]
    assert pixel(page, 300, 200) == [0, 0, 0]
    red, green, blue = pixel(page, 40, 30)  # in the mask: between white and its colour
    assert min(red, green, blue) < 220

    # By keyboard: the threshold down to its end, and back to 0.5.
    page.focus("#threshold")
    page.keyboard.press("Home")
    assert page.inner_text("#shown_threshold") == "0.05"
    assert page.locator("#list li").count() == 2
    assert pixel(page, 300, 200) != [0, 0, 0]  # the mask of the whole picture
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.locator("#list li").count() == 1
    page.keyboard.press("Tab")
    with page.expect_download() as downloading:
        page.keyboard.press("Enter")
    assert downloading.value.suggested_filename == "photo.json"
    content = json.loads(Path(downloading.value.path()).read_text())
    assert (content["file_name"], content["width"], content["height"]) == ("photo.png", 400, 300)
    (found,) = content["detections"]
    assert found.keys() == {
        "category", "category_id", "score", "bbox", "segmentation", "keypoints",
    }  # fmt: skip
    assert found["bbox"] == pytest.approx([20, 10, 40, 40])


def test_a_picture_is_dropped(page: Any, picture: Callable[..., bytes]) -> None:
    code = """bytes => {
        const given = new DataTransfer();
        given.items.add(new File([new Uint8Array(bytes)], 'dropped.png', {type: 'image/png'}));
        dispatchEvent(new DragEvent('drop', {dataTransfer: given, cancelable: true}));
    }"""
    page.evaluate(code, list(picture()))
    expect(page.locator("#list li")).to_have_count(1)
    assert page.inner_text("#status").startswith("dropped.png")


def test_masks_are_where_they_belong(page: Any) -> None:
    """The page's reader of run lengths against pycocotools' writer."""
    import numpy as np

    from detlite.structures.masks.formats import encode_bitmap

    rng = np.random.default_rng(0)
    for shape in ((1, 1), (7, 5), (90, 61)):
        bitmap = (rng.random(shape) < 0.5) | (np.arange(shape[1]) > shape[1] // 2)
        counts = encode_bitmap(bitmap)["counts"]
        runs = page.evaluate("runs", counts)
        values = np.arange(len(runs)) % 2 == 1
        assert (bitmap == np.repeat(values, runs).reshape(shape[::-1]).T).all()


@pytest.mark.parametrize(
    ("name", "kind", "body", "said"),
    [
        (
            "notes.txt",
            "text/plain",
            b"hello",
            "notes.txt is no picture that the server reads. Choose one of JPEG, PNG",
        ),
        ("broken.png", "image/png", b"hello", "What to do: send a sound picture"),
        ("large.png", "image/png", bytes(60_000), "has 60 kB, and the server takes 50 kB"),
    ],
)
def test_errors_are_said(page: Any, name: str, kind: str, body: bytes, said: str) -> None:
    choose(page, name, kind, body)
    expect(page.locator("#problem")).not_to_be_empty()
    assert said in page.inner_text("#problem")
    assert page.locator("#list li").count() == 0
    assert page.is_hidden("#canvas")
    assert page.is_disabled("#download")


def test_a_server_that_is_gone(page: Any, server: Server, picture: Callable[..., bytes]) -> None:
    server.stop()
    choose(page, "photo.png", "image/png", picture())
    expect(page.locator("#problem")).not_to_be_empty()
    assert "The server does not answer" in page.inner_text("#problem")


def test_of_two_pictures_the_last_one_stays(
    page: Any, predictor: Predictor, picture: Callable[..., bytes]
) -> None:
    predictor.model.gate.clear()
    choose(page, "first.png", "image/png", picture(60, 120))
    time.sleep(0.2)
    choose(page, "second.png", "image/png", picture(90, 100))
    predictor.model.gate.set()
    expect(page.locator("#list li")).to_have_count(1)
    assert page.inner_text("#status").startswith("second.png")
    assert page.evaluate("answer.height") == 90
