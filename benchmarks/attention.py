"""Time and memory of attention, forward and backward: the kernels of this package and Keras' dense attention.

Run it with `make benchmarks`, or by hand as README.md beside it says. `--help` lists the options.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import runner

PEER, OURS, DENSE = "Keras dense", "ours", "ours, dense"
CORA_NODES, CORA_EDGES = 2708, 10556  # directed, as in the Planetoid files; self-loops come on top


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration of attention, and the contenders compared on it."""

    name: str
    relation: str
    length: int
    compared: tuple[str, ...]
    heads: int = 4
    size: int = 64
    bandwidth: int = 0

    def pairs(self) -> int:
        """The number of related pairs of a query and a key."""
        if self.relation == "causal":
            return self.length * (self.length + 1) // 2
        if self.relation == "window":
            return self.length * (self.bandwidth + 1) - self.bandwidth * (self.bandwidth + 1) // 2
        return CORA_EDGES + CORA_NODES

    def operations(self) -> int:
        """Return the floating-point operations of the seven matrix products of both passes, over related pairs."""
        return 7 * 2 * self.pairs() * self.heads * self.size


COMPARED = (
    Case("causal, n = 8,192", "causal", 8192, (PEER, OURS)),
    Case("window 128, n = 8,192", "window", 8192, (PEER, OURS), bandwidth=128),
    Case("Cora-size graph, 8 heads × 8", "graph", CORA_NODES, (PEER, DENSE, OURS), heads=8, size=8),
    Case("Cora-size graph, 8 heads × 64", "graph", CORA_NODES, (PEER, DENSE, OURS), heads=8),
    Case("causal, n = 128", "causal", 128, (PEER, DENSE, OURS)),
    Case("causal, n = 512", "causal", 512, (PEER, DENSE, OURS)),
)
GROWING = (
    *(Case(f"causal, n = {n:,}", "causal", n, (PEER, OURS)) for n in (1024, 2048, 4096)),
    *(Case(f"causal, n = {n:,}", "causal", n, (OURS,)) for n in (16384, 32768)),
    *(Case(f"window 256, n = {n:,}", "window", n, (PEER, OURS), bandwidth=256) for n in (1024, 4096, 8192)),
    *(Case(f"window 256, n = {n:,}", "window", n, (OURS,), bandwidth=256) for n in (32768, 131072)),
)
CASES = {case.name: case for case in (*COMPARED, *GROWING)}


def step_of(case: Case, contender: str) -> tuple[Callable[..., Any], list[np.ndarray], list[np.ndarray]]:
    """Return the attention as a function of query, key, value and edges or masks, and random inputs."""
    from keras import ops

    import keras_transformer as kt

    random = np.random.default_rng(0)
    shape = (1, case.length, case.heads, case.size)
    tensors = [random.standard_normal(shape, dtype="float32") for _ in range(3)]
    edges = _graph(random) if case.relation == "graph" else None
    window = kt.relations.SlidingWindow(case.bandwidth) if case.relation == "window" else None
    if contender == PEER:
        if case.relation == "causal":
            return lambda *tensors: ops.dot_product_attention(*tensors, is_causal=True), tensors, []
        matrix = _matrix(edges) if window is None else window.matrix(case.length)
        masks = [matrix[None, None]]
        return lambda q, k, v, mask: ops.dot_product_attention(q, k, v, mask=mask), tensors, masks
    kernel = "dense" if contender == DENSE else "auto"
    if edges is not None:
        return (
            lambda q, k, v, edges: kt.ops.attention(q, k, v, edges=edges, kernel=kernel),
            tensors,
            [edges[None]],
        )
    relation = "causal" if window is None else window
    return lambda *tensors: kt.ops.attention(*tensors, relation, kernel=kernel), tensors, []


def _graph(random: np.random.Generator) -> np.ndarray:
    """Return a random graph of Cora's size, [source, target], with both directions of each edge and self-loops."""
    ends = np.array([random.choice(CORA_NODES, 2, replace=False) for _ in range(CORA_EDGES // 2)])
    loops = np.repeat(np.arange(CORA_NODES)[:, None], 2, axis=1)
    return np.concatenate([ends, ends[:, ::-1], loops]).astype("int32")


def _matrix(edges: np.ndarray) -> np.ndarray:
    matrix = np.zeros((CORA_NODES, CORA_NODES), bool)
    matrix[edges[:, 1], edges[:, 0]] = True
    return matrix


def prepare(case: Case, context: runner.Context, contender: str, xla: bool) -> runner.Run:
    """Return a step of a contender, with its inputs in place."""
    on_jax = context.options.backend == "jax"
    if on_jax and not xla:
        raise ValueError("JAX compiles by XLA")
    os.environ["KERAS_BACKEND"] = context.options.backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    compiled = _on_jax if on_jax else functools.partial(_on_tensorflow, jit=xla, threads=context.threads)
    warm = np.ones((1, 64, 2, 8), "float32")
    # Load the compilers before measuring memory.
    compiled(lambda query, key, value: query * key + value, [warm] * 3, [])()
    return compiled(*step_of(case, contender))


def _on_tensorflow(
    function: Callable[..., Any], tensors: list[np.ndarray], pairs: list[np.ndarray], jit: bool, threads: int
) -> Callable[[], Any]:
    import tensorflow as tf

    if (
        not tf.config.list_physical_devices("GPU")
        and not tf.config.threading.get_intra_op_parallelism_threads()
    ):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    arguments = [tf.constant(tensor) for tensor in (*tensors, *pairs)]

    @tf.function(jit_compile=jit, autograph=False)
    def gradients(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments[:3])
            total = tf.reduce_sum(tf.square(function(*arguments)))
        return tape.gradient(total, arguments[:3])

    def run() -> None:
        for gradient in gradients(*arguments):
            gradient[0, 0, 0, 0].numpy()  # waits for it, and copies nothing

    return run


def _on_jax(
    function: Callable[..., Any], tensors: list[np.ndarray], pairs: list[np.ndarray]
) -> Callable[[], Any]:
    import jax

    arguments = [jax.numpy.asarray(tensor) for tensor in (*tensors, *pairs)]
    gradients = jax.jit(jax.grad(lambda *arguments: (function(*arguments) ** 2).sum(), (0, 1, 2)))
    return lambda: jax.block_until_ready(gradients(*arguments))


def derive(case: Case, measured: dict[str, Any]) -> None:
    """Add the rate of operations."""
    for figures in measured["contenders"].values():
        figures["gflops_over_related_pairs"] = case.operations() / figures["seconds"] / 1e9


def best(case: dict[str, Any], contender: str, quantity: str) -> float:
    """Return the smaller of a contender's figures with and without XLA; NaN if not measured."""
    figures = [c[quantity] for name, c in case["contenders"].items() if name.rpartition(", ")[0] == contender]
    return min(figures, default=float("nan"))


def plot(result: dict[str, Any], path: pathlib.Path) -> pathlib.Path:
    """Plot time and memory over the sequence length."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    lines = (
        (PEER, ("causal", "window"), "Keras dense", "tab:gray"),
        (OURS, ("causal",), "ours, causal", "tab:blue"),
        (OURS, ("window",), "ours, window 256", "tab:orange"),
    )
    for axes, quantity, title in zip(
        panels, ("seconds", "added_mib"), ("time of a step, s", "memory added, MiB"), strict=True
    ):
        for contender, relations, label, color in lines:
            points = _points(result["cases"].values(), contender, relations, quantity)
            axes.plot(*zip(*points, strict=True), marker="o", ms=4, label=label, color=color)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="length n", title=title)
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    figure.suptitle("Attention, forward and backward, 4 heads × 64, batch 1")
    figure.savefig(path, dpi=150)
    return path


def _points(
    cases: Iterable[dict[str, Any]], contender: str, relations: tuple[str, ...], quantity: str
) -> list[tuple[int, float]]:
    """Return (n, figure) of the cases with 4 heads × 64, with the smallest figure for each length."""
    smallest: dict[int, float] = {}
    for case in cases:
        fits = case["relation"] in relations and case["length"] >= 1024 and case["bandwidth"] in (0, 256)
        figure = best(case, contender, quantity)
        if fits and figure == figure:
            smallest[case["length"]] = min(figure, smallest.get(case["length"], figure))
    return sorted(smallest.items())


def applies(case: Case, contender: str) -> bool:
    """Return whether a contender's kernel takes part in a case."""
    return contender.rpartition(", ")[0] in case.compared


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the backend, on which the contenders without XLA depend."""
    parser.add_argument("--backend", choices=("tensorflow", "jax"), default="tensorflow")


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "steps",
    CASES,
    {
        f"{contender}, {mode}": functools.partial(prepare, contender=contender, xla=mode == "XLA")
        for contender in (OURS, PEER, DENSE)
        for mode in ("graph", "XLA")
    },
    applies=applies,
    fresh=True,
    derive=derive,
    columns={"added_mib": ",.0f", "gflops_over_related_pairs": ".0f"},
    add_options=add_options,
)

if __name__ == "__main__":
    result = BENCHMARK.main()
    if result and len(result["cases"]) == len(CASES):
        folder = pathlib.Path(result["settings"]["output"])
        print(f"and {plot(result, folder / (result['settings']['name'] + '.png'))}")
