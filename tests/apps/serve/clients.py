"""Send requests of many clients to a real server: check the responses, measure time and memory.

    python tests/apps/serve/clients.py --weights model_final.pth --seconds 60 --clients 8

Each client sends one image after another, each of another size, which the response repeats.
"""

import argparse
import asyncio
import http.client
import io
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from detlite.apps.serve.server import run_app


@dataclass
class Outcome:
    """Results of all clients.

    Attributes:
        sent: number of requests.
        statuses: number of responses by status; "lost" counts requests without one.
        wrong: number of responses to another image.
        seconds: time of each response.
        memory: megabytes of the server process, about once a second.
    """

    sent: int = 0
    statuses: Counter[int | str] = field(default_factory=Counter)
    wrong: int = 0
    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def start_server(weights: str, *options: str) -> tuple[subprocess.Popen[str], int]:
    """Start a server process on a free port, wait until it listens, return both."""
    command = [sys.executable, "-m", "detlite", "serve", "--weights", weights, "--port", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r":(\d+)$", line.strip())
    assert match, f"no address: {line!r}"
    return process, int(match[1])


@contextmanager
def serving(app: Any, seconds: float = 60.0) -> Iterator[int]:
    """Serve an application in a thread, and yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    port = listener.getsockname()[1]
    run = run_app(app, listener, seconds, stop.wait)
    thread = threading.Thread(target=loop.run_until_complete, args=(run,))
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def noise_jpeg(height: int, width: int) -> bytes:
    """Return a JPEG file of noise in large blocks."""
    rng = np.random.default_rng(height * 10_000 + width)
    blocks = rng.integers(0, 256, (-(-height // 16), -(-width // 16), 3), dtype=np.uint8)
    pixels = blocks.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def post(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, dict]:
    """Send an image and return the status and the content of the response."""
    connection.request("POST", "/predict", body, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def resident_megabytes(port: int) -> float:
    """Return the memory of the server process, from /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    match = re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
    assert match
    return float(match[1]) / 1e6


def run_clients(port: int, seconds: float, clients: int) -> Outcome:
    """Let clients send one image after another for some seconds."""
    outcome, lock = Outcome(), threading.Lock()
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        random_size = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while time.monotonic() < end:
            height, width = random_size.randint(40, 400), random_size.randint(40, 400)
            body, start = noise_jpeg(height, width), time.monotonic()
            try:
                status, content = post(connection, body)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                connection.close()
                status, content = "lost", {}
            with lock:
                outcome.sent += 1
                outcome.statuses[status] += 1
                outcome.seconds.append(time.monotonic() - start)
                if status == 200:
                    outcome.wrong += (content["height"], content["width"]) != (height, width)
        connection.close()

    with ThreadPoolExecutor(clients) as threads:
        running = [threads.submit(client, number) for number in range(clients)]
        while wait(running, min(1.0, seconds / 10)).not_done:
            outcome.memory.append(resident_megabytes(port))
    for one in running:
        one.result()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser("clients.py", description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("opts", nargs="*")
    args = parser.parse_intermixed_args()
    process, port = start_server(args.weights, *args.opts)
    try:
        outcome = run_clients(port, args.seconds, args.clients)
    finally:
        process.terminate()
        status = process.wait(120)
    print(f"{outcome.sent} requests: {dict(outcome.statuses)}, {outcome.wrong} other images")
    print("seconds: median {:.3f}, 99 % {:.3f}".format(*np.quantile(outcome.seconds, (0.5, 0.99))))
    tenths = [round(float(np.mean(part))) for part in np.array_split(outcome.memory, 10)]
    print(f"memory in MB, mean of each tenth of the time: {tenths}")
    print(f"exit status of the server after SIGTERM: {status}")
    return 1 if outcome.wrong or outcome.statuses.keys() - {200} or status else 0


if __name__ == "__main__":
    sys.exit(main())
