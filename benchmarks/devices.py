"""Tokens per second of GPT on one and on two devices of a CPU, with Keras on JAX: ours and KerasHub's, in one run.

A device has one thread: the process has as many cores as devices. Two devices train on the batch of one ("same batch")
and on twice that ("twice the batch").. `--help` lists the options.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np

OURS, HUB = "keras_transformer", "KerasHub"
SIZES = {"num_layers": 4, "num_heads": 4, "dropout": 0.1}
VOCABULARY, MODEL_DIM, LENGTH, ROWS = 4000, 256, 128, 8
# The number of devices, and of rows in a batch.
SETUPS = {
    "one device": (1, ROWS),
    "two devices, the same batch": (2, ROWS),
    "two devices, twice the batch": (2, 2 * ROWS),
}
CONTENDERS = [f"{library}, {setup}" for setup in SETUPS for library in (OURS, HUB)]


def ours(keras: Any) -> tuple[Any, Callable[[np.ndarray], Any]]:
    """Return our GPT, and a function from ids to its inputs."""
    import keras_transformer as kt

    return kt.models.GPT(VOCABULARY, model_dim=MODEL_DIM, max_length=LENGTH, **SIZES), lambda ids: ids


def keras_hub(keras: Any) -> tuple[Any, Callable[[np.ndarray], Any]]:
    """Return KerasHub's GPT-2 with logits, and a function from ids to its inputs."""
    from keras_hub.models import GPT2Backbone

    dimensions = {
        "hidden_dim": MODEL_DIM,
        "intermediate_dim": 4 * MODEL_DIM,
        "max_sequence_length": LENGTH,
    }
    backbone = GPT2Backbone(vocabulary_size=VOCABULARY, **dimensions, **SIZES)
    model = keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True))
    return model, lambda ids: {"token_ids": ids, "padding_mask": np.ones_like(ids)}


def build(name: str) -> Callable[..., dict[str, Any]]:
    """Return a worker's function from a number of steps to their wall and processor time."""
    library, setup = name.split(", ", 1)
    devices, rows = SETUPS[setup]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:devices])
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    )
    import keras

    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    assert len(keras.distribution.list_devices()) == devices
    model, inputs_of = (ours if library == OURS else keras_hub)(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)

    def measure(steps: int) -> dict[str, Any]:
        ids = np.random.default_rng(0).integers(1, VOCABULARY, (steps * rows, LENGTH), "int32")
        busy = time.process_time()
        seconds = measuring.seconds(
            lambda: model.fit(inputs_of(ids), ids, batch_size=rows, shuffle=False, verbose=0)
        )
        return {
            "tokens_per_second": steps * rows * LENGTH / seconds,
            "tokens_per_processor_second": steps * rows * LENGTH / (time.process_time() - busy),
            "parameters": model.count_params(),
        }

    measure(2)
    return measure


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all contenders (default: 5)")
    parser.add_argument("--steps", type=int, default=10, help="steps in a round (default: 10)")
    parser.add_argument("--tries", type=int, default=3, help="tries while others disturb (default: 3)")
    parser.add_argument("--output", type=pathlib.Path, default=measuring.RESULTS, help="folder")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measuring.serve(lambda: build(options.worker))
        return
    workers = [measuring.Worker(__file__, name, []) for name in CONTENDERS]
    try:
        for worker in workers:
            worker.ask(None, 900)
            print(f"built {worker.name}", file=sys.stderr, flush=True)
        answers = measuring.round_robin(workers, options.rounds, {"steps": options.steps}, 900, options.tries)
    finally:
        for worker in workers:
            worker.close()
    contenders = {name: summary(each) for name, each in answers.items()}
    for name, each in contenders.items():
        one = contenders[f"{name.split(', ')[0]}, one device"]
        each["times_one_device"] = each["tokens_per_second"] / one["tokens_per_second"]
        each["times_one_device_by_processor_time"] = (
            SETUPS[name.split(", ", 1)[1]][0]
            * each["tokens_per_processor_second"]
            / one["tokens_per_processor_second"]
        )
    shapes = {"vocabulary_size": VOCABULARY, "model_dim": MODEL_DIM, "length": LENGTH, "rows": ROWS, **SIZES}
    result = {
        **measuring.machine(),
        "rounds": options.rounds,
        "steps": options.steps,
        "precision": "float32",
        "shapes": shapes,
        "contenders": contenders,
    }
    print(measuring.table([row(name, each) for name, each in contenders.items()]))
    print(f"\nWritten to {measuring.write_result('devices', result, options.output)}")


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over rounds, and the most that other processes disturbed."""
    names = ("tokens_per_second", "tokens_per_processor_second")
    return {
        **{name: measuring.median(answer[name] for answer in answers) for name in names},
        "tokens_per_second_of_rounds": [answer["tokens_per_second"] for answer in answers],
        "parameters": answers[0]["parameters"],
        "others_cores": max(answer["others"] for answer in answers),
    }


def row(name: str, found: dict[str, Any]) -> dict[str, str]:
    """Return a row of the table."""
    return {
        "contender": name,
        "tokens/s": f"{found['tokens_per_second']:,.0f}",
        "tokens/processor s": f"{found['tokens_per_processor_second']:,.0f}",
        "× one device": f"{found['times_one_device']:.2f}",
        "by processor time": f"{found['times_one_device_by_processor_time']:.2f}",
        "others' cores": f"{found['others_cores']:.2f}",
    }


if __name__ == "__main__":
    main()
