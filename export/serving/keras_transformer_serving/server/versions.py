"""The life cycle of served models: loading, warming, switching to a new version, unloading."""

import asyncio
import contextlib
import dataclasses
import logging
import math
import pathlib
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import keras_transformer_serving as serving
from keras_transformer_serving.bundle import is_bundle
from keras_transformer_serving.graph_files import FLOAT32
from keras_transformer_serving.jobs import Engine, Method
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.server import forward, generating
from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.sessions import num_cores
from keras_transformer_serving.targets import part_to_run
from keras_transformer_serving.tasks import DEFAULT, ExportedPipeline

LOG = logging.getLogger("keras_transformer_serving.server")
_SMALL = 2**24  # weights of a model whose operations run on one thread each
_BITS = {FLOAT32: 32, "float16": 16, "int8": 8, "int4": 4}  # of a weight
_MOST_BATCHES = 4
STABLE = "stable"  # the label of the version that is served, or that of the largest weight
CANARY = "canary"  # the label of the version of the smallest of several weights


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A version in memory.

    Attributes:
        pipeline: the pipeline.
        signatures: its signatures, by name.
        engine: what computes its jobs.
        local: the methods of its tokenizer, which are computed at once.
        num_batches: the number of batches that are computed at the same time.
        device: the type of the device that it runs on, "cpu" or "cuda".
        example: inputs with which the page begins, by name; empty if the export has none.
        precision: the precision of its graphs.
        fields: the fields of requests to the routes of a protocol, by a key of its own.
    """

    pipeline: Any
    signatures: dict[str, Signature]
    engine: Engine
    local: Mapping[str, Method]
    num_batches: int
    device: str
    example: dict[str, str] = dataclasses.field(default_factory=dict)
    precision: str = FLOAT32
    fields: dict[Hashable, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class Version:
    """A version of a model and its state, in TensorFlow Serving's terms.

    Attributes:
        number: the number of the version.
        state: "LOADING", "AVAILABLE", "UNLOADING" or "END".
        error: the reason why it was not loaded, or "".
        lacks_package: whether it was not loaded because a package is not installed.
        loaded: the version in memory, from AVAILABLE to UNLOADING.
        batcher: its queue.
        active: the number of its requests.
        created: the Unix time when it began to be served.
    """

    number: int
    state: str = "LOADING"
    error: str = ""
    lacks_package: bool = False
    loaded: Loaded | None = None
    batcher: Batcher | None = None
    active: int = 0
    created: float = 0.0
    _files: Any = None  # of a version that was not loaded; it is tried again when they change


Source = pathlib.Path | ExportedPipeline
"""A model to serve: a folder, or a pipeline in memory, whose version is 1."""


def load(source: Source, max_batch_size: int, *, threads: int | None = None, **options: Any) -> Loaded:
    """Load an export, and run each of its graphs on each bucket of lengths.

    Args:
        source: the export, or a pipeline in memory, which takes no options.
        max_batch_size: the number of rows that a model runs on at once.
        threads: the number of threads that compute, by default one for each core. Those of a small model, whose
            operations are too short to divide, compute batches at the same time, all but one; the threads of a large
            model divide the operations of a batch.
        **options: those of `keras_transformer_serving.load`.
    """
    if isinstance(source, ExportedPipeline):
        return _loaded(source, max_batch_size, 1, {})
    threads = num_cores() if threads is None else threads
    bundle = serving.Bundle(source)
    part, target = part_to_run(bundle, options.get("engine"))
    precision = options.get("precision", FLOAT32)
    small = is_small(_size(bundle, part, target, precision), precision)
    if "threads" in target.options:
        options["threads"] = min(threads, 1) if small else threads
    pipeline = serving.load(source, **options)
    # A core is left for HTTP. More batches would only be smaller, as Python's lock limits the other work.
    is_parallel = small and pipeline.engine.device == "cpu"
    num_batches = max(min(threads - 1, _MOST_BATCHES), 1) if is_parallel else 1
    loaded = _loaded(pipeline, max_batch_size, num_batches, _example(bundle.parity))
    return dataclasses.replace(loaded, precision=precision)


def _loaded(pipeline: Any, max_batch_size: int, num_batches: int, example: dict[str, str]) -> Loaded:
    """Return a pipeline whose graphs have been run on each bucket of lengths."""
    if isinstance(pipeline, Generating):
        engine: Engine = pipeline.engine
        signatures = generating.signatures(pipeline)
        local = {} if pipeline.text_methods is None else pipeline.text_methods.methods
        generating.warm_up(pipeline)
    else:
        engine, local = forward.Rows(pipeline, max_batch_size), {}
        signatures = forward.signatures(pipeline)
        forward.warm_up(pipeline)
    return Loaded(pipeline, signatures, engine, local, num_batches, pipeline.engine.device, example)


def _example(reports: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the first example that the export was compared on, from the content of `parity.json`."""
    for report in reports.values():
        example = report.get("signatures", {}).get(DEFAULT, {}).get("example", {})
        if texts := {name: value for name, value in example.items() if isinstance(value, str)}:
            return texts
    compared = [text for report in reports.values() for text in report.get("examples", {}).get("texts", [])]
    return {"text": compared[0]} if compared and isinstance(compared[0], str) else {}


def is_small(size: int, precision: str) -> bool:
    """Return whether the operations of a model with files of `size` bytes are too short to be divided."""
    return size * 8 // _BITS[precision] < _SMALL


def _size(bundle: serving.Bundle, part: str, target: type[serving.ServedTarget], precision: str) -> int:
    """Return the number of bytes of the files of a part that its engine reads."""
    sizes = {
        name.removeprefix(f"{part}/"): entry["size"]
        for name, entry in bundle.manifest["files"].items()
        if name.startswith(f"{part}/")
    }
    return target.size(sizes, serving.EngineOptions(precision))


class ServedModel:
    """The versions of a model.

    Args:
        name: its name in routes.
        source: an export, or a folder of exports named by their version numbers, of which the largest is served; or a
            pipeline.
        limits: the server's limits.
        metrics: the server's metrics.
        loader: a function from an export or pipeline to a `Loaded`.
        weights: for each version that is served at the same time its share of the requests that name no version; by
            default the largest version alone.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        limits: Limits,
        metrics: Metrics,
        loader: Callable[[Source], Loaded],
        weights: Mapping[int, float] | None = None,
    ) -> None:
        if weights is not None and not (
            weights and all(0 < weight < math.inf for weight in weights.values())
        ):
            raise ValueError(f"`weights` must have positive numbers. Received: weights={weights} of {name!r}")
        self.name, self.source = name, source
        self._weights = weights
        self.versions: dict[int, Version] = {}
        self.current: Version | None = None
        self._limits, self._metrics, self._loader = limits, metrics, loader

    @property
    def lacks_package(self) -> bool:
        """True if no version is served, and one would be with a package that is not installed."""
        return self.current is None and any(version.lacks_package for version in self.versions.values())

    @contextlib.contextmanager
    def use(
        self, number: int | None = None, label: str | None = None
    ) -> Iterator[tuple[Version, Loaded, Batcher]]:
        """Use a version, which is not unloaded before the end of the block.

        Args:
            number: the number of the version, by default the one that is served, or one of several by their weights.
            label: its label: "stable", or with weights "canary".

        Raises:
            RequestError: if it is unknown (404), or no version is loaded yet (503).
        """
        labels = [STABLE, CANARY] if self._weights and len(self._weights) > 1 else [STABLE]
        if label not in (None, *labels):
            expected = " or ".join(map(repr, labels))
            raise RequestError(404, f"The label must be {expected}. Received: {label!r}")
        if number is not None:
            version = self.versions.get(number)
        elif label == STABLE or not self._weights:
            version = self.current
        else:
            version = self._weighted(self._weights, label == CANARY)
        if version is None and number is None:
            errors = [each.error for each in self.versions.values() if each.lacks_package]
            reason = f"was not loaded: {errors[0]}" if errors else "is not loaded yet"
            raise RequestError(503, f"`{self.name}` {reason}", 1)
        if version is None or version.loaded is None or version.batcher is None:
            numbers = [str(other.number) for other in self.versions.values() if other.loaded is not None]
            raise RequestError(
                404,
                f"The version of `{self.name}` must be {' or '.join(numbers) or 'loaded'}. Received: {number}",
            )
        version.active += 1
        try:
            yield version, version.loaded, version.batcher
        finally:
            version.active -= 1

    def _weighted(self, weights: Mapping[int, float], is_canary: bool) -> Version | None:
        """Return one of the loaded versions, drawn by their weights, or that of the smallest weight."""
        loaded = [
            version
            for number in weights
            if (version := self.versions.get(number)) is not None and version.loaded is not None
        ]
        if not loaded:
            return None
        if is_canary:
            return min(loaded, key=lambda version: weights[version.number])
        return random.choices(loaded, [weights[version.number] for version in loaded])[0]

    async def poll(self) -> None:
        """Load the newest version on disk that can be loaded, switch to it, and unload the one before.

        With weights, load those of their versions that are on disk.
        """
        folders = await asyncio.to_thread(version_folders, self.source)
        for number in sorted(folders, reverse=True) if self._weights is None else self._weights:
            previous = self.versions.get(number)
            if previous is not None and previous.loaded is not None and self._weights is not None:
                continue
            if self._weights is None and self.current is not None and self.current.number == number:
                break
            if number not in folders:
                continue
            fingerprint = await asyncio.to_thread(_fingerprint, folders[number])
            if previous is not None and previous.error and previous._files == fingerprint:
                continue
            version = await self._load(number, folders[number], fingerprint)
            if version is None:
                continue
            before, self.current = self.current, self._stable(version)
            if self._weights is None:
                if before is not None:
                    await self._unload(before)
                break
        for number, version in list(self.versions.items()):
            if version.state == "END" and number not in folders:
                del self.versions[number]

    def _stable(self, version: Version) -> Version:
        """Return the version that is served after another was loaded: with weights that of the largest."""
        if self._weights is None or self.current is None:
            return version
        weights = self._weights
        return max(self.current, version, key=lambda each: weights[each.number])

    async def _load(self, number: int, folder: Source, fingerprint: Any) -> Version | None:
        """Load a version; return None, with its error in `versions`, if it cannot be loaded."""
        version = self.versions[number] = Version(number, _files=fingerprint)
        begin = time.perf_counter()
        try:
            loaded = version.loaded = await asyncio.to_thread(self._loader, folder)
        except Exception as error:  # of a damaged file, any
            version.state, version.error = "END", f"{type(error).__name__}: {error}"
            version.lacks_package = isinstance(error, ImportError)
            LOG.error("%s version %d was not loaded: %s", self.name, number, version.error)
            return None
        version.batcher = Batcher(
            self._limits,
            self._metrics,
            self.name,
            loaded.engine.methods,
            loaded.local,
            loaded.num_batches,
        )
        version.state, version.created = "AVAILABLE", time.time()
        seconds, device = time.perf_counter() - begin, version.loaded.device
        LOG.info("%s version %d is served on %s, loaded in %.1f s", self.name, number, device, seconds)
        return version

    async def _unload(self, version: Version) -> None:
        version.state = "UNLOADING"
        while version.active:
            await asyncio.sleep(0.02)
        if version.batcher is not None:
            version.batcher.close()
        version.state, version.loaded, version.batcher = "END", None, None
        LOG.info("%s version %d is unloaded", self.name, version.number)

    async def close(self) -> None:
        """Unload the versions that are served, after their last requests."""
        self.current = None
        for version in list(self.versions.values()):
            if version.state == "AVAILABLE":
                await self._unload(version)


def version_folders(folder: Source) -> Mapping[int, Source]:
    """Return the folders of versions, by number: of a single export, itself as its name, if that is a number, or 1."""
    if isinstance(folder, ExportedPipeline):
        return {1: folder}
    if is_bundle(folder):
        return {int(folder.name) if _is_number(folder.name) else 1: folder}
    try:
        return {int(path.name): path for path in folder.iterdir() if _is_number(path.name) and path.is_dir()}
    except OSError:
        return {}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and int(name) > 0


def _fingerprint(folder: Source) -> Any:
    """Return the files of a folder with their sizes and times, which change while it is copied; of a pipeline, none."""
    if isinstance(folder, ExportedPipeline):
        return []
    statuses = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):  # removed meanwhile
            status = path.stat()
            statuses.append((str(path), status.st_size, status.st_mtime_ns))
    return statuses
