"""The matrix multiplications of one generation step: one or a few vectors by every decoder matrix.

They are a lower limit for the time of a step with the same library, used by other benchmarks.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

STEPS = 50
BLOCK = 64  # weights of 4 and 8 bits that share a scale in `MatMulNBits`
Shapes = list[tuple[int, int]]


def matrices(layers: int, matmuls: int, size: int, vocabulary_size: int) -> Shapes:
    """Return the shapes of a decoder whose layers have the weights of `matmuls` D × D matrices, 8 in feed-forward."""
    layer = [(size, size)] * (matmuls - 8) + [(size, 4 * size), (4 * size, size)]
    return [*layers * layer, (size, vocabulary_size)]


def xla(shapes: Shapes, threads: int, rows: int) -> Callable[[], object]:
    """Return a function that runs a compiled loop of steps."""
    import tensorflow as tf

    if not tf.config.threading.get_intra_op_parallelism_threads():
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

    x = tf.ones((rows, shapes[0][0]))
    return lambda: loop(x).numpy()


def jax_xla(shapes: Shapes, threads: int, rows: int) -> Callable[[], object]:
    """Return a function that runs a loop of steps, compiled by JAX for its device; `threads` is not used."""
    import jax
    import jax.numpy as jnp

    del threads
    random = np.random.default_rng(0)
    matrices_ = [jnp.asarray(random.normal(size=shape, scale=0.05), "float32") for shape in shapes]

    @jax.jit
    def loop(weights: list[Any], start: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            hidden = functools.reduce(jnp.matmul, weights[:-1], x)
            return x + 1e-6 * jnp.max(hidden @ weights[-1])

        return jax.lax.fori_loop(0, STEPS, step, start)

    x = jnp.ones((rows, shapes[0][0]))
    return lambda: loop(matrices_, x).block_until_ready()


def onnx_runtime(
    shapes: Shapes, threads: int, rows: int, precision: str = "float32", steps: int = STEPS
) -> Callable[[], object]:
    """Return a function that runs steps of an ONNX graph of matrix multiplications.

    Args:
        shapes: the shapes of the matrices.
        threads: the number of threads.
        rows: the number of vectors.
        precision: that of the weights: "float32", "int8", or "int4" for 4 bits, and 8 in the last matrix.
        steps: the number of steps.
    """
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    sizes = sorted({inner for inner, _ in shapes})
    weights = {"scale": np.array(0.001, "float32")}
    nodes = []
    for i, (inner, outer) in enumerate(shapes):
        inputs, settings = [f"x{inner}", f"w{i}"], {}
        if precision == "float32":
            operation = "MatMul"
            weights[f"w{i}"] = random.normal(size=(inner, outer), scale=0.05).astype("float32")
        elif precision == "int8":
            operation = "DynamicQuantizeMatMul"
            weights[f"w{i}"] = random.integers(-64, 64, (inner, outer), "int8")
            inputs.append("scale")
        else:
            operation, blocks = "MatMulNBits", -(-inner // BLOCK)
            bits = 8 if i + 1 == len(shapes) else 4
            weights[f"w{i}"] = random.integers(0, 256, (outer, blocks, BLOCK * bits // 8), "uint8")
            weights[f"s{i}"] = np.full((outer, blocks), 0.001, "float32")
            inputs.append(f"s{i}")
            settings = {"K": inner, "N": outer, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
        domain = "" if precision == "float32" else "com.microsoft"
        nodes.append(helper.make_node(operation, inputs, [f"y{i}"], domain=domain, **settings))
    graph = helper.make_graph(
        nodes,
        "matmuls",
        [helper.make_tensor_value_info(f"x{size}", TensorProto.FLOAT, [None, size]) for size in sizes],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(len(shapes))],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    session = _session(graph, threads)
    inputs = {f"x{size}": np.ones((rows, size), "float32") for size in sizes}
    return lambda: [session.run(None, inputs) for _ in range(steps)]


def empty_loop(threads: int) -> Callable[[], object]:
    """Return a function that runs a loop of an ONNX graph, whose steps compute nothing."""
    from onnx import TensorProto, helper, numpy_helper

    step, condition, state = (
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("step", TensorProto.INT64), ("runs", TensorProto.BOOL), ("x", TensorProto.FLOAT))
    )
    copies = [helper.make_node("Identity", [name], [f"{name}_next"]) for name in ("runs", "x")]
    outputs = [
        helper.make_tensor_value_info("runs_next", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x_next", TensorProto.FLOAT, []),
    ]
    body = helper.make_graph(copies, "body", [step, condition, state], outputs)
    loop = helper.make_node("Loop", ["steps", "true", "start"], ["end"], body=body)
    constants = [
        numpy_helper.from_array(np.array(STEPS), "steps"),
        numpy_helper.from_array(np.array(True), "true"),
    ]
    start, end = (helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("start", "end"))
    session = _session(helper.make_graph([loop], "loop", [start], [end], constants), threads)
    return lambda: session.run(None, {"start": np.array(0.0, "float32")})


def _session(graph: Any, threads: int) -> Any:
    import onnxruntime
    from onnx import helper

    from keras_transformer_serving import huge_pages

    versions = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3  # "scale" may be unused
    with huge_pages.for_new_memory([0.0]):
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


LIBRARIES = {
    "XLA": xla,
    "ONNX Runtime": onnx_runtime,
    "ONNX Runtime, int8": functools.partial(onnx_runtime, precision="int8"),
}
