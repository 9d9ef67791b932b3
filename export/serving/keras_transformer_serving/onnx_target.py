"""The ONNX graphs of an export, run by ONNX Runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.bundle import ONNX
from keras_transformer_serving.forward import ForwardEngine, ForwardGraph
from keras_transformer_serving.generation import padded
from keras_transformer_serving.graph_files import FLOAT32, INT4, graph_file, graph_reader
from keras_transformer_serving.graphs import DECODER, MODEL, Graphs
from keras_transformer_serving.model import Model
from keras_transformer_serving.parity import BATCH, ONNX_STEPS, GeneratingExport, seeded
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

        With `options.save_memory`, weights in a file beside a graph are not packed for faster products, except those of
        int4, which ONNX Runtime multiplies slowly or not at all if they are not packed.
        """
        read = graph_reader(files, options.precision)
        save_memory = options.save_memory and options.precision != INT4
        sessions = Sessions(read, options.providers, options.threads, save_memory, workers=options.workers)
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
