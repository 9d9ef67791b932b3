"""Time of only the matrix multiplications of one generation step: a vector, or a few, by every decoder matrix.

What no step can beat, as long as its library does not multiply faster. Each library in a process of its own:

    .venv-bench/bin/python benchmarks/matrix_multiplications.py XLA --layers 3 --matmuls 14   # or --help
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable

import measuring
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEPS = 50
Shapes = list[tuple[int, int]]


def matrices(layers: int, matmuls: int, size: int, vocabulary_size: int) -> Shapes:
    """Return the shapes of a decoder whose layers have the weights of `matmuls` D × D matrices, 8 in feed-forward."""
    layer = [(size, size)] * (matmuls - 8) + [(size, 4 * size), (4 * size, size)]
    return [*layers * layer, (size, vocabulary_size)]


def xla(shapes: Shapes, threads: int) -> Callable[[int], float]:
    """Measure seconds per step of a compiled loop, by rows."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    random = np.random.default_rng(0)
    weights = [tf.Variable(random.normal(size=shape, scale=0.05).astype("float32")) for shape in shapes]

    @tf.function(jit_compile=True, autograph=False)
    def loop(start: tf.Tensor) -> tf.Tensor:
        def step(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            hidden = x
            for weight in weights[:-1]:
                hidden = tf.matmul(hidden, weight)
            return i + 1, x + 1e-6 * tf.reduce_max(tf.matmul(hidden, weights[-1]))

        return tf.while_loop(lambda i, _: i < STEPS, step, (0, start))[1]

    def seconds(rows: int) -> float:
        x = tf.ones((rows, shapes[0][0]))
        return _median(lambda: loop(x).numpy()) / STEPS

    return seconds


def onnx_runtime(shapes: Shapes, threads: int) -> Callable[[int], float]:
    """Measure seconds per run of a graph of only matrix multiplications, by rows."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    sizes = sorted({inner for inner, _ in shapes})
    weights = [
        numpy_helper.from_array(random.normal(size=shape, scale=0.05).astype("float32"), f"w{i}")
        for i, shape in enumerate(shapes)
    ]
    nodes = [
        helper.make_node("MatMul", [f"x{inner}", f"w{i}"], [f"y{i}"]) for i, (inner, _) in enumerate(shapes)
    ]
    graph = helper.make_graph(
        nodes,
        "matmuls",
        [helper.make_tensor_value_info(f"x{size}", TensorProto.FLOAT, [None, size]) for size in sizes],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(len(shapes))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def seconds(rows: int) -> float:
        inputs = {f"x{size}": np.ones((rows, size), "float32") for size in sizes}
        return _median(lambda: [session.run(None, inputs) for _ in range(STEPS)]) / STEPS

    return seconds


LIBRARIES = {"XLA": xla, "ONNX Runtime": onnx_runtime}


def _median(run: Callable[[], object]) -> float:
    run()
    return statistics.median(measuring.seconds(run) for _ in range(9))


def main() -> None:
    """Print JSON: seconds by the number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("--layers", type=int, required=True, help="of the decoder")
    parser.add_argument("--matmuls", type=int, required=True, help="D × D matrices' worth of each layer")
    parser.add_argument("--size", type=int, default=256, help="D (default: 256)")
    parser.add_argument("--vocabulary-size", type=int, default=8000, help="(default: 8000)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 32], help="(default: 1 4 8 32)")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    shapes = matrices(options.layers, options.matmuls, options.size, options.vocabulary_size)
    seconds = LIBRARIES[options.library](shapes, options.threads)
    print(json.dumps({rows: seconds(rows) for rows in options.rows}))


if __name__ == "__main__":
    main()
