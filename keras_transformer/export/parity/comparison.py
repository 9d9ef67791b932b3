"""Comparison of a part of an export with the pipeline, or with its stored reference outputs."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras_transformer_serving as serving
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.export.parity import generation, outputs
from keras_transformer.pipelines.forward import FORWARD

ONNX = "onnx"


class WithPipeline:
    """Compare parts of an export with a pipeline, whose outputs are computed once for all parts.

    Args:
        pipeline: the pipeline.
        texts: the texts to compare on; by default made from the vocabulary.
    """

    def __init__(self, pipeline: Any, texts: Sequence[Any] | None = None) -> None:
        self._pipeline = pipeline
        self._texts = texts
        self._config = config_of(pipeline)
        self._reference = functools.cache(functools.partial(generation.Reference.of, pipeline, texts))

    def __call__(self, path: pathlib.Path, part: str, store: bool = False) -> dict[str, Any]:
        """Return the report on a part for `parity.json`.

        Args:
            path: the part's folder.
            part: the part's name.
            store: whether to write examples of tensors to the folder.

        Raises:
            ParityError: if an output differs.
        """
        config, pipeline = self._config, self._pipeline
        if pipeline.generates:
            reference = self._reference(part == ONNX and not serving.reads_text(config))
            return generation.compare(
                reference, _generator(path, part, config, pipeline.tokenizer.model_bytes)
            )
        examples = [each for each in self._examples if part != ONNX or each.graph == FORWARD]
        report = outputs.compare(examples, _runner(path, part, config), outputs.tolerance(pipeline.model))
        if store:
            outputs.save(path / outputs.EXAMPLES, examples)
        return report

    @functools.cached_property
    def _examples(self) -> list[outputs.Example]:
        return outputs.examples_of(self._pipeline, self._texts)


def with_stored(bundle: serving.Bundle, part: str, stored: dict[str, Any]) -> dict[str, Any]:
    """Compare a part of an export with its stored reference outputs; `stored` is its report in `parity.json`."""
    path, config = bundle.folder / part, bundle.config
    if "examples" in stored:
        generator = _generator(path, part, config, bundle.tokenizer_model)
        return generation.compare(generation.Reference.stored(stored), generator)
    examples = outputs.load(bundle.checked(f"{part}/{outputs.EXAMPLES}"))
    return outputs.compare(examples, _runner(path, part, config), stored["tolerance"])


def _generator(
    path: pathlib.Path, part: str, config: dict[str, Any], tokenizer: bytes
) -> Callable[[Sequence[Any]], generation.Answers]:
    if part == ONNX:
        return generation.OnnxGraphs(path, tokenizer, config)
    return generation.SavedModel(path, config)


def _runner(
    path: pathlib.Path, part: str, config: dict[str, Any]
) -> Callable[[str, outputs.Arrays], outputs.Arrays]:
    if part != ONNX:
        return outputs.SavedModel(path)
    model = serving.Model(lambda name: path / f"{name}.onnx", config)
    return lambda _graph, inputs: model.run(**inputs)
