"""The cost of `training.ExactResume`: the time it adds to a step, and the time to write a state.

Epochs of spa-eng with and without the callback alternate; the time of a step is the median over an epoch, from the end
of one batch to the end of the next. The model of `train_step.py` gives the time of a step and of a state, which has its
weights and Adam's two moments. The time that the callback adds to each step is measured with a tiny model.
`save_freq="auto"` writes a state at most once a minute, and less often if it would take more than 1 % of the time.
"""

import functools
import itertools
import pathlib
import tempfile
import time
from typing import Any

import measuring
import numpy as np
import runner
import train_step

TINY = train_step.Shapes(num_layers=1, num_heads=2, model_dim=16, hidden_dim=32, batch_size=4, length=8)
CASES = {"train_step.py": (train_step.Shapes(), 12), "tiny": (TINY, 400)}  # and the batches of an epoch


def prepare(case: dict[str, Any], context: runner.Context, save_freq: Any) -> runner.Run:
    """Prepare epochs without ExactResume (None), or with ExactResume and a `save_freq`."""
    keras = train_step.start_keras(context.threads)
    import keras_transformer as kt

    class Steps(keras.callbacks.Callback):
        """The times at which steps end."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.times = [(time.perf_counter(), time.process_time())]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append((time.perf_counter(), time.process_time()))

    shapes, batches = CASES[case["model"]]
    pairs, _, _ = kt.datasets.spa_eng.load_data()
    pairs = pairs[: shapes.batch_size * batches]
    tokenizer = kt.text.SentencePieceTokenizer.train([text for pair in pairs for text in pair], 4000)
    data = kt.data.translation_pairs(
        pairs, tokenizer, shapes.batch_size, max_length=shapes.length, length_buckets=(shapes.length,)
    )
    model, loss = train_step.our_model(shapes)
    model.compile(keras.optimizers.Adam(shapes.learning_rate), loss, jit_compile=False)

    def run() -> runner.Figures:
        watch = Steps()
        with tempfile.TemporaryDirectory() as folder:
            callbacks = [kt.training.ExactResume(folder, save_freq)] if save_freq else []
            model.fit(data, shuffle=False, verbose=0, callbacks=[watch, *callbacks])
            sizes = [path.stat().st_size for path in pathlib.Path(folder).rglob("*")]
        steps = [np.subtract(after, before) for before, after in itertools.pairwise(watch.times[1:])]
        seconds, processor_seconds = (measuring.median(each) for each in zip(*steps, strict=True))
        state = {"state_mib": max(sizes) / 2**20} if sizes else {}
        return {"seconds": float(seconds), "processor_seconds": float(processor_seconds), **state}

    return run


FREQUENCIES = {"fit": None, "ExactResume": "auto", "ExactResume, a state after each step": 1}
BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "steps",
    {name: {"model": name} for name in CASES},
    {name: functools.partial(prepare, save_freq=each) for name, each in FREQUENCIES.items()},
    seconds=0.0,
    fresh=True,
    columns={"state_mib": ".1f"},
)


def main() -> None:
    """Measure, and print the cost of the callback for a step of `train_step.py`."""
    result = BENCHMARK.main()
    cases = result["cases"].values() if result else ()
    steps = [[figures["seconds"] for figures in case["contenders"].values()] for case in cases]
    if [len(each) for each in steps] == [len(FREQUENCIES)] * len(CASES):
        (plain, _, saved), (tiny_plain, tiny_resumed, _) = steps
        print(
            f"ExactResume adds {(tiny_resumed - tiny_plain) / plain:.3%} to a step of train_step.py's model"
        )
        print(f"A state takes {saved - plain:.2f} s")


if __name__ == "__main__":
    main()
