"""Images per second from disk and from local servers, with an empty, a filled and no cache.

    python -m benchmarks.data.remote --images 300

Files are read in the order of the dataset. The servers (Python's
http.server and moto's S3 server) run in other processes.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 480, 640


def write_dataset(folder: Path, count: int) -> None:
    """Write JPEGs of smooth noise and an annotation file."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(1, count + 1):
        coarse = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        pixels = np.asarray(image).astype(np.int16) + rng.normal(0, 8, (HEIGHT, WIDTH, 1))
        name = f"{number:06d}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
            folder / "images" / name, quality=90
        )
        images.append({"id": number, "file_name": name, "height": HEIGHT, "width": WIDTH})
        row = {"id": number, "image_id": number, "category_id": 1, "bbox": [10, 10, 90, 90]}
        annotations.append(row)
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "thing"}],
    }
    (folder / "annotations.json").write_text(json.dumps(content))


@contextmanager
def http_server(folder: Path) -> Iterator[str]:
    """Serve a folder in another process and yield its URL."""
    from tests.data.servers import FileServer

    server = FileServer(folder)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    try:
        yield server.url
    finally:
        process.terminate()
        process.join()
        server.server_close()


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Start an S3 server in another process, upload a folder, and yield the bucket's URL."""
    import boto3

    os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    port = 5123
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = boto3.client("s3", endpoint_url=url)
        for _ in range(100):
            try:
                client.create_bucket(Bucket="sets")
                break
            except Exception:
                time.sleep(0.2)
        for path in folder.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), "sets", str(path.relative_to(folder)))
        from fsspec.config import conf

        conf["s3"] = {"endpoint_url": url}
        yield "s3://sets"
    finally:
        process.terminate()
        process.wait()


def rate(read: Callable[[int], object], count: int) -> str:
    """Return a text with the speed and the CPU time of reading `count` images."""
    start, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        read(number)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return f"{count / wall:.0f} images/s, {cpu / count * 1e3:.1f} ms CPU time per image"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=300)
    count = parser.parse_args().images
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["DETLITE_CACHE"] = f"{temporary}/cache"
        measure(Path(temporary) / "files", count)


def measure(folder: Path, count: int) -> None:
    """Print a line for each way to read the dataset."""
    from detlite.data import CocoDataset
    from detlite.data.datasets.options import GIGABYTE, DatasetOptions
    from detlite.data.locations import Location
    from detlite.data.remote.remote_path import RemotePath

    write_dataset(folder, count)
    size = sum(path.stat().st_size for path in (folder / "images").iterdir()) / count / 1e3
    print(f"{count} JPEGs of {WIDTH}x{HEIGHT}, {size:.0f} kB; read and decoded in one process")

    def show(name: str, annotations: Location, images: Location) -> None:
        dataset = CocoDataset(annotations, images, DatasetOptions(masks=False, check_images=False))
        print(f"{name}: {rate(dataset.__getitem__, count)}", flush=True)

    files = folder / "annotations.json", folder / "images"
    show("disk", *files)
    show("disk, again", *files)
    for server in (http_server, s3_server):
        with server(folder) as url:
            shutil.rmtree(os.environ["DETLITE_CACHE"])
            protocol = url.partition(":")[0]
            annotations = RemotePath(f"{url}/annotations.json")
            for cache in ("cold", "warm"):
                images = RemotePath(f"{url}/images", GIGABYTE)
                show(f"{protocol}, {cache} cache", annotations, images)
            show(f"{protocol}, no cache", annotations, RemotePath(f"{url}/images"))


if __name__ == "__main__":
    main()
