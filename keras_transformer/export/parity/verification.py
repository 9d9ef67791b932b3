"""Verification of an export on disk."""

import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.export.parity import comparison
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer_serving import Bundle


@on_tensorflow
def verify(
    folder: str | os.PathLike[str],
    pipeline: Any = None,
    texts: Sequence[str] | None = None,
    *,
    signature_key: bytes | None = None,
) -> dict[str, Any]:
    """Verify the digests of all files of an export, and compare the outputs of all graphs with the model's.

    `keras_transformer_serving.verify` does the same without TensorFlow, and runs the ONNX graphs only.

    Args:
        folder: the export.
        pipeline: the exported pipeline, to compare with; by default the outputs that were stored at export.
        texts: the texts to compare on, if a pipeline is given; by default made from its vocabulary.
        signature_key: the key that the export must be signed with; by default any signature is ignored.

    Returns:
        For each part of a generating pipeline's export, the number of compared "texts", and for each of its "graphs"
        the numbers of outputs that are identical and that differ after a near tie; for other pipelines, the
        "tolerance", and for each of its "graphs" the number of compared "rows" and the largest difference of floats.

    Raises:
        FileNotFoundError: if `folder` is not an export.
        ValueError: if files are damaged, missing or added, the manifest was edited or is not signed with the key, or
            `texts` are given without a pipeline.
        ParityError: if an output differs.

    Example:
        >>> verify("export/es-en")["onnx"]["graphs"]["onnx_loop"]  # doctest: +SKIP
        {'identical': 26, 'near_ties': 0}
    """
    if texts is not None and pipeline is None:
        raise ValueError("`pipeline` must be given with `texts`. Received: pipeline=None")
    bundle = Bundle(folder, signature_key)
    bundle.check()
    compare = None if pipeline is None else comparison.WithPipeline(pipeline, texts)
    results = {}
    for part in bundle.parity:
        report = compare(bundle.folder / part, part) if compare else comparison.with_stored(bundle, part)
        results[part] = {name: value for name, value in report.items() if name != "examples"}
    return results
