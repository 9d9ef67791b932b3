"""Limits of the server: queue, time limit, disconnected clients, draining."""

import asyncio
import json
import time

import pytest
from served_exports import OFFSET, PREDICT, batch_sizes, call, predict, run, until

import keras_transformer_serving as serving
from keras_transformer_serving.server import Limits, create_app


def test_a_full_queue_rejects_with_retry_after(exports, blocked):
    async def test(app):
        waiting = [asyncio.create_task(predict(app, "classifier", ["a"] * 2)) for _ in range(2)]
        await until(lambda: app.state.server.active == 2)
        status, headers, content = await call(app, "POST", PREDICT.format("classifier"), {"instances": ["a"]})
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(content)["error"].startswith("The queue of `classifier` must have at most 4 rows")
        blocked.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]
        assert (await predict(app, "classifier", ["a"]))[0] == 200

    run(exports, test, "classifier", limits=Limits(max_queue=4, max_rows=4))


def test_a_request_over_the_time_limit_is_dropped(exports, blocked):
    async def test(app):
        status, found = await predict(app, "classifier", ["a"])
        assert (status, found["error"]) == (
            504,
            "The request must be computed within 0.05 s. Send fewer rows",
        )
        blocked.set()
        assert (await predict(app, "classifier", ["a"]))[0] == 200

    run(exports, test, "classifier", limits=Limits(timeout=0.05))


def test_a_slow_client_is_answered_408(exports):
    async def slow():
        while True:
            await asyncio.sleep(0.02)
            yield b" "

    async def test(app):
        status, *_ = await call(app, "POST", PREDICT.format("classifier"), chunks=slow())
        assert status == 408

    run(exports, test, "classifier", limits=Limits(timeout=0.05))


def test_rows_of_a_disconnected_client_are_removed_from_the_queue(exports, blocked):
    async def test(app):
        gone = asyncio.Event()
        first = asyncio.create_task(predict(app, "classifier", ["a"]))
        await until(lambda: app.state.server.active == 1)
        await asyncio.sleep(0.02)
        second = asyncio.create_task(
            call(app, "POST", PREDICT.format("classifier"), {"instances": ["b"] * 3}, disconnect=gone)
        )
        await until(lambda: app.state.server.active == 2)
        gone.set()
        assert (await second)[0] == 499
        blocked.set()
        assert (await first)[0] == 200
        assert batch_sizes(app)["keras_transformer_batch_size_sum"] == 1

    run(exports, test, "classifier")


def test_rows_that_are_computed_for_nobody_are_counted(exports, blocked):
    path = PREDICT.format("classifier")

    async def test(app):
        def length():
            (metric,) = app.state.server.metrics.queue_length.collect()
            return next(sample.value for sample in metric.samples if sample.name.endswith("queue_length"))

        gone = asyncio.Event()
        dropped = asyncio.create_task(call(app, "POST", path, {"instances": ["a"] * 3}, disconnect=gone))
        await until(lambda: length() == 3)
        await asyncio.sleep(0.02)
        waiting = asyncio.create_task(call(app, "POST", path, {"instances": ["b"]}, disconnect=gone))
        await until(lambda: length() == 4)
        gone.set()
        assert [status for status, *_ in await asyncio.gather(dropped, waiting)] == [499, 499]
        assert length() == 3  # those in the batch
        assert (await predict(app, "classifier", ["a"] * 2))[0] == 429
        blocked.set()
        await until(lambda: length() == 0)
        assert (await predict(app, "classifier", ["a"] * 4))[0] == 200
        assert length() == 0

    run(exports, test, "classifier", limits=Limits(max_queue=4, max_rows=4))


def test_a_row_that_fails_does_not_fail_its_batch(exports, monkeypatch):
    real = serving.TextClassification.run_windows

    def run_windows(self, batch, batch_size):
        if any(windows.ids[0] == [OFFSET + ord("!")] for windows in batch):
            raise MemoryError("too much")
        return real(self, batch, batch_size)

    monkeypatch.setattr(serving.TextClassification, "run_windows", run_windows)

    async def test(app):
        calls = [predict(app, "classifier", [text]) for text in ("a", "!", "b")]
        found = await asyncio.gather(*calls)
        assert [status for status, _ in found] == [200, 500, 200]
        assert "too much" not in found[1][1]["error"]

    run(exports, test, "classifier", limits=Limits(max_latency_ms=20))


def test_a_draining_server_rejects_and_is_not_ready(exports):
    async def test(app):
        app.state.server.draining = True
        status, headers, _ = await call(app, "POST", PREDICT.format("classifier"), {"instances": ["a"]})
        assert (status, headers["retry-after"]) == (503, "1")
        assert (await call(app, "GET", "/v2/health/ready"))[0] == 503
        assert (await call(app, "GET", "/v2/health/live"))[0] == 200
        _, _, content = await call(app, "GET", "/metrics")
        assert b'keras_transformer_rejections_total{model="classifier",reason="draining"} 1.0\n' in content

    run(exports, test, "classifier")


def test_overload_is_answered_or_rejected_within_the_time_limit(exports, monkeypatch):
    from keras_transformer_serving.server import batching

    limit, service, compute = 0.5, 0.1, batching.compute_each
    monkeypatch.setattr(batching, "compute_each", lambda *batch: time.sleep(service) or compute(*batch))

    async def timed(app):
        begin = time.perf_counter()
        status, _ = await predict(app, "classifier", ["a"])
        return status, time.perf_counter() - begin

    async def test(app):
        found = await asyncio.gather(*(timed(app) for _ in range(64)))
        assert {status for status, _ in found} == {200, 429, 504}
        assert max(seconds for _, seconds in found) < limit + service + 0.5  # allow for a busy machine
        assert app.state.server.active == 0

    run(exports, test, "classifier", limits=Limits(max_batch_size=4, max_queue=40, max_rows=1, timeout=limit))


@pytest.mark.slow_variants
@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 1), (4, 3), (64, 4)])
def test_threads_of_a_small_model_compute_separate_batches(exports, monkeypatch, threads, expected):
    from keras_transformer_serving.server import batching

    running, compute = [0, 0], batching.compute_each

    def counted(*batch):
        running[0] += 1
        running[1] = max(running)
        time.sleep(0.05)
        running[0] -= 1
        return compute(*batch)

    monkeypatch.setattr(batching, "compute_each", counted)

    async def test(app):
        texts = [chr(ord("a") + number) for number in range(12)]
        together = await asyncio.gather(*(predict(app, "generator", [text]) for text in texts))
        assert running[1] == expected
        assert together == [await predict(app, "generator", [text]) for text in texts]

    run(exports, test, "generator", limits=Limits(max_batch_size=1), threads=threads)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_batch_size": 0}, "`max_batch_size` must be positive and finite. Received: max_batch_size=0"),
        ({"max_latency_ms": -1}, "`max_latency_ms` must be 0 or more, and finite"),
        ({"max_queue": 2, "max_rows": 3}, "`max_rows` must be at most `max_queue`"),
    ],
)
def test_invalid_limits_are_rejected(limits, message):
    with pytest.raises(ValueError, match=message):
        Limits(**limits)


def test_model_names_that_do_not_fit_a_route_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="names of letters"):
        create_app({"a/b": tmp_path})
