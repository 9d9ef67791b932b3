"""Accuracy by number of training samples, with full attention, the right relation, a looser one and a wrong one.

Each position's label is the majority of the tokens related to it: in a window around it, or along the edges of a random
graph. README.md in this folder describes what is equal for all relations. `--help` lists the options.
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import measuring
import numpy as np

COMPLETE, RIGHT, LOOSE, WRONG = "complete", "right", "loose", "wrong"
LOCAL, GRAPH = "local", "graph"
# A seed's data, order and initial weights are drawn separately, and are the same for every relation.
GRAPH_STREAM, TEST_STREAM, VALIDATION_STREAM, TRAINING_STREAM, ORDER_STREAM = range(5)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The tasks, the model and its training, the same for every relation."""

    sizes: tuple[int, ...] = (8, 32, 128, 512, 2048, 8192)
    seeds: int = 3
    updates: int = 1000
    updates_between_validations: int = 50
    batch_size: int = 32
    learning_rate: float = 3e-3
    num_positions: int = 32
    bandwidth: int = 2
    noise: float = 0.1
    model_dim: int = 64
    num_heads: int = 2
    hidden_dim: int = 128
    validation_samples: int = 1024
    test_samples: int = 4096
    evaluation_batch: int = 1024


def random_of(task: str, seed: int, stream: int) -> np.random.Generator:
    """Return the random generator of one of the streams of a seed."""
    return np.random.default_rng([(LOCAL, GRAPH).index(task), seed, stream])


def relations_of(task: str, settings: Settings, random: np.random.Generator) -> dict[str, Any]:
    """Return the four relations: `right` is the task's relation, `loose` contains it, `wrong` is disjoint from it."""
    from keras_transformer import relations

    n, bandwidth = settings.num_positions, settings.bandwidth
    if task == LOCAL:
        right = relations.SlidingWindow(bandwidth, bandwidth)
        away = [((j + n // 2) % n, i) for i, j in np.argwhere(right.matrix(n))]
        loose, wrong = (
            relations.SlidingWindow(3 * bandwidth + 1, 3 * bandwidth + 1),
            relations.Adjacency(away, n),
        )
    else:
        parts = random_graphs(n, 2 * bandwidth + 1, 3, bandwidth, random)
        right, wrong = relations.Adjacency(parts[0], n), relations.Adjacency(parts[1], n)
        loose = relations.Adjacency(itertools.chain(*parts), n)
    return {RIGHT: right, LOOSE: loose, COMPLETE: relations.Full(), WRONG: wrong}


def random_graphs(
    num_nodes: int, degree: int, count: int, bandwidth: int, random: np.random.Generator
) -> list[list[tuple[int, int]]]:
    """Return the edges of graphs without common edges, whose nodes all have `degree` sources and `degree` targets.

    Each graph joins `degree` random permutations. No edge is a loop or as short as `bandwidth`.
    """
    nodes = np.arange(num_nodes)
    taken = np.abs(nodes[:, None] - nodes) <= bandwidth
    graphs: list[list[tuple[int, int]]] = []
    for _ in range(count):
        graphs.append([])
        for _ in range(degree):
            sources = random.permutation(num_nodes)
            while (clashes := np.flatnonzero(taken[nodes, sources])).size:
                a, b = random.choice(clashes), random.integers(num_nodes)
                swapped = int(taken[a, sources[b]]) + int(taken[b, sources[a]])
                if swapped <= int(taken[a, sources[a]]) + int(taken[b, sources[b]]):
                    sources[[a, b]] = sources[[b, a]]
            taken[nodes, sources] = True
            graphs[-1] += zip(sources.tolist(), nodes.tolist(), strict=True)
    return graphs


def draw(
    matrix: np.ndarray, samples: int, noise: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return random bits (B, T), and the majority of the bits related to each position (B, T).

    In a tie, the label is the bit of the position. With probability `noise`, a label is random instead.
    """
    tokens = random.integers(0, 2, (samples, len(matrix)), dtype="int32")
    balance = (2 * tokens - 1) @ matrix.T.astype("int32")  # (B, T)
    labels = np.where(balance == 0, tokens, balance > 0)
    coins = random.integers(0, 2, labels.shape)
    return tokens, np.where(random.random(labels.shape) < noise, coins, labels).astype("int32")


def own_token_accuracy(matrix: np.ndarray, noise: float) -> float:
    """Return the best accuracy that is possible from a position's own token, averaged over positions."""
    agreeing = []
    for row, related in enumerate(matrix):
        others = int(related.sum()) - 1
        ways = sum(math.comb(others, k) for k in range(math.ceil((others - 1) / 2), others + 1))
        agreeing.append(ways / 2**others if related[row] else 0.5)
    return noise / 2 + (1 - noise) * statistics.mean(agreeing)


def build_model(relation: Any, settings: Settings, seed: int) -> Any:
    """Return a model of embedding, learned positions, one encoder block with the relation, and a classifier."""
    import keras

    from keras_transformer import layers

    keras.utils.set_random_seed(seed)
    tokens = keras.Input((settings.num_positions,), dtype="int32")
    hidden = layers.TokenEmbedding(2, settings.model_dim, pad_id=None)(tokens)
    # As large as the embedding, so that full attention can learn from positions as well as from tokens.
    positions = keras.initializers.RandomNormal(stddev=1.0)
    hidden = layers.LearnedPositions(settings.num_positions, initializer=positions)(hidden)
    attention = layers.MultiHeadAttention(settings.num_heads, relation=relation)
    hidden = layers.EncoderBlock(attention, layers.FeedForward(settings.hidden_dim, "gelu"))(hidden)
    model = keras.Model(tokens, keras.layers.Dense(2)(keras.layers.LayerNormalization()(hidden)))
    schedule = keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.updates)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"], jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    return model


def batches(size: int, settings: Settings, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the indices of the samples between two validations, reshuffled in each epoch."""
    needed = settings.updates * settings.batch_size
    order = np.concatenate([random.permutation(size) for _ in range(-(-needed // size))])[:needed]
    block = settings.updates_between_validations * settings.batch_size
    for start in range(0, needed, block):
        yield order[start : start + block]


def train(model: Any, data: dict, order: Iterator[np.ndarray], settings: Settings) -> dict[str, Any]:
    """Train from the initial weights; return the test accuracy of the weights with the best validation accuracy."""
    for variable in model.optimizer.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))

    def accuracy(part: str) -> float:
        return model.evaluate(*data[part], batch_size=settings.evaluation_batch, verbose=0)[1]

    tokens, labels = data["training"]
    best, updates = -1.0, 0
    for samples in order:
        model.fit(tokens[samples], labels[samples], settings.batch_size, shuffle=False, verbose=0)
        updates += len(samples) // settings.batch_size
        if (score := accuracy("validation")) > best:
            best, best_updates, best_weights = score, updates, model.get_weights()
    model.set_weights(best_weights)
    return {"test": accuracy("test"), "validation": best, "updates": best_updates}


def measure(settings: Settings, names: Sequence[str] = (LOCAL, GRAPH)) -> dict[str, Any]:
    """Train with every relation, seed and size of the named tasks; each model is compiled once for all sizes."""
    tasks: dict[str, Any] = {task: {"relations": {}} for task in names}
    for task, seed in itertools.product(tasks, range(settings.seeds)):
        chosen = relations_of(task, settings, random_of(task, seed, GRAPH_STREAM))
        matrix = chosen[RIGHT].matrix(settings.num_positions)
        parts = {
            "test": (settings.test_samples, TEST_STREAM),
            "validation": (settings.validation_samples, VALIDATION_STREAM),
            "training": (max(settings.sizes), TRAINING_STREAM),
        }
        data = {
            part: draw(matrix, samples, settings.noise, random_of(task, seed, stream))
            for part, (samples, stream) in parts.items()
        }
        tasks[task]["own_token"] = own_token_accuracy(matrix, settings.noise)
        for name, relation in chosen.items():
            start = time.perf_counter()
            model = build_model(relation, settings, seed)
            initial = model.get_weights()
            pairs = int(relation.matrix(settings.num_positions).sum())
            facts = {"related_pairs": pairs, "parameters": model.count_params(), "runs": {}}
            runs = tasks[task]["relations"].setdefault(name, facts)["runs"]
            for size in settings.sizes:
                model.set_weights(initial)
                order = batches(size, settings, random_of(task, seed, ORDER_STREAM))
                runs.setdefault(size, []).append(train(model, data, order, settings))
            scores = " ".join(f"{runs[size][-1]['test']:.3f}" for size in settings.sizes)
            seconds = time.perf_counter() - start
            print(f"{task}, seed {seed}, {name}: {scores} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    for relation in (relation for task in tasks.values() for relation in task["relations"].values()):
        accuracies = np.array([[run["test"] for run in runs] for runs in relation["runs"].values()])
        relation["mean"] = accuracies.mean(1).tolist()
        errors = accuracies.std(1, ddof=min(1, settings.seeds - 1)) / math.sqrt(settings.seeds)
        relation["standard_error"] = errors.tolist()
    return tasks


def report(result: dict[str, Any]) -> str:
    """Return a table for each task, in percent: mean and standard error over seeds."""
    tables, limits = [], [f"ceiling {100 * result['ceiling']:.1f}"]
    for name, task in result["tasks"].items():
        rows = []
        for attention, entry in task["relations"].items():
            row = {"task": name, "attention": attention, "pairs": f"{entry['related_pairs']:,}"}
            measured = zip(result["settings"]["sizes"], entry["mean"], entry["standard_error"], strict=True)
            cells = {f"{size:,}": f"{100 * mean:.1f} ± {100 * error:.1f}" for size, mean, error in measured}
            rows.append(row | cells)
        tables.append(measuring.table(rows))
        limits.append(f"own token only {100 * task['own_token']:.1f} ({name})")
    return "\n\n".join([*tables, ", ".join(limits)])


def plot(result: dict[str, Any]) -> Any:
    """Plot accuracy over training samples for each task, with bands of one standard error and limits as lines."""
    from matplotlib.figure import Figure

    titles = {LOCAL: "Label: majority of a window", GRAPH: "Label: majority of neighbours in a random graph"}
    right, loose, complete, wrong = ("#2a6fbb", "o"), ("#2e8b6f", "s"), ("#d1622b", "D"), ("#66788a", "v")
    styles = {RIGHT: right, LOOSE: loose, COMPLETE: complete, WRONG: wrong}
    sizes, ink = result["settings"]["sizes"], "#2b3440"
    figure = Figure(figsize=(10, 4.4), layout="constrained", dpi=150)
    panels = figure.subplots(1, len(result["tasks"]), sharey=True, squeeze=False)[0]
    for axes, (name, task) in zip(panels, result["tasks"].items(), strict=True):
        for attention, entry in task["relations"].items():
            colour, marker = styles[attention]
            mean, error = 100 * np.array(entry["mean"]), 100 * np.array(entry["standard_error"])
            label = f"{attention}: {entry['related_pairs']:,} pairs"
            axes.plot(sizes, mean, color=colour, marker=marker, ms=5, zorder=3, label=label)
            axes.fill_between(sizes, mean - error, mean + error, color=colour, alpha=0.25, lw=0)
        limits = {task["own_token"]: "own token only", 0.5: "a coin", result["ceiling"]: "ceiling"}
        for height, text in limits.items():
            axes.axhline(100 * height, color=ink, lw=0.9, ls=(0, (4, 3)), zorder=1)
            axes.text(sizes[-1], 100 * height + 0.4, text, fontsize=8, color=ink, ha="right", va="bottom")
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        axes.set_xticks([], minor=True)
        axes.set(xlabel="training samples", title=titles[name], ylim=(47, 99))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.58))
    panels[0].set_ylabel("held-out accuracy, %")
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON and a plot."""
    options = _options(arguments)
    os.environ["KERAS_BACKEND"] = options.backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # `measuring.machine` names the CPU
    os.environ["JAX_PLATFORMS"] = "cpu"
    settings = Settings(tuple(sorted(options.sizes)), options.seeds, options.updates)
    start, busy = time.perf_counter(), time.process_time()
    tasks = measure(settings)
    result = {
        "machine": measuring.machine(),
        "backend": f"{options.backend} {importlib.metadata.version(options.backend)}",
        "wall_seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - busy,
        "settings": dataclasses.asdict(settings),
        "ceiling": 1 - settings.noise / 2,
        "tasks": tasks,
    }
    print(report(result))
    path = measuring.write_result(options.name, result, options.output)
    plot(result).savefig(path.with_suffix(".png"))
    print(f"\n{result['wall_seconds']:.0f} s. Written to {path} and {path.with_suffix('.png').name}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = measuring.parser(__doc__, "inductive_bias")
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", help="training samples (default: 8 32 128 512 2048 8192)")
    add("--seeds", type=int, help="of data, graph and weights (default: 3)")
    add("--updates", type=int, help="of each training (default: 1000)")
    add("--backend", choices=("tensorflow", "jax"), help="of Keras (default: KERAS_BACKEND, or tensorflow)")
    add("--quick", action="store_true", help="a minute or two: 2 sizes, 1 seed, 600 updates; writes to runs")
    options = parser.parse_args(arguments)
    usual = Settings()
    usually = (usual.sizes, usual.seeds, usual.updates)
    sizes, seeds, updates = ((64, 1024), 1, 600) if options.quick else usually
    options.sizes, options.seeds = options.sizes or sizes, options.seeds or seeds
    options.updates = options.updates or updates
    if options.quick and options.output == measuring.RESULTS:
        options.output = pathlib.Path("runs")
    options.backend = options.backend or os.environ.get("KERAS_BACKEND", "tensorflow")
    return options


if __name__ == "__main__":
    main()
