"""A process of two that train a model on JAX: arguments are its index, the port of process 0, and a case."""

import os
import sys

INDEX, PORT, CASE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ENVIRONMENT = {
    "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{PORT}",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": str(INDEX),
}
os.environ.update(ENVIRONMENT)

from keras_transformer import training  # noqa: E402

process = training.initialize_distributed(timeout=60)
assert (process.index, process.count) == (INDEX, 2)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.training import several_devices  # noqa: E402

distribution = keras.distribution.distribution()
# Each process has every other row of a batch: rows 0, 2 of one and 1, 3 of the other.
rows = np.arange(several_devices.ROWS).reshape(-1, 2, 2)[:, INDEX].ravel()
if CASE == "sizes":
    rows = rows[: len(rows) - INDEX]
if CASE == "optimizer" and INDEX:
    several_devices.OPTIMIZERS["adam"] = lambda: keras.optimizers.Adam(0.5)
if CASE == "model" and INDEX:
    several_devices.SIZES["hidden_dim"] = 32
if CASE == "absent" and INDEX:
    sys.exit("process 1 has nothing to do")
try:
    two = several_devices.trained("gpt", "adam", distribution, rows, batch_size=several_devices.ROWS // 4)
except (RuntimeError, ValueError) as error:
    print(f"process {INDEX}: {type(error).__name__}: {error}", flush=True)
    os._exit(3)
assert CASE == "equal", CASE
if process.is_main:
    np.savez(
        sys.argv[4], *[keras.ops.convert_to_numpy(each.value.addressable_data(0)) for each in two.weights]
    )
