"""Dynamic batching: rows of concurrent requests are computed together."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from keras_transformer_serving.generation import GENERATE, SCORE
from keras_transformer_serving.jobs import Job, Method
from keras_transformer_serving.server.metrics import Metrics, ModelMetrics
from keras_transformer_serving.server.signatures import RequestError, Started, bucket, proceed
from keras_transformer_serving.tasks import ERROR, Row

T = TypeVar("T")
# Source tokens; shorter texts are in one batch, as the decoder takes most of the time.
_SHORT = {GENERATE: 32, SCORE: 32}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        max_batch_size: the maximum number of rows in a batch.
        max_latency_ms: the maximum time that a row waits for others before a batch that is not full is computed. With
            0, a batch has the rows that came while the one before it was computed.
        max_queue: the maximum number of rows of a model that wait or are computed; others are rejected (429).
        max_rows: the maximum number of rows of a request (400).
        max_bytes: the maximum size of a request (413).
        max_characters: the maximum length of a string (400).
        max_streams: the maximum number of concurrent streams of a model (429).
        timeout: the maximum time of a request, or of each part of a stream, in seconds (504).
    """

    max_batch_size: int = 32
    max_latency_ms: float = 0.0
    max_queue: int = 256
    max_rows: int = 256
    max_bytes: int = 8 * 2**20
    max_characters: int = 100_000
    max_streams: int = 16
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name == "max_latency_ms":
                check_seconds(max_latency_ms=value)
            elif not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be positive and finite. Received: {name}={value}")
        if self.max_rows > self.max_queue:
            raise ValueError(
                "`max_rows` must be at most `max_queue`, so that every request fits into the queue. "
                f"Received: max_rows={self.max_rows}, max_queue={self.max_queue}"
            )


def check_seconds(**seconds: float) -> None:
    """Raise a ValueError if a time is negative or infinite."""
    for name, value in seconds.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be 0 or more, and finite. Received: {name}={value}")


@dataclasses.dataclass(eq=False)
class _Request:
    """A request in the queue.

    Attributes:
        outputs: the outputs of each row that has been computed or is invalid.
        missing: the number of the other rows.
        respond: a function from the outputs of all rows to the result.
        result: the result, which is done early where the request was dropped.
        waits_since: the time when the request came, or when rows of it were last computed.
        computing: the number of its jobs in batches that are being computed.
        abandoned: the number of these that are counted though the request was dropped.
    """

    outputs: list[Row]
    missing: int
    respond: Callable[[list[Row]], Any]
    result: "asyncio.Future[Any]"
    waits_since: float
    computing: int = 0
    abandoned: int = 0


@dataclasses.dataclass(eq=False)
class _Row:
    """A row of a request, and the results of its jobs.

    Attributes:
        request: the request.
        index: the index of the row in it.
        steps: the steps of the row.
        results: the result of each of its jobs that has been computed.
        missing: the number of the others.
    """

    request: _Request
    index: int
    steps: Any
    results: list[Any]
    missing: int


@dataclasses.dataclass(eq=False)
class _Waiting:
    """A job in the queue, of a row and with a place among its jobs."""

    job: Job
    row: _Row
    place: int
    since: float

    @property
    def request(self) -> _Request:
        """The request."""
        return self.row.request


@dataclasses.dataclass(eq=False)
class _Step:
    """A function that is run between two batches."""

    function: Callable[[], Any]
    result: "asyncio.Future[Any]"
    since: float


class Batcher:
    """The queue of a model, and the threads that compute its batches.

    A batch has rows of one bucket of lengths. It is computed as soon as a thread is free and the batch is full or its
    first row has waited for `max_latency_ms`. The thread also creates the responses, while another thread computes.

    Args:
        limits: the limits.
        metrics: the server's metrics.
        name: the model's name in metrics.
        methods: the methods of the engine, by name.
        local: the methods that are computed at once, those of the tokenizer.
        num_batches: the number of batches that are computed at the same time.
    """

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        name: str,
        methods: Mapping[str, Method],
        local: Mapping[str, Method],
        num_batches: int = 1,
    ) -> None:
        self.local = local
        self._limits, self._name, self._num_batches = limits, name, num_batches
        self._methods = methods
        self._metrics = ModelMetrics(metrics, name)
        self._loop = asyncio.get_running_loop()
        self._queues: dict[Hashable, collections.deque[_Waiting]] = {}
        self._steps: collections.deque[_Step] = collections.deque()
        self._changed = threading.Condition()  # guards the queues and what follows
        self._computing, self._closed = 0, False
        self._rows = self._streams = 0
        self._row_seconds = 0.0  # the time that a row took, in the last batch
        for number in range(num_batches + 1):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    @contextlib.contextmanager
    def reserved(self, rows: int) -> Iterator[None]:
        """Count rows in the queue until the end of the block.

        Raises:
            RequestError: if the queue is full.
        """
        self.check_space(rows)
        self._count(rows)
        try:
            yield
        finally:
            self._count(-rows)

    def submit(self, rows: Sequence[Started | Row], respond: Callable[[list[Row]], T]) -> "asyncio.Future[T]":
        """Put the rows of a request into the queue.

        Args:
            rows: each row, or the outputs of one that is invalid or complete.
            respond: a function from the outputs of each row to the result, run in another thread.

        Returns:
            The result. Cancelling it removes the rows from the queue; those that are being computed are counted until
            their batch ends.
        """
        outputs = [{} if isinstance(row, Started) else row for row in rows]
        missing = sum(isinstance(row, Started) for row in rows)
        if refused := sum(bool(row.get(ERROR)) for row in outputs):
            self._metrics.refused_rows.inc(refused)
        now = time.perf_counter()
        request = _Request(outputs, missing, respond, self._loop.create_future(), now)
        if not missing:
            _set_results([_finished(request)])
            return request.result
        request.result.add_done_callback(
            lambda result: self._abandon(request) if result.cancelled() else None
        )
        with self._changed:
            for index, row in enumerate(rows):
                if isinstance(row, Started):
                    self._append(_Row(request, index, row.steps, [], 0), row.jobs, now)
            if self._computing < self._num_batches:
                self._changed.notify()
        return request.result

    def _abandon(self, request: _Request) -> None:
        """Count the rows of a request that was dropped and are being computed."""
        with self._changed:
            request.abandoned = request.computing
        self._count(request.abandoned)

    def _append(self, row: _Row, jobs: Sequence[Job], now: float) -> None:
        """Put the next jobs of a row into the queue."""
        row.results, row.missing = [None] * len(jobs), len(jobs)
        for place, job in enumerate(jobs):
            queue = self._queues.setdefault((job.method, _bucket(job)), collections.deque())
            queue.append(_Waiting(job, row, place, now))

    def check_space(self, rows: int = 1) -> None:
        """Raise a RequestError if the queue has no space for this number of rows."""
        if self._rows + rows > self._limits.max_queue:
            self._reject(f"The queue of `{self._name}` must have at most {self._limits.max_queue} rows", rows)

    async def step(self, function: Callable[[], T]) -> T:
        """Return the result of a function that is run between two batches, such as a step of a stream."""
        step = _Step(function, self._loop.create_future(), time.perf_counter())
        with self._changed:
            self._steps.append(step)
            if self._computing < self._num_batches:
                self._changed.notify()
        result: T = await step.result
        return result

    def reject(self, reason: str) -> None:
        """Count a request that is rejected."""
        self._metrics.reject(reason)

    def begin_stream(self) -> None:
        """Count a stream.

        Raises:
            RequestError: if there are too many.
        """
        if self._streams == self._limits.max_streams:
            self._reject(f"`{self._name}` must have at most {self._limits.max_streams} streams", 1)
        self._streams += 1

    def end_stream(self) -> None:
        """Count a stream that has ended."""
        self._streams -= 1

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _reject(self, message: str, rows: int) -> None:
        self._metrics.reject("full")
        seconds = max(1, math.ceil(self._rows * self._row_seconds))
        raise RequestError(429, f"{message}. Received: {rows} more. Try again in {seconds} s", seconds)

    def _count(self, rows: int) -> None:
        self._rows += rows
        self._metrics.queue_length.inc(rows)  # of all versions of the model

    def _run(self) -> None:
        """Compute batches and steps, until the batcher is closed."""
        while True:
            with self._changed:
                while (work := self._next()) is None and not self._closed:
                    self._changed.wait(self._seconds_to_wait())
            if work is None:
                return
            work()

    def _next(self) -> Callable[[], None] | None:
        """Return the next task of a thread, a step or a batch; None to wait."""
        if self._computing == self._num_batches:
            return None
        queue = self._ready()
        if self._steps and not (queue and queue[0].request.waits_since < self._steps[0].since):
            self._computing += 1
            return functools.partial(self._run_step, self._steps.popleft())
        if queue is None:
            return None
        batch: list[_Waiting] = []
        while queue and len(batch) < self._limits.max_batch_size:
            waiting = queue.popleft()
            if not waiting.request.result.done():  # dropped
                batch.append(waiting)
        if not batch:
            return self._next()
        now = time.perf_counter()
        for waiting in batch:
            waiting.request.waits_since = now
            waiting.request.computing += 1
        self._computing += 1
        return functools.partial(self._compute, batch)

    def _ready(self) -> "collections.deque[_Waiting] | None":
        """Return a queue that is full or overdue: the one whose first request has waited longest."""
        for queue in self._queues.values():
            while queue and queue[0].request.result.done():
                queue.popleft()
        self._queues = {key: queue for key, queue in self._queues.items() if queue}
        latest = time.perf_counter() - self._limits.max_latency_ms / 1000
        ready = (
            queue
            for queue in self._queues.values()
            if len(queue) >= self._limits.max_batch_size or queue[0].since <= latest
        )
        return min(ready, key=lambda queue: queue[0].request.waits_since, default=None)

    def _seconds_to_wait(self) -> float | None:
        """Return the time until a batch that is not full is overdue."""
        first = min((queue[0].since for queue in self._queues.values() if queue), default=None)
        if first is None or self._computing == self._num_batches:
            return None
        return max(first + self._limits.max_latency_ms / 1000 - time.perf_counter(), 0.0)

    def _compute(self, batch: Sequence[_Waiting]) -> None:
        """Compute a batch, and answer the requests that it completes."""
        begin = time.perf_counter()
        method = self._methods[batch[0].job.method]
        results = compute_each(method, [waiting.job.values for waiting in batch])
        seconds = time.perf_counter() - begin
        outcomes: list[tuple[_Request, Any]] = []
        complete: dict[int, _Row] = {}
        num_abandoned = 0
        with self._changed:
            self._end_computing()
            self._row_seconds = seconds / len(batch)
            for waiting, result in zip(batch, results, strict=True):
                waiting.request.computing -= 1
                if waiting.request.abandoned:
                    waiting.request.abandoned -= 1
                    num_abandoned += 1
                if isinstance(result, Exception):
                    outcomes.append((waiting.request, result))
                    continue
                waiting.row.results[waiting.place] = result
                waiting.row.missing -= 1
                if not waiting.row.missing:
                    complete[id(waiting.row)] = waiting.row
        self._metrics.observe_batch([begin - waiting.since for waiting in batch], seconds)
        for row in complete.values():
            outcomes += self._proceed(row)
        self._deliver(outcomes, num_abandoned)

    def _proceed(self, row: _Row) -> list[tuple[_Request, Any]]:
        """Let a row go on with its results; return its request and the result of that if it is complete."""
        request = row.request
        if request.result.done():  # dropped
            return []
        try:
            found = proceed(row.steps, row.results, self.local)
        except Exception as error:
            return [(request, error)]
        with self._changed:
            if not isinstance(found, dict):
                self._append(row, found, time.perf_counter())
                self._changed.notify()
                return []
            request.outputs[row.index] = found
            request.missing -= 1
            if request.missing:
                return []
        return [_finished(request)]

    def _run_step(self, step: _Step) -> None:
        outcome: Any = None
        try:
            if not step.result.done():  # dropped
                outcome = step.function()
        except Exception as error:
            outcome = error
        with self._changed:
            self._end_computing()
        self._deliver([(step, outcome)])

    def _end_computing(self) -> None:
        """Let another thread compute the next batch, while this one answers."""
        self._computing -= 1
        if any(self._queues.values()) or self._steps:
            self._changed.notify()

    def _deliver(self, outcomes: "Sequence[tuple[_Request | _Step, Any]]", num_abandoned: int = 0) -> None:
        """Set results, and no longer count rows of requests that were dropped, in the thread of the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_set_results, outcomes)
            if num_abandoned:
                self._loop.call_soon_threadsafe(self._count, -num_abandoned)


def _finished(request: _Request) -> tuple[_Request, Any]:
    """Return a request and its result, or the exception of its `respond`."""
    try:
        return request, request.respond(request.outputs)
    except Exception as error:
        return request, error


def _set_results(outcomes: "Sequence[tuple[_Request | _Step, Any]]") -> None:
    for item, outcome in outcomes:
        if item.result.done():  # dropped
            continue
        if isinstance(outcome, Exception):
            item.result.set_exception(outcome)
        else:
            item.result.set_result(outcome)


def compute_each(method: Method, batch: Sequence[Any]) -> list[Any]:
    """Return the results of a batch, or the exception of each that fails, which does not fail the others."""
    try:
        return [*method(batch)]
    except Exception as error:
        if len(batch) == 1:
            return [error]
    return [result for values in batch for result in compute_each(method, [values])]


def _bucket(job: Job) -> Hashable:
    """Return the bucket of lengths of a job, or the shapes of its arrays."""
    length: Hashable = job.length
    return bucket(max(length, _SHORT.get(job.method, 1))) if isinstance(length, int) else length
