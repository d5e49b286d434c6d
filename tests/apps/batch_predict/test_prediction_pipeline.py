"""Many pictures, one after the other."""

from __future__ import annotations

import threading
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch import Tensor

from detlite.apps.batch_predict.prediction_pipeline import predict_stream
from detlite.data import DataError
from detlite.inference.predictor import LoadedImage


class Mean:
    """Stands for a Predictor: finds the mean of a picture, and notes the batches."""

    def __init__(self, fails: bool = False, streams: int = 1) -> None:
        self.streams = streams
        self.batches: list[list[tuple[int, ...]]] = []
        self.loaded = 0
        self.fails = fails

    def load(self, picture: Any) -> LoadedImage:
        self.loaded += 1
        if isinstance(picture, str):
            raise DataError(f"{picture}: no such picture file")
        return LoadedImage(picture, picture)

    def detect(self, loaded: list[LoadedImage]) -> list[Any]:
        if self.fails:
            raise RuntimeError("out of memory")
        self.batches.append([tuple(one.network_input.shape[1:]) for one in loaded])
        return [one.network_input.float().mean() for one in loaded]

    def to_prediction(self, found: Any, loaded: LoadedImage) -> Any:
        return {"mean": found.item()}


def pictures(*sizes: tuple[int, int]) -> list[Tensor]:
    return [torch.full((3, *size), index, dtype=torch.uint8) for index, size in enumerate(sizes)]


def then(place: int, picture: Tensor, found: Any) -> tuple[int, tuple[int, ...], float]:
    return place, tuple(picture.shape[1:]), found["mean"]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("streams", [1, 2])
def test_results_come_in_the_order_of_the_pictures(
    batch_size: int, threads: int, streams: int
) -> None:
    sizes = [(40, 60), (200, 100), (45, 50), (40, 60), (300, 20), (200, 97), (33, 64)] * 3
    predictor = Mean(streams=streams)
    found = list(predict_stream(predictor, pictures(*sizes), then, batch_size, threads))
    assert found == [(place, size, float(place)) for place, size in enumerate(sizes)]
    assert sum(map(len, predictor.batches)) == len(sizes)
    assert max(map(len, predictor.batches)) <= batch_size
    for batch in predictor.batches:  # padded to one size
        assert len({(-(-h // 32), -(-w // 32)) for h, w in batch}) == 1


def test_like_sizes_share_a_batch_and_others_do_not() -> None:
    predictor = Mean()
    read = threading.Event()
    load = predictor.load

    def all_read(picture: Any) -> LoadedImage:
        loaded = load(picture)
        if predictor.loaded == 4:
            read.set()
        read.wait(10)
        return loaded

    predictor.load = all_read
    sizes = [(40, 60), (200, 100), (45, 50), (40, 60)]
    list(predict_stream(predictor, pictures(*sizes), then, batch_size=2, threads=4))
    assert sorted(map(len, predictor.batches)) == [1, 1, 2]


def test_unreadable_pictures_are_reported_in_their_place() -> None:
    mixed: list[Any] = ["gone.png", *pictures((8, 8), (8, 8)), "lost.png"]
    found = list(predict_stream(Mean(), mixed, then, batch_size=2))
    assert [str(one) for one in found if isinstance(one, DataError)] == [
        "gone.png: no such picture file",
        "lost.png: no such picture file",
    ]
    assert [one[0] for one in found if not isinstance(one, DataError)] == [1, 2]


def test_memory_is_that_of_a_few_pictures() -> None:
    predictor = Mean()
    endless = (torch.zeros(3, 8, 8, dtype=torch.uint8) for _ in count())
    stream = predict_stream(predictor, endless, then, batch_size=2, threads=2)
    assert len(list(islice(stream, 20))) == 20
    assert predictor.loaded <= 20 + 2 * (2 + 2 * 2)
    stream.close()
    assert list(predict_stream(predictor, [], then)) == []


@pytest.mark.parametrize("place", ["network", "then"])
def test_errors_reach_the_caller(place: str) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match=r"disk full|out of memory"):
        list(predict_stream(Mean(place == "network"), pictures((8, 8), (8, 8)), broken))


def test_an_end_waits_for_no_picture_that_is_not_being_read() -> None:
    go, begun = threading.Event(), []

    def load(number: int) -> LoadedImage:
        begun.append(number)
        assert number == 0 or go.wait(30)  # as for a server that is slow
        picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
        return LoadedImage(picture, picture)

    threading.Timer(0.5, go.set).start()
    with pytest.raises(RuntimeError, match="out of memory"):
        list(predict_stream(Mean(fails=True), count(), then, threads=1, load=load))
    assert begun in ([0], [0, 1])


def test_pictures_are_read_by_another_reader() -> None:
    def load(name: str) -> LoadedImage:
        if name == "":
            raise DataError("nothing there")
        picture = torch.full((3, 8, 8), int(name), dtype=torch.uint8)
        return LoadedImage(picture, picture)

    predictor = Mean()
    found = list(predict_stream(predictor, ["5", "", "7"], then, load=load))
    assert [str(one) if isinstance(one, DataError) else one[2] for one in found] == [
        5.0, "nothing there", 7.0,
    ]  # fmt: skip
    assert predictor.loaded == 0


class Pair(Mean):
    """Ends a call of the network only when another one runs; notes the threads that torch has."""

    def __init__(self) -> None:
        super().__init__(streams=2)
        self.meeting = threading.Barrier(2, timeout=30)
        self.shares: list[int] = []

    def detect(self, loaded: list[LoadedImage]) -> list[Any]:
        self.meeting.wait()
        self.shares.append(torch.get_num_threads())
        return super().detect(loaded)


def test_two_networks_share_the_cores() -> None:
    cores = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        predictor = Pair()
        found = list(predict_stream(predictor, pictures(*[(8, 8)] * 6), then))
        assert [one[0] for one in found if not isinstance(one, DataError)] == list(range(6))
        assert predictor.shares == [2] * 6
        after: list[int] = []
        late = threading.Thread(target=lambda: after.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert [*after, torch.get_num_threads()] == [4, 4]
    finally:
        torch.set_num_threads(cores)
