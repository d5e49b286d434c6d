"""Test the responses of the service in one process."""

import asyncio
import io
import re
import struct
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from PIL import Image, ImageFile

from detlite.inference.predictor import Predictor
from detlite.structures.masks.formats import to_bitmap

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from detlite.apps.serve.app import build_app
from detlite.apps.serve.requests import Limits

PNG = {"Content-Type": "image/png"}


async def send(client: Any, body: Any, query: str = "", **headers: str) -> Any:
    return await client.post(f"/predict{query}", content=body, headers={**PNG, **headers})


@pytest.fixture
def app(predictor: Predictor) -> Any:
    return build_app(predictor, Limits(bytes=100_000, pixels=1_000_000, seconds=20, batch=4))


class TestDetections:
    @pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
    def test_coco_results(self, app, talk, image_file, format):
        async def scenario(client: Any) -> Any:
            headers = {"Content-Type": f"image/{format.lower()}; charset=binary"}
            return await client.post("/predict", content=image_file(format=format), headers=headers)

        response = talk(app, scenario)
        assert response.status_code == 200
        content = response.json()
        assert (content["height"], content["width"]) == (60, 120)
        first, second = content["detections"]
        assert first["category_id"] == 7
        assert first["category"] == "square"
        assert first["bbox"] == pytest.approx([20, 10, 40, 40], abs=1)  # JPEG blurs the edge
        assert first["score"] == pytest.approx(0.9)
        assert first["keypoints"] == [29.5, 19.5, 1]  # relative to the center of a pixel
        expected = np.zeros((60, 120))
        expected[10:50, 20:60] = 1
        mask = to_bitmap(first["segmentation"], 60, 120)
        assert np.abs(mask - expected).sum() < 200
        assert (second["category"], second["bbox"]) == ("image", [0, 0, 120, 60])

    def test_thresholds_and_forms(self, app, talk, image_file):
        async def scenario(client: Any) -> list[Any]:
            form = {"files": {"file": ("a.png", image_file())}}
            sent = [await send(client, image_file(), f"?threshold={t}") for t in (0.05, 0.5, 1)]
            return [*sent, await client.post("/predict?threshold=0.5", **form)]

        counts = [len(response.json()["detections"]) for response in talk(app, scenario)]
        assert counts == [2, 1, 0, 1]

    def test_pages_of_other_origins(self, predictor, talk, image_file):
        async def scenario(client: Any) -> list[Any]:
            origin = {"Origin": "https://own.example"}
            return [
                await client.options(
                    "/predict", headers=origin | {"Access-Control-Request-Method": "POST"}
                ),
                await send(client, image_file(), **origin),
                await send(client, b"damaged", **origin),
            ]

        app = build_app(predictor, Limits(origins=("https://own.example",)))
        responses = talk(app, scenario)
        assert [response.status_code for response in responses] == [200, 200, 422]
        allowed = {response.headers["access-control-allow-origin"] for response in responses}
        assert allowed == {"https://own.example"}
        others = talk(build_app(predictor, Limits()), scenario)
        assert [response.status_code for response in others] == [405, 403, 403]
        assert not any("access-control-allow-origin" in other.headers for other in others)

    @pytest.mark.parametrize("channels", [1, 5])
    def test_other_numbers_of_channels(self, model, talk, channels):
        tifffile = pytest.importorskip("tifffile", reason="needs the extra tiff")
        model.channels = channels
        predictor = Predictor(model, 60, 1000, score_thresh=0.05, rle=True)
        pages = np.zeros((channels, 60, 120), np.uint8)
        pages[:, 10:50, 20:60] = 255
        tiff, png = io.BytesIO(), io.BytesIO()
        tifffile.imwrite(tiff, pages, photometric="minisblack")
        Image.new("RGB", (9, 9), "red").save(png, "PNG")

        async def scenario(client: Any) -> list[Any]:
            headers = {"Content-Type": "image/tiff"}
            return [
                await send(client, tiff.getvalue(), **headers),
                await send(client, png.getvalue()),
            ]

        found, refused = talk(build_app(predictor, Limits()), scenario)
        assert found.json()["detections"][0]["bbox"] == [20, 10, 40, 40]
        assert refused.status_code == 422
        assert f"has 3 channels, but the model expects {channels}" in refused.json()["error"]
        assert "the channels of the model" in refused.json()["what_to_do"]


NAMED = "Content-Disposition: form-data; name=f"
FILE = f"{NAMED}; filename=a\r\n\r\n"
FORM = "multipart/form-data; boundary=b"


def form(*parts: str) -> bytes:
    return "".join(f"--b\r\n{part}\r\n" for part in parts).encode() + b"--b--\r\n"


class TestInformation:
    def test_unknown_requests(self, app, talk):
        for path, status in (("/predict", 405), ("/x", 404)):
            response = talk(app, lambda client, path=path: client.get(path))
            assert response.status_code == response.json()["status"] == status
            assert "POST an image to /predict" in response.json()["what_to_do"]

    def test_model_and_limits(self, app, talk):
        content = talk(app, lambda client: client.get("/model")).json()
        assert content["categories"] == [{"id": 7, "name": "square"}, {"id": 90, "name": "image"}]
        assert content["limits"]["bytes"] == 100_000
        assert content["channels"] == 3
        assert content["exif_orientation"] is True

    def test_page_is_one_file(self, app, talk):
        response = talk(app, lambda client: client.get("/"))
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert not re.findall(r"""(?:src|href)=["'](?!data:,)|https?://|@import""", response.text)

    def test_health_and_metrics(self, app, talk, image_file):
        async def scenario(client: Any) -> tuple[Any, ...]:
            before = await client.get("/metrics")
            for body in (image_file(), image_file(), b"?"):
                await send(client, body)
            return before, await client.get("/metrics"), await client.get("/health")

        def value(metrics: Any, name: str) -> float:
            found = re.search(rf"^{re.escape(name)} (\S+)$", metrics.text, re.MULTILINE)
            return float(found[1]) if found else 0.0

        before, after, health = talk(app, scenario)
        assert (health.status_code, health.json()) == (200, {"status": "ok", "requests": 0})
        assert after.headers["content-type"].startswith("text/plain")
        for name, change in (
            ('detlite_requests_total{status="200"}', 2),
            ('detlite_requests_total{status="422"}', 1),
            ("detlite_request_seconds_count", 2),
            ("detlite_batch_images_sum", 2),
            ("detlite_batch_seconds_count", 2),
            ("detlite_detections_total", 4),
            ("detlite_requests_in_progress", 0),
        ):
            assert value(after, name) - value(before, name) == change
        assert value(after, "process_resident_memory_bytes") > 0

    def test_only_known_hosts_are_answered(self, app, talk):
        async def scenario(client: Any) -> list[Any]:
            hosts = ("localhost:80", "LOCALHOST", "127.0.0.1:9", "[::1]:9", "a.example", "", "[::")
            asked = [("/health", host) for host in hosts]
            asked += [(path, "a.example") for path in ("/", "/model", "/metrics")]
            return [await client.get(path, headers={"Host": host}) for path, host in asked]

        responses = talk(app, scenario)
        assert [one.status_code for one in responses] == [200] * 4 + [403] * 6
        assert "start it with --allow-host" in responses[-1].json()["what_to_do"]


def huge_png() -> bytes:
    """Return a PNG file of 100 bytes whose header claims 30,000 x 30,000 pixels."""
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
            (413, huge_png(), "", {}, "more than 1000000 pixels"),
            (422, b"", "", {}, "JPEG, PNG, WEBP, BMP, TIFF, GIF"),
            (422, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "", {}, "none of JPEG"),
            (422, b"\xff\xd8\xff\xe0 no jpeg", "", {}, "the image cannot be read: the image is"),
            (422, b"", "", {"Content-Type": FORM[:19]}, "Missing boundary"),
            (422, b"text", "", {"Content-Type": FORM}, "Invalid multipart data"),
            (422, form(), "", {"Content-Type": FORM}, "contains no file"),
            (422, form(f"{NAMED}\r\n\r\nx"), "", {"Content-Type": FORM}, "Too many fields"),
            (422, form(FILE + "x", FILE + "x"), "", {"Content-Type": FORM}, "Too many files"),
            (422, form(FILE + "x"), "", {"Content-Type": FORM}, "the image cannot be read"),
            (413, form(FILE + 100_001 * "x"), "", {"Content-Type": FORM}, "more than 100000 bytes"),
            (422, b"", "?threshold=high", {}, "the query is 'threshold=high'"),
            (422, b"", "?threshold=nan", {}, "the query is 'threshold=nan'"),
            (422, b"", "?threshold=0.01", {}, "the query is 'threshold=0.01'"),
            (422, b"", "?threshold=1.5", {}, "the query is 'threshold=1.5'"),
            (422, b"", "?treshold=0.9", {}, "the query is 'treshold=0.9'"),
            (422, b"", "?threshold=0.9&threshold=0.1", {}, "the query is 'threshold=0.9&thresh"),
            (415, b"", "", {"Content-Type": 1100 * "x"}, "xxx ..."),
            (415, b"", "", {"Content-Encoding": "gzip"}, "the encoding gzip, which is not"),
            (403, b"", "", {"Host": "localhost.example:80"}, "the host 'localhost.example'"),
            (403, b"", "", {"Origin": "https://other.example"}, "pages of https://other.example"),
            (403, b"", "", {"Origin": "null", "Content-Type": FORM}, "pages of null may not"),
            (403, b"", "", {"Origin": "http://localhost:81"}, "pages of http://localhost:81"),
        ],
    )
    def test_status_and_remedy(
        self, app, talk, model, monkeypatch, status, body, query, headers, error
    ):
        if status == 413:  # not decoded
            monkeypatch.setattr(ImageFile.ImageFile, "load", pytest.fail)
        response = talk(app, lambda client: send(client, body, query, **headers))
        content = response.json()
        assert (response.status_code, content["status"]) == (status, status)
        assert error in content["error"]
        assert "bytes:" not in content["error"]
        assert len(content["error"]) < 600
        assert model.sizes == []

    def test_long_body_without_a_content_length(self, app, talk):
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while True:
                sent += 10_000
                yield bytes(10_000)

        response = talk(app, lambda client: send(client, endless()))
        assert response.status_code == 413
        assert 100_000 < sent <= 500_000

    def test_slow_body(self, predictor, talk, image_file):
        async def slow() -> Any:
            yield image_file()[:10]
            await asyncio.sleep(5)

        app = build_app(predictor, Limits(seconds=0.4))
        response = talk(app, lambda client: send(client, slow()))
        assert response.status_code == 408
        assert "0.2 seconds" in response.json()["error"]

    def test_too_many_requests(self, predictor, talk, image_file, model):
        """The request over the limit is refused immediately; the others are answered."""

        async def scenario(client: Any) -> tuple[Any, list[Any]]:
            waiting = [asyncio.create_task(send(client, image_file())) for _ in range(3)]
            while len(model.sizes) == 0:
                await asyncio.sleep(0.01)
            last = await send(client, image_file())
            model.gate.set()
            return last, await asyncio.gather(*waiting)

        model.gate.clear()
        app = build_app(predictor, Limits(requests=3, batch=1))
        last, others = talk(app, scenario)
        assert last.status_code == 503
        assert last.headers["retry-after"] == "1"
        assert "3 requests are waiting" in last.json()["error"]
        assert [other.status_code for other in others] == [200] * 3

    def test_memory_of_arriving_bodies(self, predictor, talk, image_file):
        """Two bodies of 600 bytes that are stuck leave no room for a third one."""

        async def stuck() -> Any:
            yield bytes(600)
            await asyncio.sleep(1)

        async def scenario(client: Any) -> list[Any]:
            held = [asyncio.create_task(send(client, stuck())) for _ in range(2)]
            await asyncio.sleep(0.1)
            third = await send(client, image_file())
            await asyncio.gather(*held)
            return [third, await send(client, image_file())]

        limits = Limits(requests=1, bytes=1000, seconds=1)
        third, after = talk(build_app(predictor, limits), scenario)
        assert (third.status_code, after.status_code) == (503, 200)
        assert "too many images are arriving" in third.json()["error"]

    def test_timeout(self, predictor, talk, image_file, model):
        """Images of expired requests are not predicted; the next request is answered."""

        async def scenario(client: Any) -> tuple[list[Any], Any]:
            expired = await asyncio.gather(*(send(client, image_file()) for _ in range(5)))
            model.gate.set()
            return expired, await send(client, image_file())

        model.gate.clear()
        app = build_app(predictor, Limits(seconds=0.3, batch=1))
        expired, after = talk(app, scenario)
        assert [response.status_code for response in expired] == [504] * 5
        assert "0.3 seconds" in expired[0].json()["error"]
        assert after.status_code == 200
        assert len(model.sizes) == 2

    def test_failing_model(self, app, talk, image_file, model):
        async def scenario(client: Any) -> list[Any]:
            responses = []
            for model.fails in (True, False):
                responses.append(await send(client, image_file()))
            return responses

        failed, after = talk(app, scenario)
        assert (failed.status_code, after.status_code) == (500, 200)
        assert failed.json()["error"] == "the model failed"
