"""Training in two processes over loopback equals training in one, and processes that disagree end with one error."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import processes, training
from tests.training import several_devices

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
TWO = {"num_processes": 2, "process_id": 1}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
        (SLURM, {}),  # JAX reads them
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
            {**TWO, "coordinator_address": "a:1"},
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a", "JAX_NUM_PROCESSES": "2", "JOB_COMPLETION_INDEX": "1"},
            {**TWO, "coordinator_address": "a:12355"},
        ),
        (
            {"MASTER_ADDR": "a", "MASTER_PORT": "9", "WORLD_SIZE": "2", "RANK": "1"},
            {**TWO, "coordinator_address": "a:9"},
        ),
    ],
)
def test_environments_of_launchers(environment, expected):
    assert processes.settings(environment) == expected


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (
            {"WORLD_SIZE": "2", "RANK": "1"},
            "`coordinator_address` must be given, or one of JAX_COORDINATOR_ADDRESS",
        ),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "`process_id` must be given"),
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "RANK": "2"},
            r"`process_id` must be in \[0, num_processes\)",
        ),
        ({"WORLD_SIZE": "two"}, "`num_processes` must be an integer. Received: WORLD_SIZE='two'"),
    ],
)
def test_incomplete_environments_are_refused(environment, error):
    with pytest.raises(ValueError, match=error):
        processes.settings(environment)


def test_one_process_needs_no_initialization():
    assert training.initialize_distributed(num_processes=1) == (0, 1)


def run(case, file):
    """Run two processes; return their exit statuses and outputs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    running = [
        subprocess.Popen(
            [sys.executable, "tests/training/two_processes.py", str(index), str(port), case, str(file)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [each.communicate(timeout=600)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    return [each.returncode for each in running], outputs


@pytest.mark.slow
@pytest.mark.skipif(
    several_devices.keras.backend.backend() != "jax", reason="compares with JAX in this process"
)
@pytest.mark.backend_neutral
def test_two_processes_equal_one(tmp_path):
    file = tmp_path / "weights.npz"
    statuses, outputs = run("equal", file)
    assert statuses == [0, 0], outputs
    one = several_devices.trained("gpt", "adam").get_weights()
    with np.load(file) as found:
        for weight, expected in zip(found.files, one, strict=True):
            np.testing.assert_allclose(found[weight], expected, atol=several_devices.BOUND)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "argument"), [("model", "`hidden_dim`"), ("sizes", "`x` and `y`")])
def test_processes_that_disagree_end_with_one_error(tmp_path, case, argument):
    statuses, outputs = run(case, tmp_path / "weights.npz")
    assert statuses == [3, 3], outputs
    for index, output in enumerate(outputs):
        assert f"process {index}: ValueError: {argument} must be equal in all processes" in output


@pytest.mark.slow
@pytest.mark.parametrize("case", ["absent", "optimizer"])
def test_no_process_waits_for_one_that_ended(tmp_path, case):
    """JAX ends the others, and compares the values of optimizers itself."""
    statuses, outputs = run(case, tmp_path / "weights.npz")
    assert 0 not in statuses, outputs
