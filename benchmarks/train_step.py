"""Tokens per second of a training step of a small Transformer: this package, KerasHub and PyTorch.

Run it with `make benchmarks`, or by hand as README.md beside it says. `--help` lists the options.
"""

import argparse
import collections
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Collection
from typing import Any

import measuring
import numpy as np
import runner

OURS, HUB, TORCH = "keras_transformer", "KerasHub", "PyTorch"
MEMORY_KEPT = {
    "TF_CPU_ALLOCATOR_USE_BFC": "true",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
"""Environment variables that let TensorFlow and glibc keep freed memory: the fastest form of each contender."""
PAD = 0
Size = tuple[int, int, int]
"""(rows, inner, columns) of a multiplication of (rows, inner) by weights (inner, columns)."""


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The model and the batch, the same for every contender."""

    num_layers: int = 3
    num_heads: int = 8
    model_dim: int = 256
    hidden_dim: int = 1024
    vocabulary_size: int = 8000
    batch_size: int = 64
    length: int = 32
    dropout: float = 0.1
    smoothing: float = 0.1
    learning_rate: float = 1e-3

    @property
    def tokens(self) -> int:
        """The number of source and target tokens of a step."""
        return 2 * self.batch_size * self.length

    def matmuls(self, sources: int, targets: int) -> collections.Counter[Size]:
        """Return the number of multiplications of each size in a forward pass over positions of sources and targets.

        Each side has a feed-forward network, self-attention, and two of the multiplications of cross-attention.
        """
        model, hidden = self.model_dim, self.hidden_dim
        counts: collections.Counter[Size] = collections.Counter()
        for rows in (sources, targets):
            counts[rows, model, model] += 6 * self.num_layers
            counts[rows, model, hidden] += self.num_layers
            counts[rows, hidden, model] += self.num_layers
        counts[targets, model, self.vocabulary_size] += 1
        return counts

    @property
    def step_matmuls(self) -> collections.Counter[Size]:
        """The number of multiplications of each size in the forward pass of a step."""
        return self.matmuls(self.tokens // 2, self.tokens // 2)

    def step_operations(self) -> float:
        """Return the floating-point operations of the matrix multiplications of a step: forward, and twice backward."""
        weights = sum(2 * math.prod(shape) * count for shape, count in self.step_matmuls.items())
        # Per encoder block one attention, per decoder block two; scores and weighted sum each.
        attention = 3 * self.num_layers * 2 * 2 * self.batch_size * self.length**2 * self.model_dim
        return 3.0 * (weights + attention)

    def batch(self) -> dict[str, np.ndarray]:
        """Return random ids without padding."""
        random = np.random.default_rng(0)
        draw = functools.partial(
            random.integers, PAD + 4, self.vocabulary_size, (self.batch_size, self.length), dtype="int32"
        )
        return {"source_ids": draw(), "target_ids": draw(), "labels": draw()}


def prepare_ours(shapes: Shapes, context: runner.Context, jit: bool) -> runner.Run:
    """Prepare the Transformer of this package, trained by `fit`."""
    start_keras(context.threads)
    return _fit(*our_model(shapes), our_adam(shapes), shapes, jit, context.options.steps)


def our_model(shapes: Shapes) -> tuple[Any, Any]:
    """Return the Transformer of this package and its loss."""
    import keras_transformer as kt

    model = kt.models.Transformer(
        shapes.vocabulary_size,
        num_layers=shapes.num_layers,
        num_heads=shapes.num_heads,
        model_dim=shapes.model_dim,
        hidden_dim=shapes.hidden_dim,
        dropout=shapes.dropout,
    )
    return model, kt.training.LabelSmoothedCrossentropy(shapes.smoothing)


def our_adam(shapes: Shapes) -> Any:
    """Return the optimizer of this package."""
    import keras_transformer as kt

    return kt.training.Adam(shapes.learning_rate)


def prepare_keras_hub(shapes: Shapes, context: runner.Context, jit: bool) -> runner.Run:
    """Prepare KerasHub's encoder and decoder layers in a functional model, trained by `fit`.

    Its loss does not smooth labels, because Keras needs one-hot labels of the vocabulary's size for it, which are far
    slower. This favours KerasHub.
    """
    keras = start_keras(context.threads)
    adam = keras.optimizers.Adam(shapes.learning_rate)
    return _fit(*keras_hub_model(keras, shapes), adam, shapes, jit, context.options.steps)


def keras_hub_model(keras: Any, shapes: Shapes) -> tuple[Any, Any]:
    """Return a functional model of KerasHub's layers, for rows of any length, and its loss."""
    import keras_hub

    layers = keras_hub.layers
    options = {
        "intermediate_dim": shapes.hidden_dim,
        "num_heads": shapes.num_heads,
        "dropout": shapes.dropout,
        "activation": "relu",
        "layer_norm_epsilon": 1e-6,
        "normalize_first": True,
    }
    embedding = layers.ReversibleEmbedding(shapes.vocabulary_size, shapes.model_dim, tie_weights=True)
    ids = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source_ids", "target_ids")}
    real = {name: keras.ops.not_equal(tensor, PAD) for name, tensor in ids.items()}

    def embed(name: str) -> Any:
        vectors = embedding(ids[name]) * math.sqrt(shapes.model_dim)
        return keras.layers.Dropout(shapes.dropout)(vectors + layers.SinePositionEncoding()(vectors))

    memory = embed("source_ids")
    for _ in range(shapes.num_layers):
        memory = layers.TransformerEncoder(**options)(memory, padding_mask=real["source_ids"])
    memory = keras.layers.LayerNormalization(epsilon=1e-6)(memory)
    hidden = embed("target_ids")
    for _ in range(shapes.num_layers):
        hidden = layers.TransformerDecoder(**options)(
            hidden,
            memory,
            decoder_padding_mask=real["target_ids"],
            encoder_padding_mask=real["source_ids"],
        )
    logits = embedding(keras.layers.LayerNormalization(epsilon=1e-6)(hidden), reverse=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.Model(ids, logits), loss


def prepare_torch(shapes: Shapes, context: runner.Context, jit: bool) -> runner.Run:
    """Prepare `torch.nn.Transformer` in a training loop, with the faster form of Adam."""
    import torch

    torch.set_num_threads(context.threads)
    torch.manual_seed(0)
    ids = {name: torch.from_numpy(array.astype("int64")) for name, array in shapes.batch().items()}
    model = torch_model(torch, shapes)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=shapes.smoothing, ignore_index=PAD)

    def loss_of() -> Any:
        logits = model(ids["source_ids"], ids["target_ids"])
        return criterion(logits.flatten(0, 1), ids["labels"].flatten())

    compute = torch.compile(loss_of) if jit else loss_of

    def train(steps: int, optimizer: Any) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            compute().backward()
            optimizer.step()

    forms = [
        torch.optim.Adam(model.parameters(), shapes.learning_rate, **form) for form in ({}, {"fused": True})
    ]

    @functools.cache
    def fastest() -> Any:
        for form in forms:
            train(1, form)
        return min(forms, key=lambda form: min(measuring.seconds(lambda: train(2, form)) for _ in range(2)))

    def run() -> runner.Figures:
        train(context.options.steps, fastest())
        return {
            "steps": context.options.steps,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "fused_adam": bool(fastest().defaults["fused"]),
        }

    return runner.first_step(lambda: train(1, forms[0]), run)


def torch_model(torch: Any, shapes: Shapes) -> Any:
    """Return a model of `torch.nn.Transformer`, for rows of at most `shapes.length` ids."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(shapes.vocabulary_size, shapes.model_dim)
            torch.nn.init.normal_(self.embedding.weight, std=shapes.model_dim**-0.5)
            self.transformer = torch.nn.Transformer(
                shapes.model_dim,
                shapes.num_heads,
                shapes.num_layers,
                shapes.num_layers,
                shapes.hidden_dim,
                shapes.dropout,
                activation="relu",
                batch_first=True,
                norm_first=True,
            )
            self.drop = torch.nn.Dropout(shapes.dropout)
            rates = 10000.0 ** (-torch.arange(0, shapes.model_dim, 2) / shapes.model_dim)
            angles = torch.arange(shapes.length)[:, None] * rates
            self.register_buffer("encoding", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
            unrelated = torch.ones(shapes.length, shapes.length, dtype=torch.bool).triu(1)
            self.register_buffer("unrelated", unrelated)

        def embed(self, ids: Any) -> Any:
            return self.drop(
                self.embedding(ids) * math.sqrt(shapes.model_dim) + self.encoding[: ids.shape[1]]
            )

        def forward(self, source_ids: Any, target_ids: Any) -> Any:
            length = target_ids.shape[1]
            hidden = self.transformer(
                self.embed(source_ids),
                self.embed(target_ids),
                tgt_mask=self.unrelated[:length, :length],
                src_key_padding_mask=source_ids == PAD,
                tgt_key_padding_mask=target_ids == PAD,
                memory_key_padding_mask=source_ids == PAD,
                tgt_is_causal=True,
            )
            return torch.nn.functional.linear(hidden, self.embedding.weight)

    return Model()


def start_keras(threads: int) -> Any:
    """Import Keras with TensorFlow on the CPU."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # compare on the CPU
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    import keras

    keras.utils.set_random_seed(0)
    return keras


def _fit(model: Any, loss: Any, adam: Any, shapes: Shapes, jit: bool, steps: int) -> runner.Run:
    import tensorflow as tf

    batch = shapes.batch()
    labels = batch.pop("labels")
    options = tf.data.Options()
    options.autotune.enabled = False  # TensorFlow would wait for its tuner at the end of `fit`
    dataset = tf.data.Dataset.from_tensors((batch, labels)).repeat().with_options(options)
    model.compile(adam, loss, jit_compile=jit)

    def run() -> runner.Figures:
        model.fit(dataset, steps_per_epoch=steps, verbose=0)
        return {"steps": steps, "parameters": model.count_params()}

    return runner.first_step(lambda: model.fit(dataset, steps_per_epoch=1, verbose=0), run)


def prepare_limit(shapes: Shapes, context: runner.Context, library: str) -> runner.Run:
    """Prepare matrix multiplications with the shapes of a step."""
    matmuls = shapes.step_matmuls
    sizes = {*matmuls, (2048, 2048, 2048)}
    measure = matmul_seconds(library, context.threads, sizes, max(3, context.options.steps))

    def run() -> runner.Figures:
        times = measure()
        rates = {
            f"gflops, {'×'.join(map(str, size))}": 6e-9 * math.prod(size) / times[size] for size in sizes
        }
        operations = sum(6e-9 * math.prod(size) * count for size, count in matmuls.items())
        seconds = sum(times[size] * count for size, count in matmuls.items())
        return {
            "seconds": seconds,
            "gflops": operations / seconds,
            "best_gflops": max(rates.values()),
            **rates,
        }

    return run


def matmul_seconds(
    library: str, threads: int, sizes: Collection[Size], repeats: int
) -> Callable[[], dict[Size, float]]:
    """Return a function that measures the seconds of the three multiplications of each size in a step.

    A step computes each product three times: forward x·W, and backward dy·Wᵀ and xᵀ·dy.
    """
    multiply, finish = _multiply(library, threads)
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return finish(random.standard_normal(shape, dtype="float32"))

    operands = {
        size: (draw(size[0], size[1]), draw(size[1], size[2]), draw(size[0], size[2])) for size in sizes
    }

    def three(size: Size) -> None:
        inputs, weights, gradient = operands[size]
        multiply(inputs, weights, False, False)
        multiply(gradient, weights, False, True)
        multiply(inputs, gradient, True, False)

    def fastest(size: Size) -> float:
        three(size)
        return min(measuring.seconds(lambda: three(size)) for _ in range(repeats))

    return lambda: {size: fastest(size) for size in sizes}


def _multiply(library: str, threads: int) -> tuple[Callable[..., Any], Callable[[np.ndarray], Any]]:
    if library == "tensorflow":
        start_keras(threads)
        import tensorflow as tf

        return lambda a, b, at, bt: tf.matmul(a, b, transpose_a=at, transpose_b=bt), tf.constant
    import torch

    torch.set_num_threads(threads)
    return lambda a, b, at, bt: torch.matmul(a.T if at else a, b.T if bt else b), torch.from_numpy


def derive(shapes: Shapes, measured: dict[str, Any]) -> None:
    """Add the rates of operations, and their ratios to the limit."""
    measured["step_gflop"] = shapes.step_operations() / 1e9
    limits = measured.get("limits", {}).values()
    measured["limit_gflops"] = max((limit["gflops"] for limit in limits), default=math.nan)
    ours = [figures["seconds"] for name, figures in measured["contenders"].items() if name.startswith(OURS)]
    for figures in measured["contenders"].values():
        figures["ours_over_this"] = figures["seconds"] / min(ours, default=math.nan)
        figures["gflops"] = measured["step_gflop"] / figures["seconds"]
        figures["share_of_limit"] = figures["gflops"] / measured["limit_gflops"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of steps."""
    parser.add_argument("--steps", type=int, default=10, help="of a call (default: %(default)s)")


PREPARES = {OURS: prepare_ours, HUB: prepare_keras_hub, TORCH: prepare_torch}
BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    {"step": Shapes()},
    {
        f"{name}, {compiled}" if jit else name: functools.partial(prepare, jit=jit)
        for name, prepare in PREPARES.items()
        for jit, compiled in ((False, ""), (True, "compiled" if name == TORCH else "XLA"))
    },
    limits={
        "TensorFlow matmul": functools.partial(prepare_limit, library="tensorflow"),
        "PyTorch matmul": functools.partial(prepare_limit, library="torch"),
    },
    units=lambda shapes: shapes.tokens,
    environment=lambda contender, options: MEMORY_KEPT,
    derive=derive,
    columns={"gflops": ".0f", "share_of_limit": ".0%", "ours_over_this": ".2f"},
    add_options=add_options,
)

if __name__ == "__main__":
    BENCHMARK.main()
