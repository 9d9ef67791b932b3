"""Dynamic batching: rows of concurrent requests are computed together."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.signatures import Job, RequestError, Row, Signature

T = TypeVar("T")


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
        timeout: the maximum time of a request in seconds (504).

    Raises:
        ValueError: if a limit is not positive, or `max_rows` is above `max_queue`.
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
            if not (value >= 0 if name == "max_latency_ms" else value > 0):
                raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
        if self.max_rows > self.max_queue:
            raise ValueError(
                "`max_rows` must be at most `max_queue`, so that every request fits the queue. "
                f"Received: max_rows={self.max_rows}, max_queue={self.max_queue}"
            )


@dataclasses.dataclass(eq=False)
class _Waiting:
    job: Job
    result: "asyncio.Future[Row]"
    since: float


class Batcher:
    """The queue of a model, and the thread that computes its batches.

    A batch has rows of one bucket of lengths. It is computed as soon as the thread is free and the batch is full or its
    first row has waited for `max_latency_ms`.

    Args:
        limits: the limits.
        metrics: the server's metrics.
        name: the model's name in metrics.
    """

    def __init__(self, limits: Limits, metrics: Metrics, name: str) -> None:
        self._limits, self._metrics, self._name = limits, metrics, name
        self._queues: dict[Hashable, collections.deque[_Waiting]] = {}
        self._wake = asyncio.Event()
        self._compute = concurrent.futures.ThreadPoolExecutor(1, f"{name}-compute")
        self._prepare = concurrent.futures.ThreadPoolExecutor(1, f"{name}-prepare")
        self._rows = self._streams = 0
        self._row_seconds = 0.0  # the time that a row took, in the last batch
        self._task = asyncio.create_task(self._run())

    async def answer(self, signature: Signature, rows: Sequence[Row]) -> list[Row]:
        """Return the outputs of each row.

        Args:
            signature: the signature.
            rows: its checked inputs.

        Raises:
            RequestError: if the queue is full, or a row is refused by a signature without the output "error".
        """
        self.check_space(len(rows))
        self._count(len(rows))
        try:
            jobs = await asyncio.get_running_loop().run_in_executor(self._prepare, signature.jobs, rows)
            waiting = {index: self._add(job) for index, job in enumerate(jobs) if isinstance(job, Job)}
            self._metrics.refused_rows.labels(self._name).inc(len(jobs) - len(waiting))
            self._wake.set()
            try:
                await asyncio.gather(*(each.result for each in waiting.values()))
            finally:
                self._drop(waiting.values())
            return [waiting[i].result.result() if isinstance(job, Job) else job for i, job in enumerate(jobs)]
        finally:
            self._count(-len(rows))

    def check_space(self, rows: int = 1) -> None:
        """Raise a RequestError if the queue has no space for this number of rows."""
        if self._rows + rows > self._limits.max_queue:
            self._reject(f"The queue of `{self._name}` must have at most {self._limits.max_queue} rows", rows)

    async def step(self, function: Callable[[], T]) -> T:
        """Return the result of a function that is run between two batches, such as a step of a stream."""
        return await asyncio.get_running_loop().run_in_executor(self._compute, function)

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

    def count_timeout(self) -> None:
        """Count a request that took too long."""
        self._metrics.rejections.labels(self._name, "timeout").inc()

    async def close(self) -> None:
        """End the threads."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for threads in (self._prepare, self._compute):
            threads.shutdown(wait=False, cancel_futures=True)

    def _reject(self, message: str, rows: int) -> None:
        self._metrics.rejections.labels(self._name, "full").inc()
        seconds = max(1, math.ceil(self._rows * self._row_seconds))
        raise RequestError(429, f"{message}. Received: {rows} more. Try again in {seconds} s", seconds)

    def _count(self, rows: int) -> None:
        self._rows += rows
        self._metrics.queue_length.labels(self._name).set(self._rows)

    def _add(self, job: Job) -> _Waiting:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, loop.create_future(), time.perf_counter())
        self._queues.setdefault((job.run, job.bucket), collections.deque()).append(waiting)
        return waiting

    def _drop(self, waiting: Any) -> None:
        """Remove what is left of a request that was cancelled from the queue."""
        for each in waiting:
            if not each.result.done():
                each.result.cancel()
            elif not each.result.cancelled():
                each.result.exception()  # retrieved

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            begin = time.perf_counter()
            for each in batch:
                self._metrics.queue_seconds.labels(self._name).observe(begin - each.since)
            found = await loop.run_in_executor(self._compute, compute_each, [each.job for each in batch])
            seconds = time.perf_counter() - begin
            self._row_seconds = seconds / len(batch)
            self._metrics.compute_seconds.labels(self._name).observe(seconds)
            self._metrics.batch_size.labels(self._name).observe(len(batch))
            self._metrics.rows.labels(self._name).inc(len(batch))
            for each, outputs in zip(batch, found, strict=True):
                if each.result.done():  # cancelled meanwhile
                    continue
                if isinstance(outputs, Exception):
                    each.result.set_exception(outputs)
                else:
                    each.result.set_result(outputs)

    async def _next_batch(self) -> list[_Waiting]:
        """Wait for a batch, of the bucket whose first row has waited longest."""
        latency = self._limits.max_latency_ms / 1000
        while True:
            self._wake.clear()
            for key, queue in list(self._queues.items()):
                while queue and queue[0].result.done():
                    queue.popleft()
                if not queue:
                    del self._queues[key]
            now = time.perf_counter()
            ready = [
                queue
                for queue in self._queues.values()
                if len(queue) >= self._limits.max_batch_size or now - queue[0].since >= latency
            ]
            if ready:
                queue = min(ready, key=lambda queue: queue[0].since)
                batch: list[_Waiting] = []
                while queue and len(batch) < self._limits.max_batch_size:
                    waiting = queue.popleft()
                    if not waiting.result.done():  # cancelled
                        batch.append(waiting)
                return batch
            first = min((queue[0].since for queue in self._queues.values()), default=None)
            wait = None if first is None else max(first + latency - now, 0.0)
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue


def compute(jobs: Sequence[Job]) -> list[Row]:
    """Return the outputs of each job of a batch."""
    found = jobs[0].run([job.values for job in jobs])
    return [job.finish(result) for job, result in zip(jobs, found, strict=True)]


def compute_each(jobs: Sequence[Job]) -> list[Row | Exception]:
    """Return the outputs of each job of a batch, or its exception; one that fails does not fail the others."""
    try:
        return [*compute(jobs)]
    except Exception as error:
        if len(jobs) == 1:
            return [error]
    return [outputs for job in jobs for outputs in compute_each([job])]
