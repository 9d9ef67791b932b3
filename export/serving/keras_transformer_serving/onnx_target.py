"""The ONNX graphs of an export, run by ONNX Runtime."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving import precisions
from keras_transformer_serving.bundle import ONNX, Bundle
from keras_transformer_serving.forward import ForwardEngine, ForwardGraph
from keras_transformer_serving.generation import padded
from keras_transformer_serving.graph_files import FLOAT32, converted_precisions, graph_file, graph_reader
from keras_transformer_serving.graphs import DECODER, MODEL, Graphs
from keras_transformer_serving.model import Model
from keras_transformer_serving.parity import (
    BATCH,
    EXAMPLES,
    ONNX_STEPS,
    GeneratingExport,
    ParityError,
    Reference,
    compare_with_stored,
    exported_tokenizer,
    load_examples,
    seeded,
)
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.sessions import Sessions
from keras_transformer_serving.targets import EngineOptions, ServedTarget
from keras_transformer_serving.text import Tokenizer


class ServedOnnx(ServedTarget):
    """ONNX Runtime."""

    name = ONNX
    options = EngineOptions._fields

    @classmethod
    def engine(
        cls, files: PartFiles, config: dict[str, Any], options: EngineOptions
    ) -> Graphs | ForwardEngine:
        """Return the graphs as an engine.

        With `options.save_memory`, weights in a file beside a graph are not packed for faster products.
        """
        read = graph_reader(files, options.precision)
        sessions = Sessions(
            read, options.providers, options.threads, options.save_memory, workers=options.workers
        )
        return Graphs(sessions, config) if "generation" in config else ForwardGraph(sessions)

    @classmethod
    def size(cls, sizes: Mapping[str, int], options: EngineOptions) -> int:
        """Return the number of bytes of the graphs of a precision."""
        folder = "" if options.precision == FLOAT32 else options.precision
        return sum(size for name, size in sizes.items() if name.rpartition("/")[0] == folder)

    @classmethod
    def runner(
        cls, files: PartFiles, config: dict[str, Any], tokenizer: Tokenizer | None, precision: str = FLOAT32
    ) -> Any:
        """Return the graphs of a precision as a function, for the comparison with the model.

        Other precisions than float32 run on one thread: int8 ids change with the rounding of sums, which may depend on
        how ONNX Runtime distributes them to threads, and `verify` must find what was found at export.
        """
        is_generating = "generation" in config
        config = seeded(config) if is_generating else config
        threads = None if precision == FLOAT32 else 1
        engine = cls.engine(files, config, EngineOptions(precision, threads=threads, save_memory=True))
        if isinstance(engine, Graphs):
            steps = precision == FLOAT32 and any(
                graph_file(name, files.names) in files.names for name in (DECODER, MODEL)
            )
            return _GeneratingGraphs(engine, config, tokenizer, steps)
        model = Model(engine, config)
        return lambda _graph, inputs: model.run(**inputs)

    @classmethod
    def verify(cls, bundle: Bundle, part: str) -> dict[str, Any]:
        """Compare the graphs, in each precision, with the outputs that were stored at export.

        Returns:
            The report of `parity.compare_with_stored`, and "precisions", those of `precisions.compare` for others than
            float32.

        Raises:
            ParityError: if an output differs too much.
        """
        files, config = PartFiles.of_bundle(bundle, part), bundle.config
        tokenizer, stored = exported_tokenizer(bundle), bundle.parity[part]
        report = compare_with_stored(bundle, part, cls.runner(files, config, tokenizer))
        expected: Any = None
        if "examples" in stored:
            expected = Reference.stored(stored)
        else:
            expected = load_examples(io.BytesIO(bundle.read(f"{part}/{EXAMPLES}")))
        reports, rows = stored.get("precisions", {}), {}
        for precision in converted_precisions(files.names):
            # An export is verified with its own thresholds, those of the version that wrote it.
            thresholds = reports.get(precision, {}).get("thresholds")
            graphs = cls.runner(files, config, tokenizer, precision)
            row = precisions.compare(precision, expected, graphs, config, thresholds=thresholds)
            rows[precision] = precisions.check(precision, row)
        if set(rows) != set(reports):
            raise ParityError(
                f"`{bundle.folder / part}` must have the precisions {sorted(reports)}. "
                f"Export it again. Received: {sorted(rows)}"
            )
        return {**report, "precisions": rows} if rows else report


class _GeneratingGraphs(GeneratingExport):
    """The graph with the generation loop and, with `steps`, the graphs of single steps."""

    def __init__(
        self, engine: Graphs, config: dict[str, Any], tokenizer: Tokenizer | None, steps: bool
    ) -> None:
        super().__init__("onnx_loop", engine, config, tokenizer)
        self._graphs, self._steps = engine, steps

    def _ids(self, texts: Sequence[Any], **languages: list[str]) -> dict[str, np.ndarray]:
        by_graph = super()._ids(texts, **languages)
        graphs = self._graphs
        graphs.session.release()  # a large model is in memory once, also beside its next precision
        if not self._steps:
            return by_graph
        sources = self._served.sources_of(texts, **languages)
        batches = [sources[begin : begin + BATCH] for begin in range(0, len(sources), BATCH)]
        parts = [
            graphs.generate_by_steps(
                *padded([source.ids for source in batch], graphs.padding_value), **graphs.targets(batch)
            )
            for batch in batches
        ]
        graphs.session.release()
        return {**by_graph, ONNX_STEPS: np.concatenate(parts)}
