"""Export of pipelines by several targets in one step."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.export.parity.comparison import Texts
from keras_transformer.export.targets import ExportTarget
from keras_transformer.export.tensorflow_process import on_tensorflow

# Each is registered by its name.
from keras_transformer.export.to_ctranslate2.target import CTranslate2 as CTranslate2
from keras_transformer.export.to_litert import LiteRt as LiteRt
from keras_transformer.export.to_onnx.target import Onnx as Onnx
from keras_transformer.export.to_saved_model import SavedModel as SavedModel
from keras_transformer.export.writing import write_parts
from keras_transformer_serving import files

_DEFAULTS = {"name": None, "version": 1, "precisions": None, "text_graph": False}


@on_tensorflow
def bundle(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    targets: Sequence[str | ExportTarget] = ("saved_model", "onnx"),
    precisions: Sequence[str] | None = None,
    name: str | None = None,
    version: int = 1,
    texts: Texts | None = None,
    text_graph: bool = False,
    vocabulary_shortlist: Sequence[int] | None = None,
    signature_key: bytes | None = None,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Export a pipeline by several targets, by default as SavedModel and as ONNX graphs, and verify their outputs.

    The export is committed when all are complete and verified; an error or an interruption leaves `folder` unchanged.

    Args:
        pipeline: a pipeline of `pipelines`.
        folder: the export's folder.
        targets: what to write: "saved_model", "onnx", "ctranslate2", "litert", or other names of `ExportTarget`s, or
            such objects.
        precisions: the precisions of targets other than "saved_model"; see `onnx`. By default float32, and those of
            float16 and int8 that are close enough to the pipeline.
        name: the model's name in TensorFlow Serving, by default the folder's name.
        version: the model's version in TensorFlow Serving, a positive integer.
        texts: texts to compare the pipeline and its export on, and to fit int8 graphs of encoders to; by default made
            from the vocabulary. A list, of pairs such as (question, context) if the pipeline takes two texts; or the
            path of a UTF-8 file with one in each line, of a pair separated by a tab. Of a file, up to 64 lines are
            taken, at equal distances. Texts that are too long are cut.
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
        FileExistsError: if the version or the folder of another target exists already.
        TypeError: if `targets` is a string.
        ParityError: if an output differs; in a precision that `precisions` names, if outputs differ too much.
        ValueError: if an argument is invalid, or a target does not support the model.

    Example:
        >>> bundle(translator, "export/es-en")
        [1/2] saved_model/es-en/1
        [2/2] onnx: float32, float16, int8
        PosixPath('export/es-en')
    """
    folder = files.as_folder(folder)
    if isinstance(targets, str):
        raise TypeError(f"`targets` must be a list of targets. Received: targets={targets!r}")
    classes = [ExportTarget.named(target) if isinstance(target, str) else target for target in targets]
    given = {"name": name, "version": version, "precisions": precisions, "text_graph": text_graph}
    for option, value in given.items():
        taken = {option for target in classes if isinstance(target, type) for option in target.options}
        if option not in taken and value != _DEFAULTS[option]:
            known = " or ".join(
                repr(each.name) for each in ExportTarget.classes.values() if option in each.options
            )
            raise ValueError(
                f"`{option}` needs the target {known}. Received: {option}={value!r}, targets={targets!r}"
            )
    requested = [
        target(**{option: given[option] for option in target.options if option in given})
        if isinstance(target, type)
        else target
        for target in classes
    ]
    if not requested or not all(isinstance(target, ExportTarget) for target in requested):
        raise ValueError(f"`targets` must be names, or `ExportTarget`s. Received: targets={targets!r}")
    write_parts(pipeline, folder, requested, texts, vocabulary_shortlist, signature_key, say)
    return folder
