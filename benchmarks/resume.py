"""Cost of `training.ExactResume`: what it adds to a step, and the time that writing a state takes.

Epochs of spa-eng with and without the callback alternate; a step is the median of an epoch's, from the end of one batch
to the end of the next. The model of `train_step.py` gives the time of a step and of a state, which has its weights and
Adam's two moments. What the callback adds to each step is too little to be seen there; steps of a tiny model show it.
`save_freq="auto"` writes a state once a minute at most, and less often if that would take a hundredth of the time.
"""

import argparse
import itertools
import pathlib
import tempfile
import time
from typing import Any

import measuring
import train_step


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each kind (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of TensorFlow (default: 2)")
    options = parser.parse_args()
    keras = train_step.start_keras(options.threads)
    tiny = train_step.Shapes(num_layers=1, num_heads=2, model_dim=16, hidden_dim=32, batch_size=4, length=8)
    found = {
        "train_step.py": measure(keras, train_step.Shapes(), 12, options.rounds),
        "tiny": measure(keras, tiny, 400, options.rounds),
    }
    rows = [
        {"model": model, "": name, "step, ms": f"{1e3 * seconds:.2f}"}
        for model, each in found.items()
        for name, seconds in each["steps"].items()
    ]
    print(measuring.table(rows))
    (plain, _, saved), (tiny_plain, tiny_resumed, _) = (
        list(each["steps"].values()) for each in found.values()
    )
    result = {
        **measuring.machine(),
        "threads": options.threads,
        **found,
        "added_to_a_step": (tiny_resumed - tiny_plain) / plain,
        "seconds_of_a_state": saved - plain,
    }
    print(f"ExactResume adds {result['added_to_a_step']:.3%} to a step of train_step.py's model")
    print(
        f"A state of {found['train_step.py']['state_mib']:.0f} MiB takes {result['seconds_of_a_state']:.2f} s"
    )
    print(measuring.write_result("resume", result))


def measure(keras: Any, shapes: train_step.Shapes, batches: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of steps without ExactResume, with it, and with a state after each, and a state's size."""
    import keras_transformer as kt

    class Steps(keras.callbacks.Callback):
        """The times at which steps end."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.times = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter())

    pairs, _, _ = kt.datasets.spa_eng.load_data()
    pairs = pairs[: shapes.batch_size * batches]
    tokenizer = kt.text.SentencePieceTokenizer.train([text for pair in pairs for text in pair], 4000)
    data = kt.data.translation_pairs(
        pairs, tokenizer, shapes.batch_size, max_length=shapes.length, length_buckets=(shapes.length,)
    )
    model, loss = train_step.our_model(shapes)
    model.compile(keras.optimizers.Adam(shapes.learning_rate), loss, jit_compile=False)
    model.fit(data, shuffle=False, verbose=0)
    frequencies = {"fit": None, "ExactResume": "auto", "ExactResume, a state after each step": 1}
    steps: dict[str, list[float]] = {name: [] for name in frequencies}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for name, save_freq in frequencies.items():
                watch, states = Steps(), pathlib.Path(folder) / f"{name}, {number}"
                callbacks = [kt.training.ExactResume(states, save_freq)] if save_freq else []
                model.fit(data, shuffle=False, verbose=0, callbacks=[watch, *callbacks])
                steps[name] += [after - before for before, after in itertools.pairwise(watch.times)]
        size = max(path.stat().st_size for path in states.rglob("*")) / 2**20
    return {
        "steps": {name: measuring.median(measured) for name, measured in steps.items()},
        "state_mib": size,
    }


if __name__ == "__main__":
    main()
