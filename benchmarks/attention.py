"""Time and memory of attention, forward and backward: our kernels beside Keras' dense attention, in one run.

Run it with `make benchmarks`, or by hand as README.md beside it says. `--help` lists the options.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import measuring
import numpy as np

PEER, OURS, DENSE = "Keras dense", "ours", "ours, dense"
CORA_NODES, CORA_EDGES = 2708, 10556  # directed, as in the Planetoid files; self-loops come on top


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration of attention, its contenders, and the number of steps in a round."""

    name: str
    relation: str
    length: int
    contenders: tuple[str, ...]
    steps: int
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
        """Floating-point operations of the seven matrix multiplications of both passes, over related pairs only."""
        return 7 * 2 * self.pairs() * self.heads * self.size


COMPARED = (
    Case("causal, n = 8,192", "causal", 8192, (PEER, OURS), 3),
    Case("window 128, n = 8,192", "window", 8192, (PEER, OURS), 3, bandwidth=128),
    Case("Cora-size graph, 8 heads × 8", "graph", CORA_NODES, (PEER, DENSE, OURS), 5, heads=8, size=8),
    Case("Cora-size graph, 8 heads × 64", "graph", CORA_NODES, (PEER, DENSE, OURS), 5, heads=8),
    Case("causal, n = 128", "causal", 128, (PEER, DENSE, OURS), 300),
    Case("causal, n = 512", "causal", 512, (PEER, DENSE, OURS), 100),
)
GROWING = (
    *(Case(f"causal, n = {n:,}", "causal", n, (PEER, OURS), 3) for n in (1024, 2048, 4096)),
    *(Case(f"causal, n = {n:,}", "causal", n, (OURS,), 1) for n in (16384, 32768)),
    *(
        Case(f"window 256, n = {n:,}", "window", n, (PEER, OURS), 3, bandwidth=256)
        for n in (1024, 4096, 8192)
    ),
    *(Case(f"window 256, n = {n:,}", "window", n, (OURS,), 3, bandwidth=256) for n in (32768, 131072)),
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


def build(name: str, threads: int) -> Callable[..., dict[str, Any]]:
    """Return a worker's function from a number of steps to their time and memory.

    Args:
        name: "case | contender | backend | XLA or not".
        threads: of the library.
    """
    case_name, contender, backend, mode = name.split(" | ")
    case = CASES[case_name]
    os.environ["KERAS_BACKEND"] = backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    compiled = (
        _on_jax if backend == "jax" else functools.partial(_on_tensorflow, jit=mode == "XLA", threads=threads)
    )
    warm = np.ones((1, 64, 2, 8), "float32")
    # Load the compilers before measuring memory.
    compiled(lambda query, key, value: query * key + value, [warm] * 3, [])()
    function, tensors, pairs = step_of(case, contender)
    run = compiled(function, tensors, pairs)
    del tensors
    before = _peak_bytes(backend)  # attention's memory includes gradients but not inputs
    first = measuring.seconds(run)
    run()

    def measure(steps: int) -> dict[str, Any]:
        times = [measuring.seconds(run) for _ in range(steps)]
        return {
            "milliseconds": 1000 * measuring.median(times),
            "first_call_seconds": first,
            "added_mib": (_peak_bytes(backend) - before) / 2**20,
        }

    return measure


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


def _peak_bytes(backend: str) -> float:
    """Return the peak memory of the process, or of the GPU if JAX has one."""
    if backend == "jax":
        import jax

        statistics = jax.local_devices()[0].memory_stats()
        if statistics:
            return statistics["peak_bytes_in_use"]
    return measuring.peak_memory_mib() * 2**20


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure every contender of a case in rounds."""
    modes = ("XLA",) if options.backend == "jax" else ("graph", "XLA")
    workers, skipped = [], {}
    for contender in case.contenders:
        for mode in modes:
            name = f"{case.name} | {contender} | {options.backend} | {mode}"
            worker = measuring.Worker(__file__, name, ["--threads", str(options.threads)])
            try:
                worker.ask(None, options.build_timeout)
                workers.append(worker)
            except measuring.WorkerError as error:
                skipped[f"{contender}, {mode}"] = str(error)
                worker.close()
    try:
        answers = measuring.round_robin(workers, options.rounds, {"steps": case.steps}, 120 + 40 * case.steps)
    finally:
        for worker in workers:
            worker.close()
    contenders = {}
    for name, rounds in answers.items():
        _, contender, _, mode = name.split(" | ")
        milliseconds = measuring.median(answer["milliseconds"] for answer in rounds)
        contenders[f"{contender}, {mode}"] = {
            "milliseconds": milliseconds,
            "milliseconds_of_rounds": [answer["milliseconds"] for answer in rounds],
            "cores_busy_with_others": [answer["others"] for answer in rounds],
            "added_mib": max(answer["added_mib"] for answer in rounds),
            "first_call_seconds": rounds[0]["first_call_seconds"],
            "gflops_over_related_pairs": case.operations() / milliseconds / 1e6,
        }
    return {**dataclasses.asdict(case), "contenders": contenders, "skipped": skipped}


def best(case: dict[str, Any], contender: str, quantity: str) -> float:
    """Return the smaller of a contender's figures with and without XLA; NaN if not measured."""
    found = [c[quantity] for name, c in case["contenders"].items() if name.rpartition(", ")[0] == contender]
    return min(found, default=float("nan"))


def main() -> None:
    """Measure, print a table, plot, and write JSON."""
    options = _options()
    if options.worker:
        measuring.serve(lambda: build(options.worker, options.threads))
        return
    names = [name for name in CASES if not options.only or any(part in name for part in options.only)]
    cases = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        cases[name] = measure(CASES[name], options)
    result = {
        **measuring.machine(),
        "backend": options.backend,
        "threads": options.threads,
        "rounds": options.rounds,
        "precision": "float32",
        "cases": cases,
    }
    print(report(result))
    stem = "attention" if options.backend == "tensorflow" else f"attention_{options.backend}"
    print(f"\nWritten to {measuring.write_result(stem, result, options.output)}")
    if not options.only:
        print(f"and {plot(result, options.output / f'{stem}.png')}")


def report(result: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    rows = []
    for case in result["cases"].values():
        for name, c in case["contenders"].items():
            mode = name.rpartition(", ")[2]
            peer = case["contenders"].get(f"{PEER}, {mode}", {})
            memory = best(case, PEER, "added_mib") / max(1.0, c["added_mib"])
            rows.append(
                {
                    "case": case["name"],
                    "contender": name,
                    "ms": f"{c['milliseconds']:.1f}",
                    "min–max": f"{min(c['milliseconds_of_rounds']):.1f}–{max(c['milliseconds_of_rounds']):.1f}",
                    "others' cores": f"{measuring.median(c['cores_busy_with_others']):.2f}",
                    "Keras' time/this": f"{best(case, PEER, 'milliseconds') / c['milliseconds']:.2f}",
                    "in this mode": f"{peer.get('milliseconds', float('nan')) / c['milliseconds']:.2f}",
                    "added MiB": f"{c['added_mib']:,.0f}",
                    "Keras' memory/this": f"{memory:.1f}",
                    "GFLOP/s": f"{c['gflops_over_related_pairs']:.0f}",
                    "first call s": f"{c['first_call_seconds']:.1f}",
                }
            )
    lines = [
        f"{result['device']}; {result['threads']} threads; {result['backend']}; forward and backward, batch 1; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        "",
        measuring.table(rows) if rows else "Nothing was measured.",
    ]
    for case in result["cases"].values():
        lines += [f"Skipped {case['name']}, {name}: {why}" for name, why in case["skipped"].items()]
    return "\n".join(lines)


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
        panels, ("milliseconds", "added_mib"), ("time of a step, ms", "memory added, MiB"), strict=True
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
    """(n, figure) of the cases with 4 heads × 64; of several at one length the smallest."""
    found: dict[int, float] = {}
    for case in cases:
        fits = case["relation"] in relations and case["length"] >= 1024 and case["bandwidth"] in (0, 256)
        figure = best(case, contender, quantity)
        if fits and figure == figure:
            found[case["length"]] = min(figure, found.get(case["length"], figure))
    return sorted(found.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("tensorflow", "jax"), default="tensorflow")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all contenders (default: 5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads (default: all cores)")
    parser.add_argument("--only", action="append", help="only cases whose name contains this; repeatable")
    parser.add_argument(
        "--build-timeout",
        type=float,
        default=300,
        help="seconds after which a contender is skipped (default: 300)",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=measuring.RESULTS, help="folder of the results"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
