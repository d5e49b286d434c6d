"""Test concurrent detection in a stream of images, with a fake predictor."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch import Tensor

from detlite.apps.batch_predict.prediction_pipeline import predict_stream
from detlite.data import DataError
from detlite.inference.prediction import LoadedImage


class MeanPredictor:
    """Predicts the mean of an image, and records the image sizes of each batch."""

    def __init__(self, fails: bool = False, streams: int = 1) -> None:
        self.streams = streams
        self.batches: list[list[tuple[int, ...]]] = []
        self.loaded = 0
        self.fails = fails

    def load(self, image: Any) -> LoadedImage:
        self.loaded += 1
        if isinstance(image, str):
            raise DataError(f"{image}: the image file does not exist")
        return LoadedImage(image, image)

    def padded_size(self, image: LoadedImage) -> tuple[int, ...]:
        return tuple(-(-side // 32) for side in image.network_input.shape[1:])

    def detect(self, loaded: list[LoadedImage]) -> list[Any]:
        if self.fails:
            raise RuntimeError("out of memory")
        self.batches.append([tuple(one.network_input.shape[1:]) for one in loaded])
        return [one.network_input.float().mean() for one in loaded]

    def to_prediction(self, detections: Any, loaded: LoadedImage) -> Any:
        return {"mean": detections.item()}


def numbered_images(*sizes: tuple[int, int]) -> list[Tensor]:
    """Return images whose values are their indices."""
    return [torch.full((3, *size), index, dtype=torch.uint8) for index, size in enumerate(sizes)]


def finish(index: int, image: Tensor, prediction: Any) -> tuple[int, tuple[int, ...], float]:
    return index, tuple(image.shape[1:]), prediction["mean"]


@pytest.mark.parametrize(
    ("batch_size", "threads", "streams"), [(1, 1, 1), (2, 3, 1), (3, 1, 2), (8, 3, 2)]
)
def test_results_are_in_the_order_of_the_images(batch_size, threads, streams):
    """Also the errors of unreadable images."""
    sizes = [(40, 60), (200, 100), (45, 50), (40, 60), (300, 20), (200, 97), (33, 64)] * 3
    predictor: Any = MeanPredictor(streams=streams)
    images: list[Any] = numbered_images(*sizes)
    expected: list[Any] = [(index, size, float(index)) for index, size in enumerate(sizes)]
    for index in (0, 9, 20):
        images[index] = name = f"{index}.png"
        expected[index] = f"{name}: the image file does not exist"
    results = list(predict_stream(predictor, images, finish, batch_size, threads))
    assert [one if isinstance(one, tuple) else str(one) for one in results] == expected
    assert sum(map(len, predictor.batches)) == len(sizes) - 3
    assert max(map(len, predictor.batches)) <= batch_size
    for batch in predictor.batches:  # padded to the same size
        assert len({(-(-h // 32), -(-w // 32)) for h, w in batch}) == 1


def test_batches_contain_similar_sizes():
    """An image waits for a similar one, but not forever."""
    predictor: Any = MeanPredictor()
    sizes = [(40, 60), (200, 100), (45, 50), (40, 60), *[(20, 20)] * 6]
    results = list(predict_stream(predictor, numbered_images(*sizes), finish, batch_size=2))
    assert [index for index, *_ in results] == list(range(10))
    assert predictor.batches == [
        [(40, 60), (45, 50)], [(20, 20)] * 2, [(200, 100)], [(20, 20)] * 2, [(40, 60)],
        [(20, 20)] * 2,
    ]  # fmt: skip


def test_only_a_few_images_are_in_memory():
    predictor: Any = MeanPredictor()
    endless = (torch.zeros(3, 8, 8, dtype=torch.uint8) for _ in count())
    stream = predict_stream(predictor, endless, finish, batch_size=2, threads=2)
    assert len(list(islice(stream, 20))) == 20
    assert predictor.loaded <= 20 + 2 * (2 + 2 * 2)
    stream.close()  # type: ignore[attr-defined]
    assert list(predict_stream(predictor, [], finish)) == []


@pytest.mark.parametrize(("fails", "message"), [(True, "out of memory"), (False, "disk full")])
def test_errors_reach_the_caller(fails, message):
    def broken(*_: Any) -> None:
        raise RuntimeError("disk full")

    predictor: Any = MeanPredictor(fails)
    with pytest.raises(RuntimeError, match=message):
        list(predict_stream(predictor, numbered_images((8, 8), (8, 8)), broken))


def test_two_networks_divide_the_cores():
    """Both detect at a time, with half of the threads each."""
    cores, barrier, threads = torch.get_num_threads(), threading.Barrier(2, timeout=30), []
    predictor: Any = MeanPredictor(streams=2)

    def detect(loaded: list[LoadedImage]) -> list[Any]:
        barrier.wait()
        threads.append(torch.get_num_threads())
        return [image.original.float().mean() for image in loaded]

    predictor.detect = detect
    torch.set_num_threads(4)
    try:
        list(predict_stream(predictor, numbered_images(*[(8, 8)] * 6), finish))
        assert threads == [2] * 6
        with ThreadPoolExecutor() as pool:
            assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(cores)
