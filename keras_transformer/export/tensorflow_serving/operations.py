"""Check that TensorFlow Serving has the operations of a SavedModel, and can run them without XLA."""

import functools
import gzip
import importlib.resources
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
import tensorflow_text
from google.protobuf import text_format  # noqa: F401  (loads protobuf before TensorFlow's messages)
from tensorflow.core.framework import graph_debug_info_pb2
from tensorflow.core.protobuf import saved_model_pb2

RUNTIME = "TensorFlow 2.20 and TF.Text 2.20"
"""The versions in the newest TensorFlow Serving."""

_JIT = "_XlaMustCompile"
_NOT_CALLERS = tuple(
    f"{pathlib.Path(package.__file__).parent}{os.sep}" for package in (keras, tf, tensorflow_text)
)


class Finding(NamedTuple):
    """A node that TensorFlow Serving cannot run.

    Attributes:
        reason: the operation, and why it is not supported.
        node: the node's name, which begins with its layers' names.
        function: the name of its function in the SavedModel; "" for the main graph.
    """

    reason: str
    node: str
    function: str


def check(path: pathlib.Path, write_with_debug_info: Callable[[str], Any]) -> None:
    """Raise a ValueError if TensorFlow Serving cannot run a SavedModel.

    Args:
        path: its folder.
        write_with_debug_info: a function that writes the same SavedModel to another folder, with debug information.

    Raises:
        ValueError: if it has operations, or attributes of operations, that TensorFlow 2.20 and TF.Text 2.20 lack, or
            that need XLA. The message names each operation, its node and the code that created it.
    """
    findings = list(unsupported(path))
    if not findings:
        return
    with tempfile.TemporaryDirectory() as folder:
        write_with_debug_info(folder)
        code_of = _code_of(pathlib.Path(folder))
    # A loop occurs in several functions of a SavedModel, so report each line of code once.
    by_code = {(finding.reason, code_of(finding)): finding for finding in reversed(findings)}
    received = (
        f"{reason}, at {finding.node}" + (f" in {finding.function}" if finding.function else "") + code
        for (reason, code), finding in sorted(by_code.items())
    )
    raise ValueError(
        f"`model` must consist of operations that TensorFlow Serving supports: {RUNTIME}, without XLA. "
        f"Received: {'; '.join(received)}"
    )


def unsupported(path: pathlib.Path) -> Iterator[Finding]:
    """Yield the nodes of a SavedModel, in all its functions, that TensorFlow Serving cannot run."""
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((path / "saved_model.pb").read_bytes())
    for meta_graph in saved_model.meta_graphs:
        library = meta_graph.graph_def.library.function
        functions = {function.signature.name for function in library}
        compiled = {function.signature.name for function in library if function.attr[_JIT].b}
        bodies = [
            ("", meta_graph.graph_def.node),
            *((function.signature.name, function.node_def) for function in library),
        ]
        for name, nodes in bodies:
            for node in nodes:
                for reason in _reasons(node, functions, compiled):
                    yield Finding(reason, node.name, name)


def _reasons(node: Any, functions: set[str], compiled: set[str]) -> Iterator[str]:
    """Yield the reasons why a node is not supported.

    Args:
        node: the node.
        functions: the names of all functions.
        compiled: the names of the functions that XLA compiles.
    """
    known = supported()
    called = {value.func.name for value in node.attr.values() if value.HasField("func")}
    if "Xla" in node.op:
        yield f"{node.op}, which needs XLA"
    elif node.attr[_JIT].b or called & compiled or node.op in compiled:
        yield f"{node.op} of a function with jit_compile=True, which needs XLA"
    elif node.op not in known and node.op not in functions:
        yield f"{node.op}, which {RUNTIME} lack"
    elif node.op in known:
        for attribute in sorted({*node.attr} - known[node.op]):
            if not attribute.startswith("_"):
                yield f"{node.op} with the attribute {attribute}, which {RUNTIME} lack"


@functools.cache
def supported() -> dict[str, frozenset[str]]:
    """Return the operations of TensorFlow 2.20 and TF.Text 2.20, and the names of their attributes.

    `make serving-operations` writes the file, with one line for each operation.
    """
    file = importlib.resources.files(__package__) / "operations.txt.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return {name: frozenset(attributes) for name, *attributes in map(str.split, lines)}


def _code_of(path: pathlib.Path) -> Callable[[Finding], str]:
    """Return a function from a node to the innermost line of code outside TensorFlow and Keras that created it."""
    debug_info = graph_debug_info_pb2.GraphDebugInfo()
    debug_info.ParseFromString((path / "debug" / "saved_model_debug_info.pb").read_bytes())

    def code_of(finding: Finding) -> str:
        trace = debug_info.name_to_trace_id.get(f"{finding.node}@{finding.function}")  # the first is 0
        frames = [] if trace is None else debug_info.traces_by_id[trace].frame_id
        for frame in (debug_info.frames_by_id[id_] for id_ in reversed(frames)):
            file = debug_info.files[frame.file_index]
            if not file.startswith(_NOT_CALLERS):
                return f" ({file}:{frame.line}, {frame.func})"
        return ""

    return code_of
