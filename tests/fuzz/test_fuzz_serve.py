"""Almost valid requests receive a response with the problem, and the server continues."""

import asyncio
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("httpx")
pytest.importorskip("hypercorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("python_multipart")

import httpx

from detlite.apps.serve import server
from detlite.apps.serve.app import build_app
from detlite.apps.serve.requests import MEDIA_TYPES, Limits
from detlite.data.images.pixels import ImageOptions
from detlite.inference.options import InferenceOptions
from detlite.inference.predictor import Predictor
from tests.apps.serve.clients import serving
from tests.builders import BrightSquare, square_image
from tests.fuzz.inputs import mutated_bytes

FORM = b"multipart/form-data; boundary=b"
STATUSES = (200, 400, 403, 405, 408, 413, 415, 422)
OPTIONS = InferenceOptions(images=ImageOptions(max_pixels=1_000_000))


def image_file(format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(square_image(60, 80)).save(buffer, format)
    return buffer.getvalue()


IMAGES = list(map(image_file, ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")))
FORMS = [
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n'
    b"Content-Type: image/png\r\n\r\n" + IMAGES[0] + b"\r\n--b--\r\n",
    b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\ntext\r\n'
    b'--b\r\nContent-Disposition: form-data; name=f; filename=a\r\n\r\nx\r\n--b--\r\n',
]  # fmt: skip
LOCAL, GIF = b" HTTP/1.1\r\nHost: localhost\r\n", b"Content-Type: image/gif\r\n"
REQUESTS = [
    b"POST /predict?threshold=0.5" + LOCAL + GIF + b"Content-Length: %d\r\n\r\n" % len(IMAGES[5])
    + IMAGES[5],
    b"POST /predict" + LOCAL + GIF + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(IMAGES[5])
    + IMAGES[5] + b"\r\n0\r\n\r\n",
    b"GET /health" + LOCAL + b"\r\nGET /model" + LOCAL + b"\r\n",
    b"GET /" + LOCAL + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve in a thread, and yield the port."""
    predictor = Predictor(BrightSquare(), 60, 100, score_thresh=0.05, rle=True, options=OPTIONS)
    limits = Limits(bytes=100_000, pixels=1_000_000, seconds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_IDLE_SECONDS", 0.3)
        with serving(build_app(predictor, limits)) as port:
            yield port


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as one:
        yield one


def post(client: httpx.Client, body: bytes, media_type: bytes | str, query: str = "") -> None:
    """Send a request to /predict, and check the response."""
    try:
        headers = httpx.Headers({"Content-Type": media_type})
        response = client.post(f"/predict{query}", content=body, headers=headers)
    except httpx.LocalProtocolError:  # not a header
        return
    if response.status_code == 400 and response.headers["content-type"] != "application/json":
        return  # from hypercorn
    content = json.loads(response.content)
    assert response.status_code in STATUSES, content
    if response.status_code == 200:
        assert {"width", "height", "detections"} <= content.keys()
    else:
        assert content["what_to_do"]
        assert 0 < len(content["error"]) < 1000


@given(
    body=st.sampled_from(IMAGES).flatmap(mutated_bytes),
    media_type=st.sampled_from(MEDIA_TYPES),
    query=st.sampled_from(["", "?threshold=0.5", "?threshold=1e999", "?threshold=%00", "?x"]),
)
@example(body=IMAGES[1], media_type=MEDIA_TYPES[0], query="")
@pytest.mark.slow
def test_images(body, media_type, query, client, bounded):
    with bounded():
        post(client, body, media_type, query)


@given(
    body=st.sampled_from(FORMS).flatmap(mutated_bytes),
    media_type=st.just(FORM) | mutated_bytes(FORM, max_changes=1),
)
@example(body=FORMS[0], media_type=FORM)
@example(body=FORMS[0], media_type=b'multipart/form-data; boundary=""')
@example(body=FORMS[0], media_type=FORM + b"; charset=x")
@pytest.mark.slow
def test_forms(body, media_type, client, bounded):
    with bounded():
        post(client, body, media_type)


@given(text=st.sampled_from(REQUESTS).flatmap(mutated_bytes))
@example(text=REQUESTS[0])
@example(text=b"\r\n" * 1000)
@pytest.mark.slow
def test_bytes_of_requests(text, port, client, bounded):
    connect = socket.create_connection(("127.0.0.1", port), timeout=10)
    with connect as connection, suppress(OSError), bounded():
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            assert b" 500 " not in part.partition(b"\r\n")[0]
    assert client.get("/health").json()["status"] == "ok"


def test_clients_that_disconnect_during_prediction(port, client):
    async def send_and_leave() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUESTS[0])
        await writer.drain()
        writer.transport.abort()

    async def send_all() -> None:
        await asyncio.gather(*(send_and_leave() for _ in range(50)))

    asyncio.run(send_all())
    post(client, IMAGES[0], "image/png")
    wait: Any = threading.Event().wait
    assert any(client.get("/health").json()["requests"] == 0 or wait(0.1) for _ in range(50))
