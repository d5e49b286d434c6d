"""The service's answers, in one process."""

from __future__ import annotations

import asyncio
import io
import re
import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from PIL import Image, ImageFile

from detlite.inference.predictor import Predictor
from detlite.structures.masks.formats import to_bitmap

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from detlite.apps.serve import Limits, build_app

Talk = Callable[..., Any]
Picture = Callable[..., bytes]
PNG = {"Content-Type": "image/png"}


async def send(client: Any, body: Any, query: str = "", **headers: str) -> Any:
    return await client.post(f"/predict{query}", content=body, headers={**PNG, **headers})


@pytest.fixture
def app(predictor: Predictor) -> Any:
    return build_app(predictor, Limits(bytes=100_000, pixels=1_000_000, seconds=20, batch=4))


class TestAnswers:
    @pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
    def test_detections_are_coco_results(
        self, app: Any, talk: Talk, picture: Picture, format: str
    ) -> None:
        async def scenario(client: Any) -> Any:
            headers = {"Content-Type": f"image/{format.lower()}; charset=binary"}
            return await client.post("/predict", content=picture(format=format), headers=headers)

        answer = talk(app, scenario)
        assert answer.status_code == 200
        content = answer.json()
        assert (content["height"], content["width"]) == (60, 120)
        first, second = content["detections"]
        assert first["category_id"] == 7
        assert first["category"] == "square"
        assert first["bbox"] == pytest.approx([20, 10, 40, 40], abs=1)  # JPEG blurs the edge
        assert first["score"] == pytest.approx(0.9)
        assert first["keypoints"] == [29.5, 19.5, 1]  # an index of a pixel
        mask = to_bitmap(first["segmentation"], 60, 120)
        wanted = np.zeros((60, 120))
        wanted[10:50, 20:60] = 1
        assert np.abs(mask - wanted).sum() < 200
        assert (second["category"], second["bbox"]) == ("picture", [0, 0, 120, 60])

    def test_threshold(self, app: Any, talk: Talk, picture: Picture) -> None:
        async def scenario(client: Any) -> list[Any]:
            return [await send(client, picture(), f"?threshold={t}") for t in (0.05, 0.5, 1)]

        counts = [len(answer.json()["detections"]) for answer in talk(app, scenario)]
        assert counts == [2, 1, 0]

    def test_what_is_detected_and_taken(self, app: Any, talk: Talk) -> None:
        content = talk(app, lambda client: client.get("/model")).json()
        assert content["categories"] == [{"id": 7, "name": "square"}, {"id": 90, "name": "picture"}]
        assert content["limits"]["bytes"] == 100_000
        assert content["exif_orientation"] is True

    def test_page_is_all_in_one_file(self, app: Any, talk: Talk) -> None:
        answer = talk(app, lambda client: client.get("/"))
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not re.findall(r"""(?:src|href)=["'](?!data:,)|https?://|@import""", answer.text)

    def test_health_and_metrics(self, app: Any, talk: Talk, picture: Picture, model: Any) -> None:
        async def scenario(client: Any) -> tuple[Any, Any]:
            for body in (picture(), picture(), b"?"):
                await send(client, body)
            return await client.get("/health"), await client.get("/metrics")

        health, metrics = talk(app, scenario)
        assert (health.status_code, health.json()) == (200, {"status": "ok", "requests": 0})
        assert metrics.headers["content-type"].startswith("text/plain")
        for line in (
            'detlite_requests_total{status="200"} 2.0',
            'detlite_requests_total{status="422"} 1.0',
            "detlite_request_seconds_count 2.0",
            "detlite_batch_pictures_sum 2.0",
            "detlite_detections_total 4.0",
            "detlite_requests_in_progress 0.0",
        ):
            assert line in metrics.text.splitlines()
        assert "process_resident_memory_bytes" in metrics.text


def bomb() -> bytes:
    """A PNG of 30,000 x 30,000 pixels in some hundred bytes; its pixels are no data at all."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    small = file.getvalue()
    chunk = b"IHDR" + header
    return small[:12] + chunk + struct.pack(">I", crc32(chunk)) + small[33:]


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body", "query", "headers", "error"),
        [
            (415, b"hello", "", {"Content-Type": "text/plain"}, "media type text/plain"),
            (415, b"hello", "", {"Content-Type": ""}, "media type unknown"),
            (413, bytes(100_001), "", {}, "more than 100000 bytes"),
            (413, bomb(), "", {}, "more than 1000000 pixels"),
            (422, b"", "", {}, "is none of JPEG, PNG, WEBP, BMP, TIFF, GIF, or is damaged"),
            (422, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "", {}, "is none of JPEG"),
            (422, b"\xff\xd8\xff\xe0 no jpeg", "", {}, "the picture cannot be read"),
            (422, b"", "?threshold=high", {}, "threshold is 'high'"),
            (422, b"", "?threshold=nan", {}, "threshold is 'nan'"),
            (422, b"", "?threshold=0.01", {}, "threshold is '0.01'"),
            (422, b"", "?threshold=1.5", {}, "threshold is '1.5'"),
        ],
    )
    def test_status_and_remedy(
        self, app: Any, talk: Talk, model: Any, status: int, body: bytes, query: str,
        headers: dict[str, str], error: str,
    ) -> None:  # fmt: skip
        answer = talk(app, lambda client: send(client, body, query, **headers))
        content = answer.json()
        assert (answer.status_code, content["status"]) == (status, status)
        assert error in content["error"]
        assert re.match(r"(send|give) .{20}", content["what_to_do"])
        assert "bytes:" not in content["error"]
        assert model.batches == []

    def test_a_cut_off_picture(self, app: Any, talk: Talk, picture: Picture) -> None:
        file = picture(400, 400, "JPEG")
        answer = talk(app, lambda client: send(client, file[: len(file) // 2]))
        assert answer.status_code == 422
        assert "damaged or truncated" in answer.json()["error"]

    def test_a_bomb_is_never_decoded(
        self, app: Any, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def decode(*_: Any) -> None:
            raise AssertionError("decoded")

        monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
        assert talk(app, lambda client: send(client, bomb())).status_code == 413

    def test_bytes_are_counted_where_no_length_is_given(
        self, app: Any, talk: Talk, model: Any
    ) -> None:
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while True:
                sent += 10_000
                yield bytes(10_000)

        answer = talk(app, lambda client: send(client, endless()))
        assert answer.status_code == 413
        assert 100_000 < sent <= 500_000

    def test_a_slow_body(self, predictor: Predictor, talk: Talk, picture: Picture) -> None:
        async def slow() -> Any:
            yield picture()[:10]
            await asyncio.sleep(5)

        app = build_app(predictor, Limits(seconds=0.2))
        answer = talk(app, lambda client: send(client, slow()))
        assert answer.status_code == 408
        assert "0.2 seconds" in answer.json()["error"]

    def test_one_too_many_is_refused_at_once_and_the_others_are_answered(
        self, predictor: Predictor, talk: Talk, picture: Picture, model: Any
    ) -> None:
        async def scenario(client: Any) -> tuple[Any, list[Any]]:
            waiting = [asyncio.create_task(send(client, picture())) for _ in range(3)]
            while len(model.batches) == 0:
                await asyncio.sleep(0.01)
            late = await send(client, picture())
            model.gate.set()
            return late, await asyncio.gather(*waiting)

        model.gate.clear()
        app = build_app(predictor, Limits(requests=3, batch=1))
        late, others = talk(app, scenario)
        assert late.status_code == 503
        assert late.headers["retry-after"] == "1"
        assert "3 requests are waiting" in late.json()["error"]
        assert [other.status_code for other in others] == [200] * 3

    def test_too_late(self, predictor: Predictor, talk: Talk, picture: Picture, model: Any) -> None:
        """Those that gave up are not predicted; the next one is."""

        async def scenario(client: Any) -> tuple[list[Any], Any]:
            late = await asyncio.gather(*(send(client, picture()) for _ in range(5)))
            model.gate.set()
            return late, await send(client, picture())

        model.gate.clear()
        app = build_app(predictor, Limits(seconds=0.3, batch=1))
        late, after = talk(app, scenario)
        assert [one.status_code for one in late] == [504] * 5
        assert "0.3 seconds" in late[0].json()["error"]
        assert after.status_code == 200
        assert len(model.batches) == 2

    def test_a_model_that_fails(self, app: Any, talk: Talk, picture: Picture, model: Any) -> None:
        async def scenario(client: Any) -> tuple[Any, Any]:
            model.fails = True
            first = await send(client, picture())
            model.fails = False
            return first, await send(client, picture())

        failed, after = talk(app, scenario)
        assert failed.status_code == 500
        assert failed.json()["error"] == "the model failed"
        assert after.status_code == 200

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/predict", 405), ("GET", "/x", 404)]
    )
    def test_no_such_thing(self, app: Any, talk: Talk, method: str, path: str, status: int) -> None:
        answer = talk(app, lambda client: client.request(method, path))
        assert answer.status_code == answer.json()["status"] == status
        assert "POST a picture to /predict" in answer.json()["what_to_do"]
