"""Export of pipelines as SavedModel and ONNX graphs in one step."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.export import to_saved_model
from keras_transformer.export.bundle_writer import new_parts, with_shortlist
from keras_transformer.export.parity import comparison
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.to_onnx import conversion, text_graphs
from keras_transformer_options.files import checked_model_name
from keras_transformer_serving import files
from keras_transformer_serving.bundle import ONNX, new_version
from keras_transformer_serving.graph_files import CONVERTED, FLOAT32


@on_tensorflow
def bundle(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    precisions: Sequence[str] | None = None,
    name: str | None = None,
    version: int = 1,
    texts: Sequence[Any] | None = None,
    text_graph: bool = False,
    vocabulary_shortlist: Sequence[int] | None = None,
    signature_key: bytes | None = None,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Export a pipeline as SavedModel and as ONNX graphs, and verify their outputs.

    The export is committed when both are complete and verified; an error or an interruption leaves `folder` unchanged.

    Args:
        pipeline: a pipeline of `pipelines`.
        folder: the export's folder.
        precisions: the precisions of the ONNX graphs; see `onnx`. By default float32, and those of float16 and int8
            that are close enough to the pipeline.
        name: the model's name in TensorFlow Serving, by default the folder's name.
        version: the model's version in TensorFlow Serving, a positive integer.
        texts: texts to compare the pipeline and both exports on; see `saved_model`.
        text_graph: whether to write an ONNX graph from strings to strings, too; see `onnx`.
        vocabulary_shortlist: the ids of the tokens that the export generates, such as those of texts in the target
            language, with the model's `end_id`; its graphs compute the logits of no others. By default all. The report
            in `parity.json` has the number of outputs that are the same with the whole vocabulary.
        signature_key: a key to sign the manifest with; see `saved_model`.
        say: a function that prints a line of progress.

    Returns:
        The export's folder.

    Raises:
        BlockingIOError: if another export writes to `folder`.
        FileExistsError: if the version or `folder/onnx` exists already.
        ParityError: if an output differs; in a precision that `precisions` names, if outputs differ too much.
        ValueError: if an argument is invalid, or ONNX does not support an operation of the model.

    Example:
        >>> bundle(translator, "export/es-en")
        [1/2] saved_model/es-en/1
        [2/2] onnx: float32, float16, int8
        PosixPath('export/es-en')
    """
    folder = files.as_folder(folder)
    pipeline = with_shortlist(pipeline, vocabulary_shortlist)
    conversion.check(pipeline, precisions)
    if text_graph:
        text_graphs.check(pipeline)
    part = new_version(folder, checked_model_name(folder, name, version), version)
    compare = comparison.WithPipeline(pipeline, texts)
    with new_parts(pipeline, folder, [part, ONNX], signature_key) as written:
        say(f"[1/2] {part}")
        to_saved_model.write(pipeline, part, *written[part], compare)
        say(f"[2/2] {ONNX}: {', '.join(precisions or (FLOAT32, *CONVERTED))}")
        conversion.write(pipeline, precisions, *written[ONNX], compare, say, text_graph)
    return folder
