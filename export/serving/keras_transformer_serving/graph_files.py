"""The files of the parts of an export in float32 and other precisions, and of ONNX graphs."""

import os
from collections.abc import Callable, Container, Iterable

from keras_transformer_serving import external_data
from keras_transformer_serving.part_files import PartFiles

FLOAT32 = "float32"
INT4 = "int4"
BY_DEFAULT = ("float16", "int8")  # exported unless precisions are named
CONVERTED = (*BY_DEFAULT, INT4)  # converted from float32, each in a folder of its name
OPTIMUM = "optimum"  # the folder of graphs that Optimum loads


def graph_file(name: str, files: Container[str], precision: str = FLOAT32) -> str:
    """Return the file of a graph, relative to the folder of ONNX graphs.

    Args:
        name: the graph's name, or `external_data.file_name` of it: the weights of a large graph are in the same folder.
        files: the names of all files.
        precision: "float32" or one of `CONVERTED`.
    """
    file = name if name.endswith(external_data.file_name("")) else f"{name}.onnx"
    if precision != FLOAT32:
        return f"{precision}/{file}"
    optimum = f"{OPTIMUM}/{file}"
    return optimum if optimum in files else file


def graph_reader(files: PartFiles, precision: str = FLOAT32) -> Callable[[str], bytes | os.PathLike[str]]:
    """Return a function from the name of an ONNX graph of an export, or of its weights, to the file.

    Args:
        files: the files of the part.
        precision: one of the export's precisions.
    """
    check_precision(files, precision)
    return lambda name: files.read(graph_file(name, files.names, precision))


def check_precision(files: PartFiles, precision: str) -> None:
    """Raise a ValueError unless a part has a precision."""
    precisions = [FLOAT32, *converted_precisions(files.names)]
    if precision not in precisions:
        reason = files.left_out.get(precision)
        raise ValueError(
            f"`precision` must be one of the export's: {', '.join(precisions)}. Received: precision={precision!r}"
            + (f", which was left out at export: {reason}" if reason else "")
        )


def converted_precisions(names: Iterable[str]) -> list[str]:
    """Return the precisions of a part except float32, from the names of its files."""
    folders = {name.split("/")[0] for name in names}
    return [precision for precision in CONVERTED if precision in folders]
