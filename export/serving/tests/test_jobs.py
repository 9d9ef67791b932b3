"""Rows as steps: their jobs are computed together, and a row that fails fails alone."""

import concurrent.futures
import gc
import time
import types

import pytest

from keras_transformer_serving import jobs
from keras_transformer_serving.jobs import advance, compute, gather, run, run_one
from keras_transformer_serving.pipelines.errors import InvalidInputError, RowErrors

LOCAL = {"length": lambda texts: [len(text) for text in texts]}


def engine(batches):
    """Return an engine that doubles numbers, and records its batches."""

    def double(batch):
        batches.append(batch)
        return [2 * number for number in batch]

    return types.SimpleNamespace(methods={"double": double}, map=lambda method, many: [*map(method, many)])


def doubled(text):
    length = yield from compute("length", text)
    if length == 0:
        raise InvalidInputError("texts", "`texts` must not be empty")
    number = yield from compute("double", length, length)
    pair = yield from gather(compute("double", each, each) for each in (number, 1))
    return text, pair


def test_rows_are_prepared_before_batches_of_similar_lengths_are_computed():
    batches = []
    rows = {index: doubled(text) for index, text in enumerate(["aaaa", "b", "ccc", "dd"])}
    found = run(rows, LOCAL, engine(batches), 2, RowErrors())
    assert found == {0: ("aaaa", [16, 2]), 1: ("b", [4, 2]), 2: ("ccc", [12, 2]), 3: ("dd", [8, 2])}
    assert batches == [[1, 2], [3, 4], [1, 1], [1, 1], [2, 4], [6, 8]]


def test_an_invalid_row_fails_no_other():
    errors = RowErrors("return")
    rows = {index: doubled(text) for index, text in enumerate(["a", "", "bb"])}
    found = errors.merge(run(rows, LOCAL, engine([]), 8, errors))
    assert [found[0], found[2]] == [("a", [4, 2]), ("bb", [8, 2])]
    assert str(found[1]) == "`texts` must not be empty in texts[1]"
    with pytest.raises(ValueError, match=r"must not be empty in texts\[0\]"):
        run({0: doubled("")}, LOCAL, engine([]), 8, RowErrors())


def test_a_single_row_and_many_have_equal_answers():
    methods = {**LOCAL, **engine([]).methods}
    assert run_one(doubled("abc"), methods) == run({0: doubled("abc")}, LOCAL, engine([]), 1, RowErrors())[0]


def test_a_row_stops_at_jobs_of_the_engine():
    steps = doubled("abc")
    (job,) = advance(steps, None, LOCAL)
    assert job == ("double", 3, 3)
    assert [each.values for each in advance(steps, [6], LOCAL)] == [6, 1]
    with pytest.raises(StopIteration) as end:
        advance(steps, [12, 2], LOCAL)
    assert end.value.value == ("abc", [12, 2])


def test_steps_that_wait_for_nothing_have_results():
    def nothing(value):
        yield from ()
        return value

    assert run_one(gather(map(nothing, "ab")), {}) == ["a", "b"]
    assert run_one(gather([]), {}) == []


def test_arrays_of_different_shapes_are_in_different_batches():
    batches = []
    rows = {index: compute("double", index, ((size,),)) for index, size in enumerate([3, 5, 3, 5, 3])}
    assert run(rows, LOCAL, engine(batches), 2, RowErrors()) == {index: 2 * index for index in range(5)}
    assert batches == [[0, 2], [4], [1, 3]]


def test_preparing_rows_starts_no_garbage_collection():
    found = []

    def prepared():
        found.append(gc.isenabled())
        return (yield from compute("double", 1, 1))

    assert run({index: prepared() for index in range(8)}, LOCAL, engine([]), 4, RowErrors())[7] == 2
    assert not any(found)
    assert gc.isenabled()


def test_two_calls_at_the_same_time_leave_garbage_collection_as_it_was(monkeypatch):
    class Collector:
        enabled = True

        def isenabled(self):
            was_enabled = self.enabled
            time.sleep(0.05)  # the other call goes on
            return was_enabled

        def enable(self):
            self.enabled = True

        def disable(self):
            self.enabled = False

    def call(seconds):
        time.sleep(seconds)
        with jobs._without_collections():
            time.sleep(0.02)

    collector = Collector()
    monkeypatch.setattr(jobs, "gc", collector)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        [*pool.map(call, [0, 0.06])]
    assert collector.enabled
