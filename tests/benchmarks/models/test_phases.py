"""Time by phase, on a clock that only the phases move."""

from __future__ import annotations

import types

from benchmarks.models import phases
from benchmarks.models.phases import Stopwatch, phases_of, places_of, watched


def test_a_phase_within_a_phase_counts_for_itself():
    now = [0.0]
    library = types.SimpleNamespace()

    def inner():
        now[0] += 2

    def outer():
        now[0] += 1
        library.inner()
        library.inner()
        now[0] += 4

    library.inner, library.outer = inner, outer
    watch = Stopwatch("cpu", lambda: now[0])
    places = (("whole", library, "outer"), ("part", library, "inner"))
    assert phases_of(lambda: library.outer(), places, watch, 3) == {"whole": 5e3, "part": 4e3}
    assert (library.inner, library.outer) == (inner, outer)


def test_every_place_is_there_and_left_as_it_was():
    for places in (places_of("detlite"), places_of("torchvision")):
        before = [getattr(owner, name) for _, owner, name in places]
        with watched(places, Stopwatch("cpu")):
            during = [getattr(owner, name) for _, owner, name in places]
        after = [getattr(owner, name) for _, owner, name in places]
        assert before == after
        assert not any(a is b for a, b in zip(before, during, strict=True))


def test_a_stopwatch_waits_for_a_gpu(monkeypatch):
    waited = []
    monkeypatch.setattr(phases, "synchronize", waited.append)
    with Stopwatch("cuda").phase("any"):
        pass
    assert waited == ["cuda", "cuda"]
