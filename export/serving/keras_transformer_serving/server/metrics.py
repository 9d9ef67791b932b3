"""The metrics of a server, in the format of Prometheus."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PREFIX = "keras_transformer"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of all models of a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        model = ["model"]
        self.requests = Counter(
            f"{_PREFIX}_requests",
            "Requests answered, by HTTP status code.",
            [*model, "protocol", "code"],
            registry=self.registry,
        )
        self.rejections = Counter(
            f"{_PREFIX}_rejections",
            "Requests rejected: a full queue, a time limit, or a server that shuts down.",
            [*model, "reason"],
            registry=self.registry,
        )
        self.rows = Counter(f"{_PREFIX}_rows", "Rows computed.", model, registry=self.registry)
        self.refused_rows = Counter(
            f"{_PREFIX}_refused_rows", "Rows answered with an error.", model, registry=self.registry
        )
        self.queue_seconds = self._histogram("queue_seconds", "Time of a row in the queue.")
        self.compute_seconds = self._histogram("compute_seconds", "Time to compute a batch.")
        self.first_token_seconds = self._histogram(
            "first_token_seconds", "Time to the first token of a stream."
        )
        self.batch_size = self._histogram("batch_size", "Rows in a batch.", _ROWS)
        self.queue_length = Gauge(
            f"{_PREFIX}_queue_length", "Rows that wait or are computed.", model, registry=self.registry
        )

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", text, ["model"], buckets=buckets, registry=self.registry)


class ModelMetrics:
    """The metrics of a model, of which each is looked up once.

    Attributes:
        queue_length: a gauge of the rows that wait or are computed.
        refused_rows: a counter of the rows that are answered with an error.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.queue_length = metrics.queue_length.labels(model)
        self.refused_rows = metrics.refused_rows.labels(model)
        self._rows, self._batch_size = metrics.rows.labels(model), metrics.batch_size.labels(model)
        self._queue_seconds = metrics.queue_seconds.labels(model)
        self._compute_seconds = metrics.compute_seconds.labels(model)
        self._rejections, self._model = metrics.rejections, model

    def reject(self, reason: str) -> None:
        """Count a request that is rejected."""
        self._rejections.labels(self._model, reason).inc()

    def observe_batch(self, queue_seconds: Sequence[float], compute_seconds: float) -> None:
        """Observe a batch.

        Args:
            queue_seconds: the time of each row in the queue.
            compute_seconds: the time to compute the batch.
        """
        for seconds in queue_seconds:
            self._queue_seconds.observe(seconds)
        self._compute_seconds.observe(compute_seconds)
        self._batch_size.observe(len(queue_seconds))
        self._rows.inc(len(queue_seconds))
