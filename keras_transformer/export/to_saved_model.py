"""A pipeline as SavedModel, from text to its answer, for TensorFlow Serving."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export import kinds
from keras_transformer.export.bundle_writer import new_part
from keras_transformer.export.parity import comparison


def saved_model(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: int = 1,
    texts: Sequence[Any] | None = None,
) -> pathlib.Path:
    """Export a pipeline as SavedModel with its tokenizer in the graph, and prove that it answers the same.

    Signatures of one that generates: `serving_default`, "text" strings (B,) → "text" strings (B,); `generate_ids`,
    "text" strings (B,) → "ids" int32 (B, M), "lengths" int32 (B,), "scores" float32 (B,). Where the pipeline's sampler
    returns N > 1 hypotheses, each output has an axis of N after the first; where it samples, `generate_ids` takes
    "noise" float32 (B, N, M, V) too, and `serving_default` draws by the sampler's seed and the row's number in the
    batch.

    Signatures of the others: `serving_default`, from strings, images or graphs to the pipeline's answer as tensors;
    `forward`, what `onnx` exports, from ids, images or graphs to the model's outputs; and for pairs of texts
    `classify_pairs`. `export/README.md` lists their tensors. What the pipeline refuses is an InvalidArgumentError.

    Nothing in the graph needs XLA, which TensorFlow Serving turns off.

    Args:
        pipeline: any of `pipelines`.
        folder: of the export; the model goes to `folder/saved_model/name/version`.
        name: the model's name in TensorFlow Serving, by default the folder's.
        version: a positive integer, as TensorFlow Serving counts them.
        texts: compared between the pipeline and the SavedModel before anything takes its place, pairs of question
            and context for `QuestionAnswering`; by default a few made from the vocabulary.

    Returns:
        The version's folder. It appears only when it is complete and verified.

    Raises:
        FileExistsError: where the version exists already.
        ParityError: where an output differs.
        ValueError: where an argument is wrong.

    Example:
        >>> saved_model(translator, "export/es-en")
        PosixPath('export/es-en/saved_model/es-en/1')
    """
    folder = pathlib.Path(folder)
    name = folder.absolute().name if name is None else name
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"`name` must be a plain folder name. Received: name={name!r}")
    kinds.check(pipeline)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"`version` must be a positive integer. Received: version={version!r}")
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"`saved_model` needs the TensorFlow backend. Received: {keras.backend.backend()}")
    part = f"saved_model/{name}/{version}"
    if (folder / part).exists():
        taken = [int(path.name) for path in (folder / part).parent.iterdir() if path.name.isdigit()]
        raise FileExistsError(
            f"`version` must be new; `{folder / part}` exists already and is left as it is. "
            f"Received: version={version}; the next free one is {max(taken) + 1}"
        )
    with new_part(pipeline, folder, part) as (new, report):
        _write(pipeline, new)
        report.update(comparison.WithPipeline(pipeline, texts)(new, part, store=True))
    return folder / part


def _write(pipeline: Any, path: pathlib.Path) -> None:
    archive = keras.export.ExportArchive()
    archive.track(pipeline.model)
    if hasattr(pipeline, "tokenizer"):
        archive.track(pipeline.tokenizer)
    for name, graph in kinds.of(pipeline).signatures(pipeline).items():
        archive.add_endpoint(name, graph.function, input_signature=graph.inputs)
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")  # it would name the temporary folder
    try:
        archive.write_out(path, verbose=False)
    finally:
        logger.setLevel(level)
