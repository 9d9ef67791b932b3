"""A profile of a training step with XLA on a CPU: the times of XLA's operations by type.

The model is the one of `train_step.py`. TensorFlow's profiler traces the operations of all threads, so the sum of the
times of a step is greater than its duration.
"""

import collections
import glob
import os
import re
import tempfile

import measuring
import numpy as np
import train_step

# The names of XLA's operations by type; a fusion has the names of its last operations.
CLASSES = {
    "matrix multiplications": r"MatMul|dot",
    "sums over rows": r"wrapped_reduce-window",
    "copies and transpositions": r"copy|transpose",
    "exponentials and differences of softmax": r".*exponential|broadcast_subtract",
}
OTHERS = "other element-wise operations and sums"
# Events that contain or wait for operations.
EXECUTION = re.compile("ThunkExecutor|Slinky|Eigen")


def main() -> None:
    """Measure, print tables, write JSON."""
    parser = measuring.parser(__doc__, "step_profile")
    parser.add_argument("--steps", type=int, default=5, help="steps that are traced (default: 5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads (default: all cores)")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_enable_xprof_traceme=true"
    shapes = train_step.Shapes()
    keras = train_step.start_keras(options.threads)
    import tensorflow as tf

    model, loss = train_step.our_model(shapes)
    model.compile(keras.optimizers.Adam(shapes.learning_rate), loss, jit_compile=True)
    random = np.random.default_rng(0)
    size = (3, shapes.batch_size, shapes.length)
    source_ids, target_ids, labels = random.integers(4, shapes.vocabulary_size, size, "int32")
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    for _ in range(3):
        model.train_on_batch(inputs, labels)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(options.steps):
            model.train_on_batch(inputs, labels)
        tf.profiler.experimental.stop()
        milliseconds = {name: time / options.steps for name, time in operations(folder).items()}
    total, classes = sum(milliseconds.values()), collections.Counter()
    for name, time in milliseconds.items():
        classes[next((key for key, pattern in CLASSES.items() if re.match(pattern, name)), OTHERS)] += time
    largest = dict(collections.Counter(milliseconds).most_common(10))
    fractions = {name: time / total for name, time in classes.most_common()}
    result = {
        "machine": measuring.machine(),
        "threads": options.threads,
        "milliseconds": total,
        "shares": fractions,
        "largest": largest,
    }
    print(measuring.table([{"operations": name, "share": f"{part:.1%}"} for name, part in fractions.items()]))
    print(measuring.table([{"operation": name, "ms": f"{time:.1f}"} for name, time in largest.items()]))
    print(f"\nWritten to {measuring.write_result(options.name, result, options.output)}")


def operations(folder: str) -> dict[str, float]:
    """Return the milliseconds of each operation of XLA in a trace."""
    from jax.profiler import ProfileData

    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    durations: collections.Counter[str] = collections.Counter()
    for plane in ProfileData.from_file(path).planes:
        for line in plane.lines:
            for event in line.events if not line.name.startswith("python") else ():
                if not EXECUTION.match(event.name):
                    durations[event.name] += event.duration_ns / 1e6
    return durations


if __name__ == "__main__":
    main()
