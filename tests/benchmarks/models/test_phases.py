"""Phases of a call, with a clock that only the phases advance."""

import types

from benchmarks.models.phases import Stopwatch, measure_phases, phase_functions, watch_functions


def test_inner_phases_do_not_count_for_the_outer_one():
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
    functions = (("whole", library, "outer"), ("part", library, "inner"))
    milliseconds = measure_phases(lambda: library.outer(), functions, watch, 3)
    assert milliseconds == {"whole": 5e3, "part": 4e3}
    assert (library.inner, library.outer) == (inner, outer)


def test_functions_exist_and_are_restored():
    for functions in (phase_functions("detlite"), phase_functions("torchvision")):
        before = [getattr(owner, name) for _, owner, name in functions]
        with watch_functions(functions, Stopwatch("cpu")):
            pass
        assert before == [getattr(owner, name) for _, owner, name in functions]
