"""Add an export to a model repository of NVIDIA Triton Inference Server.

    python export/triton/make_repository.py runs/quickstart/export model_repository --name es-en

writes `model_repository/es-en/config.pbtxt` and into `model_repository/es-en/1/` the graph: the whole generation loop,
or `model` of a pipeline that does not generate. It needs `keras-transformer-serving`. The options `--precision` and
`--max-batch-size` apart, `config.pbtxt` is the export's `serving/triton/config.pbtxt`.

With `--text`, the model takes texts and returns answers: a version has `text_model.py` as the `model.py` of Triton's
Python backend, and the export without its SavedModels. The server needs `keras-transformer-serving[cpu,server]`.
"""

import argparse
import os
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer_serving import FLOAT32, Bundle
from keras_transformer_serving.bundle import MANIFEST, ONNX, is_bundle
from keras_transformer_serving.external_data import file_name
from keras_transformer_serving.files import new_folder, write_bytes
from keras_transformer_serving.graph_files import graph_reader
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.triton import (
    CONFIG,
    MAX_BATCH_SIZE,
    model_files,
    served_graph,
    text_model_config,
)

TEXT_MODEL = pathlib.Path(__file__).with_name("text_model.py")
Sources = Mapping[str, pathlib.Path]


def make_repository(
    bundle: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: int = 1,
    precision: str = FLOAT32,
    max_batch_size: int = MAX_BATCH_SIZE,
    text: bool = False,
) -> pathlib.Path:
    """Add an export to a model repository: the whole version, or nothing.

    Args:
        bundle: the export.
        repository: the folder of models, which is created if it does not exist.
        name: the model's name, by default the name of the folder `bundle`.
        version: the version, a folder of the model. Other versions of the model must have an equal configuration.
        precision: "float32", or "float16" (for GPUs), "int8" or "int4" (for CPUs) if the export has them.
        max_batch_size: the largest batch, or 0; see `keras_transformer_serving.triton.model_files`.
        text: whether the model takes texts instead of ids; float32 only.

    Returns:
        The folder of the version.

    Raises:
        FileExistsError: if the version exists.
        FileNotFoundError: if `bundle` is not an export, or has no ONNX graphs.
        ValueError: if an argument is not as described, or the export was changed.
    """
    folder = pathlib.Path(bundle).resolve()
    name = folder.name if name is None else name
    target = pathlib.Path(repository).resolve() / name
    _check(folder, target, name, version, max_batch_size)
    export = Bundle(folder)
    if ONNX not in export.parity:
        raise FileNotFoundError(
            f"`bundle` must have ONNX graphs, which Triton runs. Received: {str(folder)!r}, with "
            f"{', '.join(export.parity)}"
        )
    if text:
        contents, sources = _text_model(export, precision, max_batch_size)
    else:
        contents, sources = _graph_model(export, precision, max_batch_size)
    if not target.exists():
        with new_folder(target) as new:
            for file, content in contents.items():
                (new / file).parent.mkdir(exist_ok=True)
                write_bytes(new / file, content)
            (new / str(version)).mkdir()
            _link(sources, new / str(version))
    else:
        if (target / CONFIG).read_bytes() != contents[CONFIG]:
            raise ValueError(
                f"`name` must be of a new model, or of one with an equal {CONFIG}. Received: name={name!r}, "
                f"whose {target / CONFIG} differs"
            )
        with new_folder(target / str(version)) as new:
            _link(sources, new)
    return target / str(version)


def _graph_model(export: Bundle, precision: str, max_batch_size: int) -> tuple[dict[str, bytes], Sources]:
    """Return the contents of the files of a model of ids, and the files of its versions."""
    sources, tensors = _graph(export, precision)
    contents = model_files(sources[0].name, tensors, export.config, max_batch_size)
    return contents, {source.name: source for source in sources}


def _text_model(export: Bundle, precision: str, max_batch_size: int) -> tuple[dict[str, bytes], Sources]:
    """Return the contents of the files of a model of texts, and the files of its versions."""
    if precision != FLOAT32:
        raise ValueError(f"`precision` must be {FLOAT32!r} for texts. Received: precision={precision!r}")
    contents = {CONFIG: text_model_config(export.config, max_batch_size)}
    names = [name for name in export.manifest["files"] if not name.startswith("saved_model/")]
    sources = {f"export/{name}": export.folder / name for name in [MANIFEST, *names]}
    return contents, {"model.py": TEXT_MODEL, **sources}


def _graph(export: Bundle, precision: str) -> tuple[list[pathlib.Path], dict[str, Any]]:
    """Return the verified files of the graph to serve, and its inputs, outputs and defaults."""
    read = graph_reader(PartFiles.of_bundle(export, ONNX), precision)
    signatures = export.parity.get(ONNX, {}).get("signatures", {})
    file = served_graph(export.config, signatures, precision)
    graph = export.folder / ONNX / file
    read(graph.stem)
    weights = graph.with_name(file_name(graph.stem))
    if not weights.exists():
        return [graph], signatures[file.removesuffix(".onnx")]
    read(weights.name)
    return [graph, weights], signatures[file.removesuffix(".onnx")]


def _link(sources: Sources, folder: pathlib.Path) -> None:
    """Link or copy files, by their names, into the folder of a version."""
    for name, source in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, folder / name)
        except OSError:  # another file system
            shutil.copy2(source, folder / name)


def _check(folder: pathlib.Path, target: pathlib.Path, name: str, version: int, max_batch_size: int) -> None:
    """Raise unless the arguments of `make_repository` are as described."""
    if not is_bundle(folder):
        raise FileNotFoundError(
            f"`bundle` must be an export, with a {MANIFEST}, as `keras_transformer.export` writes it. "
            f"Received: {str(folder)!r}"
        )
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(
            "`name` must consist of letters, digits, '_', '-' and '.', and start with a letter, a digit or '_'. "
            f"Received: name={name!r}"
        )
    for argument, value, least in (("version", version, 1), ("max_batch_size", max_batch_size, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"`{argument}` must be an integer of at least {least}. Received: {value!r}")
    if target.is_relative_to(folder):
        raise ValueError(
            "`repository` must not be in the export, which would not be as it was exported any more. "
            f"Received: repository={str(target.parent)!r}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Add an export to a model repository of Triton.")
    parser.add_argument("bundle", help="the folder of the export")
    parser.add_argument("repository", help="the folder of models")
    parser.add_argument("--name", help="the model's name; by default the name of the export's folder")
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--precision", default=FLOAT32, help="float32, float16, int8 or int4")
    parser.add_argument(
        "--max-batch-size",
        type=int,
        default=32,
        help="0: no batches, and requests may have the graph's inputs with defaults",
    )
    parser.add_argument("--text", action="store_true", help="a model of texts, on Triton's Python backend")
    options = parser.parse_args(arguments)
    try:
        make_repository(**vars(options))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
