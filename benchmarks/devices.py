"""Tokens per second of GPT on one and on two devices of a CPU, with Keras on JAX: this package and KerasHub.

A device has one thread: the process has as many cores as devices. Two devices train on the batch of one device ("same
batch") and on a batch of twice its size ("twice the batch"). `--help` lists the options.
"""

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import runner

OURS, HUB = "keras_transformer", "KerasHub"
SIZES = {"num_layers": 4, "num_heads": 4, "dropout": 0.1}
VOCABULARY, MODEL_DIM, LENGTH, ROWS = 4000, 256, 128, 8
# The number of devices, and of rows in a batch.
SETUPS = {
    "one device": (1, ROWS),
    "two devices, the same batch": (2, ROWS),
    "two devices, twice the batch": (2, 2 * ROWS),
}


def ours(keras: Any) -> tuple[Any, Callable[[np.ndarray], Any]]:
    """Return the GPT of this package, and a function from ids to its inputs."""
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


def prepare(case: dict[str, Any], context: runner.Context, library: str, setup: str) -> runner.Run:
    """Prepare steps of `fit`, with one thread for each device."""
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
    steps = context.options.steps
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (steps * rows, LENGTH), "int32")

    def run() -> runner.Figures:
        model.fit(inputs_of(ids), ids, batch_size=rows, shuffle=False, verbose=0)
        return {"steps": steps, "units": rows * LENGTH, "parameters": model.count_params()}

    return run


def derive(case: dict[str, Any], measured: dict[str, Any]) -> None:
    """Add the ratios to the rates of one device."""
    for name, figures in measured["contenders"].items():
        library, setup = name.split(", ", 1)
        one = measured["contenders"].get(f"{library}, one device")
        if one:
            figures["times_one_device"] = figures["per_second"] / one["per_second"]
            by_processor = figures["per_processor_second"] / one["per_processor_second"]
            figures["times_one_device_by_processor_time"] = SETUPS[setup][0] * by_processor


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of steps."""
    parser.add_argument("--steps", type=int, default=10, help="of a call (default: %(default)s)")


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    {"": {"vocabulary_size": VOCABULARY, "model_dim": MODEL_DIM, "length": LENGTH, "rows": ROWS, **SIZES}},
    {
        f"{library}, {setup}": functools.partial(prepare, library=library, setup=setup)
        for setup in SETUPS
        for library in (OURS, HUB)
    },
    threads=(1,),
    derive=derive,
    columns={"times_one_device": ".2f", "times_one_device_by_processor_time": ".2f"},
    add_options=add_options,
)

if __name__ == "__main__":
    BENCHMARK.main()
