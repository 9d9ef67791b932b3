"""Training in several processes with Keras on JAX: who they are, and whether they agree."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from keras_transformer.arguments import check_positive_integer

TIMEOUT = 300
_PORT = 12355
# The variables of launchers: JAX's own and those of Kubeflow's TrainJob; Indexed Jobs and JobSets of Kubernetes;
# torchrun and most others. SLURM's are read by JAX, which also gives each process its GPU.
_ADDRESS = ("JAX_COORDINATOR_ADDRESS", "MASTER_ADDR")
_COUNT = ("JAX_NUM_PROCESSES", "NUM_PROCESSES", "WORLD_SIZE")
_INDEX = ("JAX_PROCESS_ID", "PROCESS_ID", "JOB_COMPLETION_INDEX", "RANK")


class Process(NamedTuple):
    """A process of a training: its index, from 0 on, and the number of processes; the `shard` of its data."""

    index: int
    count: int

    @property
    def is_main(self) -> bool:
        """True for process 0, which writes files."""
        return self.index == 0


class _State:
    """This process, the number of seconds to wait for others, and the number of exchanges with them."""

    def __init__(self) -> None:
        self.process, self.timeout, self.exchanges = Process(0, 1), TIMEOUT, 0


_STATE = _State()


def initialize_distributed(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = TIMEOUT,
) -> Process:
    """Connect the processes of a training, and distribute batches over all their devices.

    Call it in every process, before the first computation and the first model. It calls `jax.distributed.initialize`
    and sets `keras.distribution.DataParallel` over the devices of all processes, each of which passes its own part of
    every batch to `fit`. All processes then have the same seed. Without a launcher, it does nothing.

    `fit` of the models of this package first compares model, optimizer and sizes of data among the processes, and
    raises the same error in all of them if they differ.

    Args:
        coordinator_address: "host:port" of process 0, by default JAX_COORDINATOR_ADDRESS, or MASTER_ADDR and
            MASTER_PORT.
        num_processes: the number of processes, by default JAX_NUM_PROCESSES, NUM_PROCESSES or WORLD_SIZE.
        process_id: the index of this process, by default JAX_PROCESS_ID, PROCESS_ID, JOB_COMPLETION_INDEX or RANK.
            All three are those of SLURM in a step of SLURM.
        timeout: the number of seconds to wait for other processes, here and in `fit`.

    Returns:
        The index of this process and the number of processes, the `shard` of its data.

    Raises:
        RuntimeError: if a process does not answer in time.
        ValueError: if Keras does not run on JAX and there are several processes, or a value is missing or invalid.

    Example:
        >>> process = initialize_distributed()
        >>> process.index, process.count, process.is_main
        (0, 1, True)
    """
    check_positive_integer(timeout=timeout)
    found = settings(os.environ, coordinator_address, num_processes, process_id)
    if found is None:
        return _STATE.process
    if keras.backend.backend() != "jax":
        raise ValueError(
            "`initialize_distributed` needs Keras on JAX: set KERAS_BACKEND=jax. "
            f"Received: {keras.backend.backend()}"
        )
    import jax

    if not jax.distributed.is_initialized():
        jax.distributed.initialize(**found, initialization_timeout=timeout)
    _STATE.process, _STATE.timeout = Process(jax.process_index(), jax.process_count()), timeout
    (seed, *_) = exchange("seed", str(int.from_bytes(os.urandom(4), "little") % 2**31))
    keras.utils.set_random_seed(int(seed))
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    return _STATE.process


def settings(
    environment: Mapping[str, str],
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> dict[str, Any] | None:
    """Return the arguments of `jax.distributed.initialize` for given values or an environment; None for one process.

    Raises:
        ValueError: if a value is missing or invalid.
    """
    count = _integer("num_processes", num_processes, environment, _COUNT)
    index = _integer("process_id", process_id, environment, _INDEX)
    if count is None and "SLURM_PROCID" in environment:
        return {} if int(environment.get("SLURM_NTASKS", "1")) > 1 else None
    if count is None or count == 1:
        return None
    address = coordinator_address or next(
        (environment[name] for name in _ADDRESS if name in environment), None
    )
    if address is None or index is None:
        name, variables = ("coordinator_address", _ADDRESS) if address is None else ("process_id", _INDEX)
        raise ValueError(
            f"`{name}` must be given, or one of {', '.join(variables)} in the environment, for num_processes={count}. "
            "Received: none"
        )
    if not 0 <= index < count:
        raise ValueError(
            f"`process_id` must be in [0, num_processes). Received: process_id={index}, num_processes={count}"
        )
    if ":" not in address:
        address = f"{address}:{environment.get('MASTER_PORT', _PORT)}"
    return {"coordinator_address": address, "num_processes": count, "process_id": index}


def _integer(
    name: str, value: int | None, environment: Mapping[str, str], variables: tuple[str, ...]
) -> int | None:
    """Return a value, or that of the first variable in the environment."""
    variable = next((each for each in variables if each in environment), None)
    if value is None and variable is None:
        return None
    given = environment[variable] if value is None and variable is not None else value
    try:
        return int(str(given))
    except ValueError:
        raise ValueError(f"`{name}` must be an integer. Received: {variable or name}={given!r}") from None


def exchange(topic: str, text: str) -> list[str]:
    """Return the texts of all processes on a topic, by process; each must ask for the same topics in the same order.

    Raises:
        RuntimeError: if a process gives no text in time.
    """
    process = _STATE.process
    if process.count == 1:
        return [text]
    from jax._src import distributed  # the store of keys and values has no public name

    client = distributed.global_state.client
    _STATE.exchanges += 1
    prefix = f"keras_transformer/{_STATE.exchanges}/{topic}"
    client.key_value_set(f"{prefix}/{process.index}", text)
    texts = []
    for index in range(process.count):
        try:
            texts.append(client.blocking_key_value_get(f"{prefix}/{index}", _STATE.timeout * 1000))
        except Exception as error:
            raise RuntimeError(
                f"Process {index} did not answer process {process.index} on its {topic} within {_STATE.timeout} s: it "
                "ended, or does something else"
            ) from error
    return texts


def check_agreement(**values: Any) -> None:
    """Raise the same ValueError in all processes unless they have the same values, which JSON can represent.

    Raises:
        RuntimeError: if a process does not answer in time.
    """
    if _STATE.process.count == 1:
        return
    import jax

    digests = {name: _digest(value) for name, value in values.items()}
    all_digests = [json.loads(text) for text in exchange("settings", json.dumps(digests))]
    names = dict.fromkeys(name for each in all_digests for name in each)
    different = [name for name in names if len({each.get(name) for each in all_digests}) > 1]
    if different:
        received = "; ".join(
            f"process {index}: {', '.join(f'{name} {each.get(name)}' for name in different)}"
            for index, each in enumerate(all_digests)
        )
        # Waits for all processes, so that none ends before the others have read its settings.
        jax.distributed.shutdown()
        listed = " and ".join(f"`{name}`" for name in different)
        raise ValueError(f"{listed} must be equal in all processes. Received: {received}")


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return text if len(text) <= 80 else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """Return a NumPy value as a list or number, and of another object the name of its class."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def current() -> Process:
    """Return this process, as `initialize_distributed` returned it."""
    return _STATE.process
