"""Training in two processes over loopback equals training in one; different arguments raise one error."""

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
        (SLURM, {}),  # environment variables that JAX reads
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
def test_launcher_environments_are_recognized(environment, expected):
    assert processes.settings(environment) == expected


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (
            {"WORLD_SIZE": "2", "RANK": "1"},
            "`coordinator_address` must be passed, or one of JAX_COORDINATOR_ADDRESS",
        ),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "`process_id` must be passed"),
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "RANK": "2"},
            r"`process_id` must be in \[0, num_processes\)",
        ),
        ({"WORLD_SIZE": "two"}, "`num_processes` must be an integer. Received: WORLD_SIZE='two'"),
    ],
)
def test_incomplete_environments_are_rejected(environment, error):
    with pytest.raises(ValueError, match=error):
        processes.settings(environment)


def test_one_process_needs_no_initialization():
    assert training.initialize_distributed(num_processes=1) == (0, 1)


def run(test, *arguments, count=2):
    """Run processes; return their exit statuses and outputs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    program = [sys.executable, "tests/training/two_processes.py"]
    running = [
        subprocess.Popen(
            [*program, str(index), str(count), str(port), test, *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        outputs = [each.communicate(timeout=1800)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    return [each.returncode for each in running], outputs


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    files = [tmp_path / f"{count}.npz" for count in (1, 2)]
    for count, file in enumerate(files, start=1):
        statuses, outputs = run("equal", file, count=count)
        assert statuses == [0] * count, outputs
    with np.load(files[0]) as one, np.load(files[1]) as two:
        assert {name.split("/")[0] for name in one.files} == several_devices.CASES.keys()
        assert two.files == one.files
        for name in one.files:
            np.testing.assert_allclose(two[name], one[name], rtol=0, atol=several_devices.BOUND, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "argument"),
    [
        ("class", "`model`"),
        ("model", "`hidden_dim`"),
        ("sizes", "`x` and `y`"),
        ("rows of batches", "`batch_size`"),
        ("contents", "`x`"),
        ("batches", "`x`"),
    ],
)
def test_processes_with_different_arguments_end_with_one_error(test, argument):
    statuses, outputs = run(test)
    assert statuses == [3, 3], outputs
    (errors,) = {output.split("ValueError: ")[-1].splitlines()[0] for output in outputs}
    assert errors.startswith(argument)
    assert "must be equal in all processes. Received: process 0: " in errors


@pytest.mark.slow
@pytest.mark.parametrize("test", ["absent", "optimizer"])
def test_no_process_waits_for_one_that_has_ended(test):
    """JAX ends the other process, and compares optimizer variables itself."""
    statuses, outputs = run(test)
    assert 0 not in statuses, outputs
