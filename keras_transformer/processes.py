"""Training in several processes with Keras on JAX: their connection, and checks that their settings agree."""

import builtins
import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras

from keras_transformer_options.arguments import ArgumentError, check_positive_integer

TIMEOUT = 300
_PORT = 12355
_NO_TIMEOUT = 10**9  # milliseconds; JAX ends a process that waits for one that has died
_EXIT_TIMEOUT = 30  # seconds that a process with an error waits for the others
_ERROR = "error"
_SHARED = (ImportError, OSError, TypeError, ValueError)  # others are RuntimeErrors in other processes
# The environment variables of launchers: of JAX and Kubeflow's TrainJob; of Kubernetes' Indexed Jobs and JobSets; of
# torchrun and most others. JAX reads SLURM's variables, and also assigns a GPU to each process.
_ADDRESS = ("JAX_COORDINATOR_ADDRESS", "MASTER_ADDR")
_COUNT = ("JAX_NUM_PROCESSES", "NUM_PROCESSES", "WORLD_SIZE")
_INDEX = ("JAX_PROCESS_ID", "PROCESS_ID", "JOB_COMPLETION_INDEX", "RANK")


class Process(NamedTuple):
    """The index of a process, from 0, and the number of processes: the `shard` of its data."""

    index: int
    count: int

    @property
    def is_main(self) -> bool:
        """True for process 0, which writes files."""
        return self.index == 0


class _State:
    """This process, the seconds to wait for the others, and the counts of exchanges and of steps."""

    def __init__(self) -> None:
        self.process, self.timeout, self.exchanges, self.steps = Process(0, 1), TIMEOUT, 0, 0


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
        timeout: the number of seconds to wait for other processes, here and in `fit`. JAX ends this process if
            another one does not connect in time.

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
    arguments = settings(os.environ, coordinator_address, num_processes, process_id)
    if arguments is None:
        return _STATE.process
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Training in several processes needs Keras on JAX: pass --backend jax to keras-transformer train, or set "
            f"KERAS_BACKEND=jax. Received: {keras.backend.backend()}, and an environment of several processes"
        )
    import jax

    if not jax.distributed.is_initialized():
        jax.distributed.initialize(**arguments, initialization_timeout=timeout)
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
    """Return the arguments of `jax.distributed.initialize` from values or the environment; None for one process.

    Raises:
        ValueError: if a value is missing or invalid.
    """
    count = _integer("num_processes", num_processes, environment, _COUNT)
    index = _integer("process_id", process_id, environment, _INDEX)
    # A batch script has SLURM_PROCID, too; only `srun` starts several processes.
    if count is None and {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= environment.keys():
        return {} if int(environment.get("SLURM_NTASKS", "1")) > 1 else None
    if count is None or count == 1:
        return None
    address = coordinator_address or next(
        (environment[name] for name in _ADDRESS if name in environment), None
    )
    if address is None or index is None:
        name, variables = ("coordinator_address", _ADDRESS) if address is None else ("process_id", _INDEX)
        raise ValueError(
            f"`{name}` must be passed, or one of {', '.join(variables)} in the environment, for num_processes={count}. "
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
    """Return `value` or, if it is None, the integer of the first variable that the environment has."""
    variable = next((variable for variable in variables if variable in environment), None)
    if value is None and variable is None:
        return None
    setting = environment[variable] if value is None and variable is not None else value
    try:
        return int(str(setting))
    except ValueError:
        raise ValueError(f"`{name}` must be an integer. Received: {variable or name}={setting!r}") from None


def exchange(topic: str, text: str, wait: bool = False) -> list[str]:
    """Exchange texts on a topic, and return one of each process; all must call it for the same topics in order.

    Args:
        topic: what the texts are about.
        text: the text of this process.
        wait: whether to wait as long as the others live, instead of the timeout.

    Raises:
        RuntimeError: if a process sends no text in time, or a text on another topic.
        Exception: the error of another process in `shared_errors`.
    """
    process = _STATE.process
    if process.count == 1:
        return [text]
    client = _client()
    _STATE.exchanges += 1
    client.key_value_set(_key(process.index), json.dumps([topic, text]))
    texts = []
    for index in range(process.count):
        try:
            message = client.blocking_key_value_get(
                _key(index), _NO_TIMEOUT if wait else _STATE.timeout * 1000
            )
        except Exception as error:
            raise RuntimeError(
                f"Process {index} did not answer process {process.index} on its {topic} within {_STATE.timeout} s: it "
                "ended, or runs other code"
            ) from error
        other_topic, answer = json.loads(message)
        if other_topic == _ERROR:
            name, error_message = answer
            raise getattr(builtins, name)(f"Process {index}: {error_message}")
        if other_topic != topic:
            raise RuntimeError(
                f"Process {index} must run the same code as process {process.index} and exchange its {topic}. "
                f"Received: an exchange of its {other_topic}"
            )
        texts.append(answer)
    return texts


def from_main(topic: str, function: Callable[[], Any]) -> Any:
    """Call a function in process 0 while the others wait, and return its value, of JSON, in all processes.

    Process 0 calls it without the distribution, in which all processes would have to take part.
    """
    if _STATE.process.count == 1:
        return function()
    text = ""
    if _STATE.process.is_main:
        with undistributed():
            text = json.dumps(function(), default=_plain)
    return json.loads(exchange(topic, text, wait=True)[0])


@contextlib.contextmanager
def undistributed() -> Iterator[None]:
    """Create models on the devices of this process only."""
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


@contextlib.contextmanager
def shared_errors() -> Iterator[None]:
    """Raise an error of this process in the others, too, when they next exchange texts."""
    try:
        yield
    except BaseException as error:
        _share_error(error)
        raise


def should_stop() -> bool:
    """Return True in all processes at the same step, soon after one of them has received SIGTERM.

    Each process must call it after each of its steps. It costs less than a microsecond.
    """
    from jax.experimental import multihost_utils

    _STATE.steps += 1
    stops = bool(multihost_utils.reached_preemption_sync_point(_STATE.steps))
    if stops:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(
                signal.SIGTERM, signal.SIG_DFL
            )  # the second one ends the process; JAX would ignore it
    return stops


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
    names = dict.fromkeys(name for digests in all_digests for name in digests)
    different = [name for name in names if len({digests.get(name) for digests in all_digests}) > 1]
    if different:
        received = "; ".join(
            f"process {index}: {', '.join(f'{name} {digests.get(name)}' for name in different)}"
            for index, digests in enumerate(all_digests)
        )
        # Wait for all processes, so that none ends before the others have read its settings.
        jax.distributed.shutdown()
        raise ArgumentError(
            " and ".join("{}" for _ in different) + " must be equal in all processes. Received: {digests!s}",
            *different,
            digests=received,
        )


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return text if len(text) <= 80 else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """Convert a NumPy value to a list or number, and any other object to the name of its class."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def current() -> Process:
    """Return this process, as `initialize_distributed` returned it."""
    return _STATE.process


def _client() -> Any:
    """Return the key-value store that all processes share, or None."""
    return _state_of_jax().client


def _state_of_jax() -> Any:
    from jax._src import distributed  # has no public name

    return distributed.global_state


def _key(index: int) -> str:
    """Return the key of a process in the current exchange."""
    return f"keras_transformer/{_STATE.exchanges}/{index}"


def _share_error(error: BaseException) -> None:
    """Send an error in place of the next exchange, and wait for the other processes to read it."""
    process = _STATE.process
    if process.count == 1 or _client() is None:
        return
    state, client = _state_of_jax(), _client()
    _STATE.exchanges += 1
    name = next((kind.__name__ for kind in _SHARED if isinstance(error, kind)), "RuntimeError")
    shared = [_ERROR, [name, str(error) or type(error).__name__]]
    deadline = time.monotonic() + (_EXIT_TIMEOUT if isinstance(error, Exception) else 0)
    try:
        client.key_value_set(_key(process.index), json.dumps(shared))
        client.key_value_set(f"keras_transformer/left/{process.index}", "")
        for index in range(process.count):
            remaining = max(1, round(1000 * (deadline - time.monotonic())))
            client.blocking_key_value_get(f"keras_transformer/left/{index}", remaining)
        state.shutdown()
    except Exception:
        # Another process may wait for this one in a computation: let JAX end it rather than wait for it at exit.
        state.preemption_sync_manager = state.client = None
