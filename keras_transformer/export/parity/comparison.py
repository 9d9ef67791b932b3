"""Comparison of an export with the pipeline or with stored reference outputs."""

import functools
import logging
import operator
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras_transformer_serving as serving
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.export.parity import generation, outputs
from keras_transformer.export.targets import ExportTarget
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.tokenizer_examples import tokenizer_examples
from keras_transformer.generation import VocabularyShortlist
from keras_transformer.pipelines.example_texts import given_texts
from keras_transformer_serving import parity

_LOGGER = logging.getLogger(__name__)
_REMEDY = "pass `texts` of your own in place of those made from the vocabulary"
Texts = Sequence[Any] | os.PathLike[str]


class WithPipeline:
    """The comparison of parts of an export with a pipeline, whose outputs are computed once for all parts.

    Args:
        pipeline: the pipeline.
        texts: the texts to run both on, or the path of a file of them, see `given_texts`; by default made from the
            vocabulary.
        say: a function that prints a line of progress.

    Attributes:
        texts: the texts as valid inputs; None for those made from the vocabulary.
        config: the settings of the export.
        remedy: what may help if a precision is not close enough on the texts; "" for nothing.
    """

    def __init__(self, pipeline: Any, texts: Texts | None, say: Callable[[str], Any]) -> None:
        self.pipeline = pipeline
        self.texts = None if texts is None else given_texts(pipeline, texts, say)
        self.remedy = _REMEDY if texts is None and pipeline.text_columns else ""
        self.config = config_of(pipeline)
        self._reference = functools.cache(functools.partial(generation.Reference.of, pipeline, texts))

    def expected(self, signature: str | None = None, as_ids: bool = False) -> Any:
        """Return what the outputs of an export are compared with.

        Args:
            signature: of a pipeline that runs its model once, the signature that is compared; None for all.
            as_ids: of a pipeline that generates, whether the export takes ids in place of texts.

        Returns:
            The `Reference` of a pipeline that generates, or the examples of another one.
        """
        if self.pipeline.generates:
            return self._reference(as_ids)
        return [example for example in self._examples if signature in (None, example.graph)]

    def report(self, expected: Any, run: Callable[..., Any], has_precisions: bool = False) -> dict[str, Any]:
        """Return the report of a comparison for `parity.json`.

        Args:
            expected: what `expected` returns.
            run: the export as a function, for `parity.compare_generated` or `parity.compare_tensors`.
            has_precisions: whether the part has other precisions, which are compared with the same outputs.

        Raises:
            ParityError: if an output differs.
        """
        if self.pipeline.generates:
            return {**parity.compare_generated(expected, run, has_precisions), **self._shortlist}
        return parity.compare_tensors(expected, run, outputs.tolerance(self.pipeline.model))

    def store(self, folder: pathlib.Path, signature: str | None = None) -> None:
        """Write the examples of a pipeline that runs its model once to the folder of a part, to verify it later."""
        if not self.pipeline.generates:
            outputs.save(folder / parity.EXAMPLES, self.expected(signature))

    def tokenizers(self) -> None:
        """Compare the pipeline's tokenizer with the one that serves its export without TensorFlow, if any.

        Raises:
            ParityError: if ids or texts differ.
        """
        if self.tokenizer is not None:
            parity.compare_tokenizers(self.tokenizer, tokenizer_examples(self.pipeline.tokenizer))

    @functools.cached_property
    def tokenizer(self) -> serving.Tokenizer | None:
        """The tokenizer that serves the pipeline without TensorFlow; None for a pipeline that does not read text."""
        if not serving.reads_text(self.config):
            return None
        return serving.tokenizer_of(self.pipeline.tokenizer.model_bytes, self.config)

    @functools.cached_property
    def _shortlist(self) -> dict[str, Any]:
        """The number of outputs that are the same with the whole vocabulary, by name; empty without a shortlist."""
        constraints = self.pipeline.constraints
        others = [constraint for constraint in constraints if not isinstance(constraint, VocabularyShortlist)]
        if len(others) == len(constraints):
            return {}
        whole = generation.Reference.of(self.pipeline.with_settings(constraints=others), self.texts).answers
        same = sum(map(operator.eq, self._reference(False).answers, whole))
        return {"vocabulary_shortlist": {"outputs": len(whole), "identical": same}}

    @functools.cached_property
    def _examples(self) -> list[outputs.Example]:
        return outputs.examples_of(self.pipeline, self.texts)


@on_tensorflow
def verify(
    folder: str | os.PathLike[str],
    pipeline: Any = None,
    texts: Texts | None = None,
    *,
    signature_key: bytes | None = None,
) -> dict[str, Any]:
    """Verify the digests of all files of an export, and compare the outputs of all graphs with the model's.

    `keras_transformer_serving.verify` does the same for the ONNX graphs, without TensorFlow.

    Args:
        folder: the export.
        pipeline: the exported pipeline to compare with; by default, outputs that were stored at export are used.
        texts: with `pipeline`, the texts to run both on, as for `bundle`; by default made from its vocabulary.
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
    compare = None if pipeline is None else WithPipeline(pipeline, texts, _LOGGER.info)
    results = {}
    for part in bundle.parity:
        target = ExportTarget.named(part)
        report = target.compare(compare, bundle.folder / part) if compare else target.verify(bundle, part)
        results[part] = {name: value for name, value in report.items() if name != "examples"}
    return results
