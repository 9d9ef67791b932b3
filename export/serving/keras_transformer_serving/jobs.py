"""Rows as generators of jobs: a row yields what must be computed, receives the results, and returns its answer.

How a row is answered is thereby written once, and a scheduler decides what is computed together: the rows of a call
(`run`), or those of concurrent requests to a server.
"""

import collections
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # texts have steps, too
    from keras_transformer_serving.pipelines.errors import RowErrors

T = TypeVar("T")


class Job(NamedTuple):
    """A computation for a row.

    Attributes:
        method: the name of a function of a batch, such as "tokenize" or "generate".
        values: the values of the row, as the method takes them.
        length: the number of tokens or of other elements; rows of similar length are computed together. Or the shapes
            of arrays; rows of equal shapes are.
    """

    method: str
    values: Any
    length: Any = 0


Steps = Generator[Sequence[Job], Sequence[Any], T]
"""The steps of a row: each yields jobs and receives their results, in order; the last returns a value of type T."""

Method = Callable[[Sequence[Any]], Sequence[Any]]
"""A function from the values of a batch of jobs to their results."""


class Engine(Protocol):
    """The interface of objects that compute the jobs of a model.

    Attributes:
        methods: its methods, by name, for batches of any number of rows.
    """

    methods: Mapping[str, Method]

    def map(self, method: Method, batches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the results of a method for several batches, which it may compute at the same time."""


def compute(method: str, values: Any, length: Any = 0) -> Steps[Any]:
    """Return the result of a single job."""
    (result,) = yield [Job(method, values, length)]
    return result


def gather(rows: Iterable[Steps[T]]) -> Steps[list[T]]:
    """Return the results of several sequences of steps, whose jobs are computed together.

    Example:
        >>> def double(number):
        ...     return (yield from compute("double", number))
        >>> run_one(gather(map(double, [1, 2])), {"double": lambda numbers: [2 * number for number in numbers]})
        [2, 4]
    """
    steps = [*rows]
    if len(steps) == 1:  # most texts have one part
        return [(yield from steps[0])]
    results: dict[int, T] = {}
    received: dict[int, Any] = dict.fromkeys(range(len(steps)))
    while received:
        jobs: list[Job] = []
        counts = {}
        for place, values in received.items():
            try:
                new = steps[place].send(values)
            except StopIteration as end:
                results[place] = end.value
            else:
                counts[place] = len(new)
                jobs += new
        computed = iter((yield jobs) if jobs else ())
        received = {place: [*itertools.islice(computed, count)] for place, count in counts.items()}
    return [results[place] for place in range(len(steps))]


def advance(steps: Steps[T], results: Any, local: Mapping[str, Method]) -> Sequence[Job]:
    """Send results to a row, and return its next jobs for the engine, after those that are computed here.

    Args:
        steps: the row.
        results: the results of its jobs, None at first.
        local: the methods that are computed at once, by name.

    Raises:
        StopIteration: at the end of the row, with its answer as the value.
    """
    while True:
        jobs = steps.send(results)
        if any(job.method not in local for job in jobs):
            others = [job for job in jobs if job.method in local]
            assert not others, f"jobs of one step are local, or not: {others}"
            return jobs
        results = [local[job.method]([job.values])[0] for job in jobs]


def run_one(steps: Steps[T], methods: Mapping[str, Method]) -> T:
    """Return the answer of a single row, or raise its error."""
    try:
        advance(steps, None, methods)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError(f"`methods` must have those of all jobs. Received: {', '.join(methods)}")


def _batches(
    entries: Iterable[tuple[int, int, Job]], batch_size: int
) -> Iterator[Sequence[tuple[int, int, Job]]]:
    """Split jobs in the order of their lengths; a batch has arrays of equal shapes."""
    for _, group in itertools.groupby(
        entries, lambda entry: None if isinstance(entry[2].length, int) else entry[2].length
    ):
        equal = [*group]
        yield from (equal[begin : begin + batch_size] for begin in range(0, len(equal), batch_size))


def run(
    rows: Mapping[int, Steps[T]],
    local: Mapping[str, Method],
    engine: Engine,
    batch_size: int,
    errors: "RowErrors",
) -> dict[int, T]:
    """Return the answers of the rows of a call that have no error, by index.

    All rows are prepared before the first batch is computed: batches have rows of similar length.

    Args:
        rows: the rows, by index.
        local: the methods of all rows at once, such as "tokenize", by name; they come first.
        engine: the engine, whose methods are computed in batches.
        batch_size: the maximum number of rows in a batch.
        errors: the errors of rows, to which those that are raised are added.
    """
    answers: dict[int, T] = {}
    waiting: dict[str, list[tuple[int, int, Job]]] = collections.defaultdict(list)
    results: dict[int, list[Any]] = {}
    missing: dict[int, int] = {}

    def send(row: int, values: Any) -> None:
        try:
            jobs = rows[row].send(values)
        except StopIteration as end:
            answers[row] = end.value
            return
        except (TypeError, ValueError) as error:
            errors.catch(row, error)
            return
        results[row], missing[row] = [None] * len(jobs), len(jobs)
        for place, job in enumerate(jobs):
            waiting[job.method].append((row, place, job))

    def receive(entries: Sequence[tuple[int, int, Job]], computed: Iterable[Any]) -> None:
        for (row, place, _), result in zip(entries, computed, strict=True):
            results[row][place] = result
            missing[row] -= 1
        for row in dict.fromkeys(row for row, _, _ in entries):
            if not missing[row]:
                send(row, results.pop(row))

    def compute_local() -> None:
        while name := next((name for name in local if name in waiting), None):
            entries = waiting.pop(name)
            receive(entries, local[name]([job.values for _, _, job in entries]))

    with _without_collections():
        for row in rows:
            send(row, None)
        compute_local()
    while waiting:
        name = next(iter(waiting))
        entries = sorted(waiting.pop(name), key=lambda entry: entry[2].length)
        values = [[job.values for _, _, job in batch] for batch in _batches(entries, batch_size)]
        of_batches = engine.map(engine.methods[name], values)
        with _without_collections():
            receive(entries, itertools.chain.from_iterable(of_batches))
            compute_local()
    return answers


_COLLECTION = threading.Lock()


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection, which thousands of waiting rows would start, and which reads all of Keras' objects."""
    with _COLLECTION:  # of two threads, the one that disables it enables it again
        is_enabled = gc.isenabled()
        gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            with _COLLECTION:
                gc.enable()
