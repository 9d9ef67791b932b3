"""Load models of CTranslate2."""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer_serving.graph_files import FLOAT32, check_precision
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.pipelines.errors import check_positive_integer
from keras_transformer_serving.sessions import LOG, num_cores
from keras_transformer_serving.targets import EngineOptions

CTRANSLATE2 = "ctranslate2"


def ctranslate2_package() -> Any:
    """Return the package.

    Raises:
        ImportError: if it is not installed, or too old.
    """
    message = "CTranslate2 4.8 or later is needed, of the extra [ctranslate2]: pip install ctranslate2"
    try:
        import ctranslate2
    except ModuleNotFoundError as error:
        raise ImportError(f"{message}. Received: {error}") from error
    if tuple(map(int, ctranslate2.__version__.split(".")[:2])) < (4, 8):
        raise ImportError(f"{message}. Received: version {ctranslate2.__version__}")
    return ctranslate2


def file_of(name: str, precision: str) -> str:
    """Return a file of the model in a precision, relative to the folder of the part."""
    return name if precision == FLOAT32 else f"{precision}/{name}"


def load(
    kind: str,
    files: PartFiles,
    options: EngineOptions,
    vocabularies: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
    try_out: Callable[[Any], Any],
) -> tuple[Any, str]:
    """Return the model of a part, and the type of its device: a GPU if CTranslate2 can use one, else the CPU.

    Args:
        kind: the name of the model's class in the package.
        files: the files of the part.
        options: how it computes. A device without the precision, such as a CPU without float16, computes in float32.
        vocabularies: the tokens in place of those of the vocabulary's file, by its name.
        settings: settings in place of those of `config.json`.
        try_out: a function that runs the model, which loads the libraries of CUDA.

    Raises:
        ImportError: if CTranslate2 is not installed.
        ValueError: if the export lacks the precision, or `threads` is no positive integer.
    """
    package = ctranslate2_package()
    precision, threads, workers = options.precision, options.threads, options.workers
    check_precision(files, precision)
    if threads is not None:
        check_positive_integer("threads", threads)
    threads = threads or max(num_cores() // workers, 1)
    content = {name: json.dumps(tokens).encode() for name, tokens in vocabularies.items()}
    config = json.loads(files.content(file_of("config.json", precision)))
    content["config.json"] = json.dumps({**config, **settings}).encode()
    content["model.bin"] = files.content(file_of("model.bin", precision))

    def on(device: str) -> Any:
        is_supported = precision in package.get_supported_compute_types(device)
        return operator.attrgetter(kind)(package)(
            CTRANSLATE2,
            device,
            compute_type=precision if is_supported else FLOAT32,
            intra_threads=threads,
            inter_threads=max(workers, num_cores() // threads),
            files=content,
        )

    if package.get_cuda_device_count():
        try:
            model = on("cuda")
            try_out(model)
            return model, "cuda"
        except RuntimeError as error:
            LOG.warning("CTranslate2 runs on the CPU, as it cannot use the GPU: %s", error)
    return on("cpu"), "cpu"
