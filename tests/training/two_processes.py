"""A process that trains models on JAX; arguments: process index, number of processes, port of process 0, test.

The test "equal" writes the weights of each model after training to the file that is the last argument.
"""

import os
import sys

INDEX, COUNT, PORT, TEST = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
ENVIRONMENT = {
    "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{PORT}",
    "JAX_NUM_PROCESSES": str(COUNT),
    "JAX_PROCESS_ID": str(INDEX),
}
os.environ.update(ENVIRONMENT)

from keras_transformer import training  # noqa: E402

process = training.initialize_distributed(timeout=60)
assert (process.index, process.count) == (INDEX, COUNT)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_transformer import data, text  # noqa: E402
from tests.training import several_devices  # noqa: E402
from tests.training.several_devices import CASES, ROWS  # noqa: E402

distribution = keras.distribution.distribution()
# Each process has a different part of the rows of both batches.
rows = np.arange(ROWS).reshape(2, COUNT, -1)[:, INDEX].ravel()
batch_size = ROWS // 2 // COUNT


def weights_after_training(case):
    model = several_devices.trained(case, "adam", distribution, rows, batch_size)
    return [keras.ops.convert_to_numpy(each.value.addressable_data(0)) for each in model.weights]


def pairs_of_a_file(pairs, size):
    model = several_devices.new("transformer", "adam")
    batches = data.translation_pairs(pairs, text.ByteTokenizer(), size, max_length=8, shard=(INDEX, COUNT))
    model.fit(batches, shuffle=False, verbose=0)


if TEST == "equal":
    arrays = {
        f"{case}/{number}": array
        for case in CASES
        for number, array in enumerate(weights_after_training(case))
    }
    if process.is_main:
        np.savez(sys.argv[5], **arrays)
    sys.exit()
if TEST == "absent" and INDEX:
    sys.exit("process 1 has nothing to do")
try:
    if TEST in ("contents", "batches"):
        pairs = [("a", "b")] * 8
        pairs[0] = ("a", "c" if TEST == "contents" and INDEX else "b")
        pairs_of_a_file(pairs, 2 if TEST == "batches" and INDEX else 1)
    if TEST == "sizes":
        rows = rows[: len(rows) - INDEX]
    if TEST == "rows of batches":
        batch_size -= INDEX
    if TEST == "optimizer" and INDEX:
        several_devices.OPTIMIZERS["adam"] = lambda: keras.optimizers.Adam(0.5)
    if TEST == "model" and INDEX:
        several_devices.SIZES["hidden_dim"] = 32
    weights_after_training("gpt" if TEST != "class" or INDEX else "transformer")
except (RuntimeError, ValueError) as error:
    print(f"process {INDEX}: {type(error).__name__}: {error}", flush=True)
    os._exit(3)
