"""Comparison of an export with the pipeline or with stored reference outputs."""

import functools
import operator
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import keras_transformer_serving as serving
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.export.parity import generation, outputs
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.tokenizer_examples import tokenizer_examples
from keras_transformer.generation import VocabularyShortlist
from keras_transformer.pipelines.forward import FORWARD
from keras_transformer_serving import graph_files, parity, precisions
from keras_transformer_serving.bundle import ONNX
from keras_transformer_serving.graphs import DECODER, MODEL

_MOST_CHARACTERS = 300  # of an error in the manifest


class WithPipeline:
    """Compare parts of an export with a pipeline, whose outputs are computed once for all parts.

    Args:
        pipeline: the pipeline.
        texts: the texts to run both on; by default made from the vocabulary.
    """

    def __init__(self, pipeline: Any, texts: Sequence[Any] | None = None) -> None:
        if isinstance(texts, str | bytes):
            raise TypeError(f"`texts` must be a list of texts. Received: texts={texts!r}")
        self._pipeline = pipeline
        self.texts = texts
        self._config = config_of(pipeline)
        self._reference = functools.cache(functools.partial(generation.Reference.of, pipeline, texts))

    def __call__(
        self,
        path: pathlib.Path,
        part: str,
        store: bool = False,
        left_out: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the report on a part for `parity.json`.

        Args:
            path: the part's folder.
            part: the part's name.
            store: whether to write examples of tensors to the folder.
            left_out: receives why precisions are not close enough, by name, if given; their graphs are then deleted.

        Raises:
            ParityError: if an output differs.
        """
        pipeline = self._pipeline
        # No runner is kept: the weights of one graph at a time are in memory, and none while the pipeline runs.
        if pipeline.generates:
            expected = self._reference(part == ONNX and not serving.reads_text(self._config))
            report = {**parity.compare_generated(expected, self._runner(path, part)), **self._shortlist}
        else:
            expected = [example for example in self._examples if part != ONNX or example.graph == FORWARD]
            tolerance = outputs.tolerance(pipeline.model)
            report = parity.compare_tensors(expected, self._runner(path, part), tolerance)
            if store:
                outputs.save(path / parity.EXAMPLES, expected)
        converted = {}
        for precision in graph_files.CONVERTED if part == ONNX else ():
            if not (path / precision).exists():
                continue
            try:
                row = precisions.compare(
                    precision, expected, self._runner(path, part, precision), self._config, type(pipeline)
                )
                converted[precision] = precisions.check(precision, row)
            except Exception as error:  # of any class: ONNX Runtime's, too
                if left_out is None:
                    raise
                left_out[precision] = reason(error)
                shutil.rmtree(path / precision)
        return {**report, **({"precisions": converted} if converted else {})}

    def _runner(self, path: pathlib.Path, part: str, precision: str = graph_files.FLOAT32) -> Any:
        """Return a function that runs the graphs of a part."""
        if part != ONNX:
            return _saved_model(path, self._config)
        steps = precision == graph_files.FLOAT32 and any(
            _file(path, name).exists() for name in (DECODER, MODEL)
        )
        tokenizer = self._tokenizer if self._pipeline.generates else None
        return parity.graph_runner(_sessions(path, precision), tokenizer, self._config, steps)

    def tokenizers(self) -> None:
        """Compare the pipeline's tokenizer with the one that serves its export without TensorFlow, if any.

        Raises:
            ParityError: if ids or texts differ.
        """
        if self._tokenizer is not None:
            parity.compare_tokenizers(self._tokenizer, tokenizer_examples(self._pipeline.tokenizer))

    @functools.cached_property
    def _tokenizer(self) -> serving.Tokenizer | None:
        """The tokenizer that serves the pipeline without TensorFlow; None for a pipeline that does not read text."""
        if not serving.reads_text(self._config):
            return None
        return serving.tokenizer_of(self._pipeline.tokenizer.model_bytes, self._config)

    @functools.cached_property
    def _shortlist(self) -> dict[str, Any]:
        """The number of outputs that are the same with the whole vocabulary, by name; empty without a shortlist."""
        constraints = self._pipeline.constraints
        others = [constraint for constraint in constraints if not isinstance(constraint, VocabularyShortlist)]
        if len(others) == len(constraints):
            return {}
        whole = generation.Reference.of(self._pipeline.with_settings(constraints=others), self.texts).answers
        same = sum(map(operator.eq, self._reference(False).answers, whole))
        return {"vocabulary_shortlist": {"outputs": len(whole), "identical": same}}

    @functools.cached_property
    def _examples(self) -> list[outputs.Example]:
        return outputs.examples_of(self._pipeline, self.texts)


def reason(error: Exception) -> str:
    """Return why a precision is left out, in one line."""
    if isinstance(error, precisions.ShortfallError):
        return error.shortfall
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_CHARACTERS]


@on_tensorflow
def verify(
    folder: str | os.PathLike[str],
    pipeline: Any = None,
    texts: Sequence[str] | None = None,
    *,
    signature_key: bytes | None = None,
) -> dict[str, Any]:
    """Verify the digests of all files of an export, and compare the outputs of all graphs with the model's.

    `keras_transformer_serving.verify` does the same for the ONNX graphs, without TensorFlow.

    Args:
        folder: the export.
        pipeline: the exported pipeline to compare with; by default, outputs that were stored at export are used.
        texts: with `pipeline`, the texts to run both on; by default made from its vocabulary.
        signature_key: the key that the export must be signed with; by default any signature is ignored.

    Returns:
        By part of the export: for a generating pipeline, the number of compared "texts" and, for each of "graphs", the
        numbers of outputs that are identical and that differ after a near tie; for other pipelines, the "tolerance"
        and, for each of "graphs", the number of compared "rows" and the largest difference of floats.

    Raises:
        FileNotFoundError: if `folder` is not an export.
        ValueError: if files are damaged, missing or added, the manifest was edited or is not signed with the key, or
            `texts` are passed without `pipeline`.
        ParityError: if an output differs.

    Example:
        >>> verify("export/es-en")["onnx"]["graphs"]["onnx_loop"]  # doctest: +SKIP
        {'identical': 26, 'near_ties': 0}
    """
    if texts is not None and pipeline is None:
        raise ValueError("`texts` must be None without `pipeline`. Received: pipeline=None")
    bundle = serving.Bundle(folder, signature_key)
    bundle.check()
    compare = None if pipeline is None else WithPipeline(pipeline, texts)
    results = {}
    for part in bundle.parity:
        report = compare(bundle.folder / part, part) if compare else with_stored(bundle, part)
        results[part] = {name: value for name, value in report.items() if name != "examples"}
    return results


def with_stored(bundle: serving.Bundle, part: str) -> dict[str, Any]:
    """Compare a part of an export with its stored reference outputs."""
    if part == ONNX:
        return precisions.compare_onnx_with_stored(bundle)
    return parity.compare_with_stored(bundle, part, _saved_model(bundle.folder / part, bundle.config))


def _saved_model(path: pathlib.Path, config: dict[str, Any]) -> Any:
    """Return a function that runs the SavedModel in a folder."""
    return generation.SavedModel(path, config) if "generation" in config else outputs.SavedModel(path)


def _sessions(path: pathlib.Path, precision: str = graph_files.FLOAT32) -> serving.Sessions:
    """Return the sessions of the graphs in a folder."""
    return parity.sessions_to_compare(lambda name: _file(path, name, precision), precision)


def _file(path: pathlib.Path, name: str, precision: str = graph_files.FLOAT32) -> pathlib.Path:
    return path / graph_files.graph_file(name, lambda file: (path / file).exists(), precision)
