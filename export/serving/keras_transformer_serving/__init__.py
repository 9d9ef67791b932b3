"""Run exports of `keras_transformer` with ONNX Runtime, without TensorFlow or Keras."""

import functools
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer_serving.bundle import Bundle as Bundle
from keras_transformer_serving.ctranslate2_target import ServedCTranslate2 as ServedCTranslate2
from keras_transformer_serving.generation import Alignment as Alignment
from keras_transformer_serving.generation import Answer as Answer
from keras_transformer_serving.generation import ExportedEngine as ExportedEngine
from keras_transformer_serving.generation import Generation as Generation
from keras_transformer_serving.generation import uniform_noise as uniform_noise
from keras_transformer_serving.graph_files import FLOAT32
from keras_transformer_serving.graphs import Graphs as Graphs
from keras_transformer_serving.litert_target import ServedLiteRt as ServedLiteRt
from keras_transformer_serving.model import Model as Model
from keras_transformer_serving.onnx_target import ServedOnnx as ServedOnnx
from keras_transformer_serving.parity import ParityError as ParityError
from keras_transformer_serving.parity import exported_tokenizer
from keras_transformer_serving.part_files import PartFiles as PartFiles
from keras_transformer_serving.pipelines import Embedding as Embedding
from keras_transformer_serving.pipelines import FillMask as FillMask
from keras_transformer_serving.pipelines import QuestionAnswering as QuestionAnswering
from keras_transformer_serving.pipelines import RankedText as RankedText
from keras_transformer_serving.pipelines import Reranking as Reranking
from keras_transformer_serving.pipelines import SpeechToText as SpeechToText
from keras_transformer_serving.pipelines import TextClassification as TextClassification
from keras_transformer_serving.pipelines import TextGeneration as TextGeneration
from keras_transformer_serving.pipelines import TextToText as TextToText
from keras_transformer_serving.pipelines import TokenClassification as TokenClassification
from keras_transformer_serving.pipelines import ZeroShotClassification as ZeroShotClassification
from keras_transformer_serving.pipelines import pipeline_of
from keras_transformer_serving.pipelines.errors import check_positive_integer
from keras_transformer_serving.sessions import Provider
from keras_transformer_serving.sessions import Sessions as Sessions
from keras_transformer_serving.targets import EngineOptions as EngineOptions
from keras_transformer_serving.targets import ServedTarget as ServedTarget
from keras_transformer_serving.targets import part_to_run
from keras_transformer_serving.text import Tokenizer as Tokenizer
from keras_transformer_serving.text import reads_text as reads_text
from keras_transformer_serving.text import tokenizer_of as tokenizer_of

__version__ = "0.1.0"
__all__ = [
    "Alignment",
    "Answer",
    "Bundle",
    "Embedding",
    "EngineOptions",
    "ExportedEngine",
    "FillMask",
    "Generation",
    "Graphs",
    "Model",
    "ParityError",
    "PartFiles",
    "QuestionAnswering",
    "RankedText",
    "Reranking",
    "ServedCTranslate2",
    "ServedTarget",
    "Sessions",
    "SpeechToText",
    "TextClassification",
    "TextGeneration",
    "TextToText",
    "TokenClassification",
    "Tokenizer",
    "ZeroShotClassification",
    "load",
    "reads_text",
    "tokenizer_of",
    "uniform_noise",
    "verify",
]


def load(
    folder: str | os.PathLike[str],
    providers: Sequence[Provider] | None = None,
    *,
    precision: str = FLOAT32,
    threads: int | None = None,
    workers: int = 1,
    engine: str | None = None,
    signature_key: bytes | None = None,
) -> Any:
    """Load an export to run it without TensorFlow, after verifying that they are what was exported.

    The size and SHA-256 digest of each file that is used are verified of the bytes that are used. Files of other parts
    of the export may be missing, but no file may have been added.

    Args:
        folder: the export, as `keras_transformer.export.bundle` writes it.
        providers: ONNX Runtime's execution providers in order of preference, names such as "CUDAExecutionProvider" or
            tuples (name, options); by default CUDA, if available, then CPU.
        precision: "float32", or "float16" (for GPUs), "int8" or "int4" (for CPUs) if the export has them.
        threads: the number of threads that share an operation; by default one for each core, divided by `workers`.
        workers: the number of batches of texts that are computed at the same time. Many batches of a small model are
            fastest on a CPU with one worker for each core, a single one with one worker.
        engine: the name of the target whose part is run, such as "onnx" or "ctranslate2"; by default "onnx", or the
            first part of the export that an engine runs.
        signature_key: the key that the export must be signed with; by default any signature is ignored.

    Returns:
        For a pipeline of texts the class of its name, such as `TextToText` or `TextClassification`, a function with
        the arguments, outputs and errors of the pipeline; of images, one of images in the model's size. A `Model` for
        graphs. All have `run`, which takes and returns arrays.

    Raises:
        FileNotFoundError: if the folder is not an export or has no part that an engine runs.
        ImportError: if ONNX Runtime or what else the engine needs is not installed, or `tokenizers`, if the export's
            tokenizer needs it.
        ParityError: if the tokenizer gives other ids than at export.
        ValueError: if a file is not the one that was exported or was added, or the manifest was edited or is not
            signed with the key, a provider cannot be used, `threads` or `workers` is no positive integer, or the export
            lacks the precision, or the engine does not take an option.

    Example:
        >>> translate = load("export/es-en")
        >>> translate(["¿Dónde está la estación?"])
        ['Where is the station?']
    """
    check_positive_integer("workers", workers)
    bundle = Bundle(folder, signature_key)
    bundle.check_additions()
    part, target = part_to_run(bundle, engine)
    options = EngineOptions(precision, providers, threads, workers)
    target.check_options(options)
    config = bundle.config
    computing = target.engine(PartFiles.of_bundle(bundle, part), config, options)
    pipeline = pipeline_of(computing, config, exported_tokenizer(bundle))
    pipeline.target = part
    pipeline.reload = functools.partial(
        load,
        bundle.folder.absolute(),
        providers,
        precision=precision,
        threads=threads,
        workers=workers,
        engine=engine,
        signature_key=signature_key,
    )
    return pipeline


def verify(folder: str | os.PathLike[str], *, signature_key: bytes | None = None) -> dict[str, Any]:
    """Verify an export: that it has the files that were exported and no others, and that its graphs give the outputs.

    The parts that run without TensorFlow, such as ONNX graphs, are run on the inputs that were stored at export.
    SavedModels need TensorFlow to run:
    `keras_transformer.export.verify` does.

    Args:
        folder: the export.
        signature_key: the key that the export must be signed with; by default any signature is ignored.

    Returns:
        By part that runs without TensorFlow, the report of `keras_transformer.export.verify`.

    Raises:
        FileNotFoundError: if `folder` is not an export.
        ImportError: as for `load`.
        ParityError: if an output differs from the model's.
        ValueError: if a file is missing, has changed or was added, or the manifest was edited, is of another format, or
            is not signed with the key.

    Example:
        >>> verify("export/es-en")["onnx"]["graphs"]["onnx_loop"]
        {'identical': 26, 'near_ties': 0}
    """
    bundle = Bundle(folder, signature_key)
    bundle.check()
    targets = {part: ServedTarget.named(part) for part in bundle.parity}
    return {part: target.verify(bundle, part) for part, target in targets.items() if target is not None}
