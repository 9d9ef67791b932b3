"""Checking an export that lies on disk."""

import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.export.parity import comparison
from keras_transformer_serving import Bundle


def verify(
    folder: str | os.PathLike[str], pipeline: Any = None, texts: Sequence[str] | None = None
) -> dict[str, Any]:
    """Check that every file of an export is what was written, and that every graph answers as the model does.

    Args:
        folder: the export.
        pipeline: the pipeline it was made from, to compare with; by default the answers that were stored when
            the export was made.
        texts: what to compare on, if a pipeline is given; by default a few made from its vocabulary.

    Returns:
        For each part of the export, of a pipeline that generates, the number of "texts" compared, and for each of its
        "graphs" how many outputs are identical and how many differ from a near tie on; of another, the "tolerance",
        and for each of its "graphs" the number of "rows" compared and the largest difference of a number.

    Raises:
        FileNotFoundError: where `folder` is no export.
        ValueError: where files are damaged or missing, or `texts` come without a pipeline.
        ParityError: where an output differs.

    Example:
        >>> verify("export/es-en")["onnx"]["graphs"]["onnx_loop"]
        {'identical': 26, 'near_ties': 0}
    """
    if texts is not None and pipeline is None:
        raise ValueError("`pipeline` must be given with `texts`. Received: pipeline=None")
    bundle = Bundle(folder)
    bundle.check()
    compare = None if pipeline is None else comparison.WithPipeline(pipeline, texts)
    results = {}
    for part, stored in bundle.parity.items():
        if compare is None:
            report = comparison.with_stored(bundle, part, stored)
        else:
            report = compare(bundle.folder / part, part)
        results[part] = {name: value for name, value in report.items() if name != "examples"}
    return results
