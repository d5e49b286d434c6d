"""Loaders: reproducible batches for any number of processes, and readable errors."""

import itertools
import multiprocessing
import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

from detlite import distributed
from detlite.config import ConfigError
from detlite.data.datasets.build import build_dataset, build_train_dataset
from detlite.data.loading.batch_loader import explain_dead_loader, worker_count
from detlite.data.loading.loader import build_test_loader, build_train_loader
from detlite.data.transforms.tiles import TrainingTiles
from detlite.errors import LoaderProcessError
from detlite.files.errors import DataError
from tests.builders import run_python

ROOT = Path(__file__).parents[3]


def equal(one, other):
    leaves, structure = tree_flatten(one)
    others, other_structure = tree_flatten(other)
    same = (torch.equal(*map(torch.as_tensor, pair)) for pair in zip(leaves, others, strict=False))
    return structure == other_structure and all(same)


def take(loader, count):
    return list(itertools.islice(loader, count))


@pytest.fixture
def training(content, write_set, small_cfg):
    """`training(*opts)`: return config and training set."""
    write_set(content)

    def build(*opts):
        cfg = small_cfg("INPUT.VERTICAL_FLIP_PROB_TRAIN", 0.5, *opts)
        return cfg, build_train_dataset(cfg)

    return build


STRONG = (
    "INPUT.COPY_PASTE_PROB", 0.7, "INPUT.ROTATION", 30.0, "INPUT.SATURATION", 0.5, "INPUT.HUE", 0.1,
)  # fmt: skip
REPEATED = "DATALOADER.REPEAT_THRESHOLD", 0.98, "DATALOADER.ASPECT_RATIO_GROUPING", False


@pytest.mark.parametrize(
    "opts", [(), STRONG, REPEATED, ("INPUT.TILE", 16, "INPUT.MIN_SIZE_TRAIN", (32,))]
)
def test_batches_are_a_function_of_seed_and_iteration(training, caplog, opts):
    caplog.set_level("INFO")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    straight = take(build_train_loader(*training(*opts)), 60 if opts == REPEATED else 18)
    assert torch.equal(before, torch.get_rng_state())
    workers = training(*opts, "DATALOADER.NUM_WORKERS", 2)
    assert equal(straight[13:18], take(build_train_loader(*workers, start_iter=13), 5))
    assert not equal(straight[:7], take(build_train_loader(*training(*opts, "SEED", 1)), 7))
    pairs = [pair for batch in straight for pair in zip(*batch, strict=True)]
    labels = {(target["image_id"], k) for _, target in pairs for k in target["labels"].tolist()}
    assert labels - {(11, 2)} == {(10, 1), (10, 2), (11, 1)}
    assert ((11, 2) in labels) == (opts == STRONG)  # only pasted: image 11 has no cat
    for image, target in pairs:
        assert (image.dtype, image.shape[0]) == (torch.uint8, 3)
        assert target["masks"].bitmaps(*image.shape[1:]).any() or not len(target["boxes"])
    if opts == REPEATED:  # both images have a dog and one has a cat: sqrt(0.98 / 0.5) = 1.4 times
        ids = [target["image_id"] for _, target in pairs]
        assert abs(ids.count(10) - 120 * 1.4 / 2.4) <= 1
        assert "1 of 2 images are repeated, at most 1.4 times; an epoch has 2 ima" in caplog.text
    if "INPUT.TILE" in opts:
        assert "INPUT.TILE is 16, but TEST.TILE is 0" in caplog.text
        assert re.search(r"INPUT\.TILE 16: an epoch has \d+ tiles of 2 images", caplog.text)
        # An object is too large for tiles, so its image of 32 x 16 pixels is trained whole, too.
        assert {tuple(image.shape) for image, _ in pairs} == {(3, 32, 32), (3, 64, 32)}


@pytest.mark.parametrize(
    ("cores", "processes", "count"), [(1, 1, 1), (2, 1, 2), (8, 1, 4), (4, 2, 2)]
)
def test_default_worker_processes_fit_the_cores(small_cfg, monkeypatch, cores, processes, count):
    monkeypatch.setattr("detlite.data.loading.batch_loader.usable_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert worker_count(small_cfg("DATALOADER.NUM_WORKERS", None)) == count
    assert worker_count(small_cfg("DATALOADER.NUM_WORKERS", 9)) == 9


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tile", [0, 32])
def test_images_kept_in_memory_have_the_same_pixels(training, workers, tile):
    opts = ("DATALOADER.NUM_WORKERS", workers, "INPUT.TILE", tile, "TEST.TILE", tile)
    expected = take(build_train_loader(*training(*opts)), 12)
    assert equal(expected, take(build_train_loader(*training(*opts, "DATALOADER.CACHE", 0.1)), 12))


def test_aspect_ratio_grouping(training):
    for images, _ in take(build_train_loader(*training()), 6):
        assert len({image.shape[1] < image.shape[2] for image in images}) == 1
    mixed = take(build_train_loader(*training("DATALOADER.ASPECT_RATIO_GROUPING", False)), 6)
    assert any(len({image.shape[1] < image.shape[2] for image in batch[0]}) == 2 for batch in mixed)


@pytest.mark.parametrize("options", [("MODEL.MASK_ON", False), ("MODEL.LOAD_PROPOSALS", True)])
def test_pasting_needs_masks_and_no_proposals(training, options):
    cfg, dataset = training("INPUT.COPY_PASTE_PROB", 0.5)
    other = cfg.clone()
    other.merge_from_list(list(options))
    with pytest.raises(ConfigError, match=r"INPUT.COPY_PASTE_PROB is 0.5, .*MODEL.LOAD_PROP"):
        build_train_loader(other, dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_covers_each_image_once_by_size(content, write_set, small_cfg, workers):
    write_set(content)
    cfg = small_cfg("DATALOADER.NUM_WORKERS", workers, "TEST.IMS_PER_BATCH", 3)
    loader = build_test_loader(cfg, build_dataset(cfg, "small", train=False))
    assert len(loader) == 2
    for _ in range(2):  # a loader can be reused
        pairs = [pair for images, targets in loader for pair in zip(images, targets, strict=True)]
        assert [target["image_id"] for _, target in pairs] == [11, 13, 10, 12]
        shapes = [tuple(image.shape[1:]) for image, _ in pairs]
        assert shapes == [(40, 20), (20, 30), (20, 27), (20, 20)]
        assert [target["size"] for _, target in pairs] == [(40, 20), (16, 24), (30, 40), (16, 16)]
        assert [images.padded_size for images, _ in loader] == [(40, 30), (20, 20)]


def test_processes_divide_training_batches(training, monkeypatch):
    cfg, dataset = training()
    alone = take(build_train_loader(cfg, dataset), 4)
    shares = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(take(build_train_loader(cfg, dataset), 4))
    for whole, first, second in zip(alone, *shares, strict=True):
        assert equal(whole[0], first[0] + second[0])
        assert equal(whole[1], first[1] + second[1])


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_processes_divide_evaluation_evenly(training, monkeypatch, processes):
    cfg, _ = training("TEST.IMS_PER_BATCH", 4 * processes, "INPUT.MAX_SIZE_TEST", 30)
    test_set = build_dataset(cfg, "small", train=False)
    shares = []
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    for rank in range(processes):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        batches = [*build_test_loader(cfg, test_set)]
        shares.append([target["image_id"] for _, batch in batches for target in batch])
        # 30 x 40, 40 x 20, 16 x 16 and 16 x 24 within 20 to 30 pixels, in one joint batch
        assert all(images.padded_size == (30, 30) for images, _ in batches)
    assert sorted(itertools.chain(*shares)) == [10, 11, 12, 13]
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("key", "build"),
    [("SOLVER.IMS_PER_BATCH", build_train_loader), ("TEST.IMS_PER_BATCH", build_test_loader)],
)
def test_indivisible_batch_size(training, monkeypatch, key, build):
    cfg, dataset = training(key, 3)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ConfigError, match=f"{key} is 3, .* make it a multiple of the 2 processes"):
        build(cfg, dataset)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_errors_keep_their_message(training, tmp_path, workers):
    cfg, dataset = training("DATALOADER.NUM_WORKERS", workers)
    image = tmp_path / "small" / "images" / "a.png"
    image.write_bytes(image.read_bytes()[:300])
    with pytest.raises(DataError, match=r"a.png: the image is damaged .* \(image id 10\)$"):
        take(build_train_loader(cfg, dataset), 4)


def kill_loader():
    """Kill the loader process that was started last, and wait until torch raises."""
    os.kill(max(process.pid for process in multiprocessing.active_children()), signal.SIGKILL)
    try:
        time.sleep(20)
    except RuntimeError:  # as torch, which looks for an operator
        raise AttributeError("no such operator") from None


def test_a_loader_process_that_dies(training):
    message = r"^a loader process died, probably because memory was full \(DataLoader .*--resume$"
    batches = iter(build_train_loader(*training("DATALOADER.NUM_WORKERS", 1)))
    next(batches)
    with pytest.raises(LoaderProcessError, match=message), explain_dead_loader():
        kill_loader()
    with pytest.raises(RuntimeError, match=r"^mine$"), explain_dead_loader():
        raise RuntimeError("mine")


def test_a_loader_process_that_dies_while_it_passes_a_batch(training, monkeypatch):
    """The connection from which the main process receives the batch then ends."""

    def receive(self):
        raise EOFError
        yield

    loader = build_train_loader(*training("DATALOADER.NUM_WORKERS", 1))
    monkeypatch.setattr(DataLoader, "__iter__", receive)
    message = r"^a loader process died.* died while it sent data\)\. Lower"
    with pytest.raises(LoaderProcessError, match=message), explain_dead_loader():
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_connection_errors_of_a_dataset_are_not_a_dead_process(training, monkeypatch, workers):
    def fail(self, index):
        raise ConnectionResetError("the storage closed the connection")

    loader = build_train_loader(*training("DATALOADER.NUM_WORKERS", workers))
    monkeypatch.setattr(type(loader.dataset), "__getitem__", fail)
    with pytest.raises(ConnectionResetError, match="the storage closed"), explain_dead_loader():
        next(iter(loader))


def test_full_shared_memory(training):
    """A limit on the size of files simulates it, because shared memory consists of files."""
    loader = build_train_loader(*training("DATALOADER.NUM_WORKERS", 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(LoaderProcessError, match=r"in shared memory \(.*too large.*--shm-size"):
            next(iter(loader))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


SIGNALS_AT_THE_START = """
import os, signal, sys, threading, time, yaml
from pathlib import Path
from detlite.config import config_from
from detlite.data import build_train_dataset, build_train_loader
from detlite.engine.signals import StoppedError, StopSignals

cfg = config_from(yaml.safe_load(Path("config.yaml").read_text()), Path("config.yaml"))
train_set = build_train_dataset(cfg)
number = signal.Signals[sys.argv[1]]
# The system may choose any thread of the process; threads of libraries block no signals.
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
os.register_at_fork(
    after_in_child=lambda: os.kill(os.getpid(), number),
    after_in_parent=lambda: (signal.pthread_kill(other.ident, number), time.sleep(0.1)),
)
try:
    with StopSignals() as stop, stop.ending_immediately("again"):
        next(iter(build_train_loader(cfg, train_set)))
except (StoppedError, KeyboardInterrupt):
    print("stopped")
with StopSignals() as stop:
    print(len(next(iter(build_train_loader(cfg, train_set)))[0]), stop.received)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signals_while_loader_processes_start(training, tmp_path, name):
    """Signals kill no process and take effect in the main process."""
    cfg, _ = training("DATALOADER.NUM_WORKERS", 1)
    (tmp_path / "config.yaml").write_text(cfg.dump())
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_python(SIGNALS_AT_THE_START, name, cwd=tmp_path, env=env, timeout=60)
    assert done.stdout.splitlines() == ["stopped", f"2 {name}"], done.stderr
    hint = "\nending after this step is saved; Ctrl-C again ends at once\n"
    assert done.stderr == (hint if name == "SIGINT" else "")


def test_every_tile_appears_once_in_an_epoch(training):
    cfg, dataset = training("INPUT.TILE", 16, "DATALOADER.ASPECT_RATIO_GROUPING", False)
    tiles = TrainingTiles(16)
    (part,) = dataset.parts
    counts = [tiles.count(size, part.boxes(k)) for k, size in enumerate(part.sizes)]
    loader = build_train_loader(cfg, dataset)
    samples = [one for batch in itertools.islice(iter(loader.batch_sampler), 40) for one in batch]
    epoch = [(one.image, one.repeat) for one in samples if one.epoch == 0]
    assert sorted(epoch) == [(i, k) for i, count in enumerate(counts) for k in range(count)]
