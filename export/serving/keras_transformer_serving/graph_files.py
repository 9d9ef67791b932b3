"""The files of the ONNX graphs of an export, in float32 and other precisions."""

from collections.abc import Callable

from keras_transformer_serving import external_data
from keras_transformer_serving.bundle import ONNX, Bundle

FLOAT32 = "float32"
CONVERTED = ("float16", "int8")  # converted from float32, each in a folder of its name
OPTIMUM = "optimum"  # the folder of graphs that Optimum loads


def graph_file(name: str, exists: Callable[[str], bool], precision: str = FLOAT32) -> str:
    """Return the file of a graph, relative to the folder of ONNX graphs.

    Args:
        name: the graph's name, or `external_data.file_name` of it: the weights of a large graph are in the same folder.
        exists: a function that returns whether there is a file of a name.
        precision: "float32" or one of `CONVERTED`.
    """
    file = name if name.endswith(external_data.file_name("")) else f"{name}.onnx"
    if precision != FLOAT32:
        return f"{precision}/{file}"
    optimum = f"{OPTIMUM}/{file}"
    return optimum if exists(optimum) else file


def graph_reader(bundle: Bundle, precision: str = FLOAT32) -> Callable[[str], bytes]:
    """Return a function from the name of an ONNX graph of an export, or of its weights, to the content of the file.

    Args:
        bundle: the export.
        precision: one of the export's precisions.

    Raises:
        ValueError: if the export does not have the precision.
    """
    precisions = [FLOAT32, *converted_precisions(bundle)]
    if precision not in precisions:
        reason = bundle.left_out.get(precision)
        raise ValueError(
            f"`precision` must be one of the export's: {', '.join(precisions)}. Received: precision={precision!r}"
            + (f", which was left out at export: {reason}" if reason else "")
        )

    def exists(file: str) -> bool:
        return f"{ONNX}/{file}" in bundle.manifest["files"]

    return lambda name: bundle.read(f"{ONNX}/{graph_file(name, exists, precision)}")


def converted_precisions(bundle: Bundle) -> list[str]:
    """Return the precisions of an export except float32."""
    files = bundle.manifest["files"]
    return [
        precision for precision in CONVERTED if any(name.startswith(f"{ONNX}/{precision}/") for name in files)
    ]
