"""Tokens per second of a training step of a small Transformer: ours, KerasHub's and PyTorch's, in one run.

Run it with `make benchmarks`, or by hand as README.md beside it says. `--help` lists the options.
"""

import argparse
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np

OURS, HUB, TORCH = "keras_transformer", "KerasHub", "PyTorch"
CONTENDERS = {
    OURS: {"library": "ours", "jit": False},
    f"{OURS}, XLA": {"library": "ours", "jit": True},
    HUB: {"library": "keras_hub", "jit": False},
    f"{HUB}, XLA": {"library": "keras_hub", "jit": True},
    TORCH: {"library": "torch", "jit": False},
    f"{TORCH}, compiled": {"library": "torch", "jit": True},
}
LIMITS = {"TensorFlow matmul": "tensorflow", "PyTorch matmul": "torch"}
PAD = 0


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

    def matmuls(self) -> dict[tuple[int, int, int], int]:
        """Return the number of multiplications of (rows, inner) by weights (inner, columns) in a forward pass."""
        rows, model, hidden = self.batch_size * self.length, self.model_dim, self.hidden_dim
        return {
            (rows, model, model): 4 * self.num_layers + 8 * self.num_layers,
            (rows, model, hidden): 2 * self.num_layers,
            (rows, hidden, model): 2 * self.num_layers,
            (rows, model, self.vocabulary_size): 1,
        }

    def step_operations(self) -> float:
        """Floating-point operations in the matrix multiplications of a step: forward once, backward twice that."""
        weights = sum(2 * math.prod(shape) * count for shape, count in self.matmuls().items())
        # Per encoder block one attention, per decoder block two; scores and weighted sum each.
        attention = 3 * self.num_layers * 2 * 2 * self.batch_size * self.length**2 * self.model_dim
        return 3.0 * (weights + attention)

    def batch(self) -> dict[str, np.ndarray]:
        """Random ids without padding."""
        random = np.random.default_rng(0)
        draw = functools.partial(
            random.integers, PAD + 4, self.vocabulary_size, (self.batch_size, self.length), dtype="int32"
        )
        return {"source_ids": draw(), "target_ids": draw(), "labels": draw()}


def build_ours(shapes: Shapes, jit: bool, threads: int) -> tuple[int, Callable[[int], Any]]:
    """Our Transformer, trained by `fit`."""
    keras = start_keras(threads)
    return _fit(keras, *our_model(shapes), shapes, jit)


def our_model(shapes: Shapes) -> tuple[Any, Any]:
    """Return our Transformer and its loss."""
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


def build_keras_hub(shapes: Shapes, jit: bool, threads: int) -> tuple[int, Callable[[int], Any]]:
    """KerasHub's encoder and decoder layers in a functional model, trained by `fit`.

    Its loss does not smooth labels: in Keras that needs one-hot labels of the vocabulary's size, which cost far
    more. So the comparison favours it.
    """
    keras = start_keras(threads)
    return _fit(keras, *keras_hub_model(keras, shapes), shapes, jit)


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


def build_torch(shapes: Shapes, jit: bool, threads: int) -> tuple[int, Callable[[int], Any]]:
    """`torch.nn.Transformer` in a plain loop, with whichever form of Adam is faster here."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    ids = {name: torch.from_numpy(array.astype("int64")) for name, array in shapes.batch().items()}
    model = torch_model(torch, shapes)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=shapes.smoothing, ignore_index=PAD)

    def loss_of() -> Any:
        logits = model(ids["source_ids"], ids["target_ids"])
        return criterion(logits.flatten(0, 1), ids["labels"].flatten())

    compute = torch.compile(loss_of) if jit else loss_of

    def run(steps: int, optimizer: Any) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            compute().backward()
            optimizer.step()

    forms = [
        torch.optim.Adam(model.parameters(), shapes.learning_rate, **form) for form in ({}, {"fused": True})
    ]
    first = measuring.seconds(lambda: run(1, forms[0]))
    run(1, forms[1])
    trials = [min(measuring.seconds(lambda form=form: run(2, form)) for _ in range(2)) for form in forms]
    fastest = forms[trials.index(min(trials))]

    def steps_of(steps: int) -> dict[str, Any]:
        return {"first_call_seconds": first, "fused_adam": bool(fastest.defaults["fused"])} | {
            "seconds": measuring.seconds(lambda: run(steps, fastest))
        }

    return sum(parameter.numel() for parameter in model.parameters()), steps_of


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


def _fit(keras: Any, model: Any, loss: Any, shapes: Shapes, jit: bool) -> tuple[int, Callable[[int], Any]]:
    import tensorflow as tf

    batch = shapes.batch()
    labels = batch.pop("labels")
    options = tf.data.Options()
    options.autotune.enabled = False  # TensorFlow would wait for its tuner at the end of `fit`
    dataset = tf.data.Dataset.from_tensors((batch, labels)).repeat().with_options(options)
    model.compile(keras.optimizers.Adam(shapes.learning_rate), loss, jit_compile=jit)

    def run(steps: int) -> None:
        model.fit(dataset, steps_per_epoch=steps, verbose=0)

    first = measuring.seconds(lambda: run(1))
    run(2)

    def steps_of(steps: int) -> dict[str, Any]:
        return {"first_call_seconds": first, "seconds": measuring.seconds(lambda: run(steps))}

    return model.count_params(), steps_of


def build_contender(name: str, shapes: Shapes, threads: int) -> Callable[..., dict[str, Any]]:
    """Return a worker's function from a number of steps to their time and memory."""
    builders = {"ours": build_ours, "keras_hub": build_keras_hub, "torch": build_torch}
    choice = CONTENDERS[name]
    parameters, steps_of = builders[choice["library"]](shapes, choice["jit"], threads)

    def measure(steps: int) -> dict[str, Any]:
        measured = steps_of(steps)
        return {
            **measured,
            "milliseconds": 1000 * measured["seconds"] / steps,
            "parameters": parameters,
            "peak_memory_mib": measuring.peak_memory_mib(),
        }

    return measure


def build_limit(name: str, shapes: Shapes, threads: int) -> Callable[..., dict[str, Any]]:
    """A worker's function that measures the speed of matrix multiplications of the step's shapes.

    A step computes each product three times: forward x·W, and backward dy·Wᵀ and xᵀ·dy.
    """
    multiply, finish = _multiply(LIMITS[name], threads)
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return finish(random.standard_normal(shape, dtype="float32"))

    sizes = {*shapes.matmuls(), (2048, 2048, 2048)}
    operands = {
        size: (draw(size[0], size[1]), draw(size[1], size[2]), draw(size[0], size[2])) for size in sizes
    }

    def three(size: tuple[int, int, int]) -> None:
        inputs, weights, gradient = operands[size]
        multiply(inputs, weights, False, False)
        multiply(gradient, weights, False, True)
        multiply(inputs, gradient, True, False)

    def measure(steps: int) -> dict[str, Any]:
        times = {}
        for size in sizes:
            three(size)
            times[size] = min(measuring.seconds(lambda size=size: three(size)) for _ in range(max(3, steps)))
        rate = {"×".join(map(str, size)): 6e-9 * math.prod(size) / times[size] for size in sizes}
        matmuls = shapes.matmuls()
        operations = sum(6e-9 * math.prod(size) * count for size, count in matmuls.items())
        weighted = operations / sum(times[size] * count for size, count in matmuls.items())
        return {"rates": rate, "weighted": weighted, "best": max(rate.values())}

    return measure


def _multiply(library: str, threads: int) -> tuple[Callable[..., Any], Callable[[np.ndarray], Any]]:
    if library == "tensorflow":
        start_keras(threads)
        import tensorflow as tf

        return lambda a, b, at, bt: tf.matmul(a, b, transpose_a=at, transpose_b=bt), tf.constant
    import torch

    torch.set_num_threads(threads)
    return lambda a, b, at, bt: torch.matmul(a.T if at else a, b.T if bt else b), torch.from_numpy


def main() -> None:
    """Measure, print a table, write JSON."""
    options = _options()
    if options.worker:
        build = build_limit if options.worker in LIMITS else build_contender
        measuring.serve(lambda: build(options.worker, Shapes(), options.threads))
        return
    shapes, skipped = Shapes(), {}
    names = [name for name in CONTENDERS if not options.only or any(part in name for part in options.only)]
    workers = []
    for name in [*LIMITS, *names]:
        worker = measuring.Worker(__file__, name, ["--threads", str(options.threads)])
        try:
            worker.ask(None, options.build_timeout)
            workers.append(worker)
        except measuring.WorkerError as error:
            skipped[name] = str(error)
            worker.close()
        print(f"built {name}" if name not in skipped else f"skipped {name}", file=sys.stderr, flush=True)
    try:
        answers = measuring.round_robin(
            workers, options.rounds, {"steps": options.steps}, 120 + 10 * options.steps
        )
    finally:
        for worker in workers:
            worker.close()
    result = _result(shapes, answers, skipped, options)
    print(_report(result))
    print(f"\nWritten to {measuring.write_result('train_step', result, options.output)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all contenders (default: 5)")
    parser.add_argument(
        "--steps", type=int, default=10, help="steps of each contender in a round (default: 10)"
    )
    parser.add_argument(
        "--tries", type=int, default=3, help="tries while other processes disturb (default: 3)"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads (default: all cores)")
    parser.add_argument(
        "--only", action="append", help="only contenders whose name contains this; repeatable"
    )
    parser.add_argument(
        "--build-timeout", type=float, default=180, help="seconds after which a contender that has not "
        "finished its first steps is skipped (default: 180)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=measuring.pathlib.Path, default=measuring.RESULTS, help="folder of the JSON file"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _result(
    shapes: Shapes,
    answers: dict[str, list[dict[str, Any]]],
    skipped: dict[str, str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    limits = {
        name: {
            "weighted_gflops": measuring.median(answer["weighted"] for answer in answers[name]),
            "best_gflops": max(answer["best"] for answer in answers[name]),
            "gflops": {
                size: measuring.median(answer["rates"][size] for answer in answers[name])
                for size in answers[name][0]["rates"]
            },
        }
        for name in LIMITS
        if name in answers
    }
    limit = max((limit["weighted_gflops"] for limit in limits.values()), default=math.nan)
    contenders = {}
    for name in CONTENDERS:
        if name not in answers:
            continue
        times = [answer["milliseconds"] for answer in answers[name]]
        step, last = measuring.median(times), answers[name][-1]
        gflops = shapes.step_operations() / step / 1e6
        contenders[name] = {
            "parameters": last["parameters"],
            "milliseconds": step,
            "milliseconds_of_rounds": times,
            "cores_busy_with_others": [answer["others"] for answer in answers[name]],
            "tokens_per_second": 1000 * shapes.tokens / step,
            "gflops": gflops,
            "share_of_limit": gflops / limit,
            "peak_memory_mib": last["peak_memory_mib"],
            "first_call_seconds": last["first_call_seconds"],
            **({"fused_adam": last["fused_adam"]} if "fused_adam" in last else {}),
        }
    ours = min(
        (c["milliseconds"] for name, c in contenders.items() if name.startswith(OURS)), default=math.nan
    )
    for contender in contenders.values():
        contender["ours_over_this"] = contender["milliseconds"] / ours
    return {
        **measuring.machine(),
        "threads": options.threads,
        "rounds": options.rounds,
        "steps": options.steps,
        "precision": "float32",
        "shapes": dataclasses.asdict(shapes),
        "step_gflop": shapes.step_operations() / 1e9,
        "limits": limits,
        "limit_gflops": limit,
        "contenders": contenders,
        "skipped": skipped,
    }


def _report(result: dict[str, Any]) -> str:
    shapes = result["shapes"]
    rows = [
        {
            "contender": name,
            "parameters": f"{c['parameters']:,}",
            "ms/step": f"{c['milliseconds']:.0f}",
            "min–max": f"{min(c['milliseconds_of_rounds']):.0f}–{max(c['milliseconds_of_rounds']):.0f}",
            "others' cores": f"{measuring.median(c['cores_busy_with_others']):.2f}",
            "tokens/s": f"{c['tokens_per_second']:,.0f}",
            "GFLOP/s": f"{c['gflops']:.0f}",
            "% of limit": f"{100 * c['share_of_limit']:.0f}",
            "our best/this": f"{c['ours_over_this']:.2f}",
            "peak MiB": f"{c['peak_memory_mib']:,.0f}",
            "first call s": f"{c['first_call_seconds']:.1f}",
        }
        for name, c in result["contenders"].items()
    ]
    lines = [
        f"{result['device']}; {result['threads']} threads; {result['precision']}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        f"{shapes['num_layers']}+{shapes['num_layers']} layers, d {shapes['model_dim']}, feed-forward "
        f"{shapes['hidden_dim']}, {shapes['num_heads']} heads, vocabulary {shapes['vocabulary_size']:,}, batch "
        f"{shapes['batch_size']} × {shapes['length']} source and {shapes['length']} target tokens, dropout "
        f"{shapes['dropout']}, Adam; {result['step_gflop']:.1f} GFLOP a step in matrix multiplications",
        *(
            f"Limit, {name}: {limit['weighted_gflops']:.0f} GFLOP/s over the step's shapes, "
            f"{limit['best_gflops']:.0f} at best ("
            + ", ".join(f"{size} {rate:.0f}" for size, rate in limit["gflops"].items())
            + ")"
            for name, limit in result["limits"].items()
        ),
        "",
        measuring.table(rows) if rows else "Nothing was measured.",
        *(f"Skipped {name}: {why}" for name, why in result["skipped"].items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
