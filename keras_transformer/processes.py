"""Training in several processes with Keras on JAX: who they are, and whether they agree."""

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
_DAYS = 10**9  # milliseconds; JAX ends a process that waits for one that has died
_LEAVING = 30  # seconds that a process with an error waits for the others
_ERROR = "error"
_SHARED = (ImportError, OSError, TypeError, ValueError)  # others are RuntimeErrors in other processes
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
    """This process, the number of seconds to wait for others, and the numbers of exchanges and of steps with them."""

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
    found = settings(os.environ, coordinator_address, num_processes, process_id)
    if found is None:
        return _STATE.process
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Training in several processes needs Keras on JAX: pass --backend jax to keras-transformer train, or set "
            f"KERAS_BACKEND=jax. Received: {keras.backend.backend()}, and an environment of several processes"
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


def exchange(topic: str, text: str, wait: bool = False) -> list[str]:
    """Return the texts of all processes on a topic, by process; each must ask for the same topics in the same order.

    Args:
        topic: what the texts are about.
        text: the text of this process.
        wait: whether to wait as long as the others live, instead of the timeout.

    Raises:
        RuntimeError: if a process gives no text in time, or one on another topic.
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
            found = client.blocking_key_value_get(_key(index), _DAYS if wait else _STATE.timeout * 1000)
        except Exception as error:
            raise RuntimeError(
                f"Process {index} did not answer process {process.index} on its {topic} within {_STATE.timeout} s: it "
                "ended, or does something else"
            ) from error
        of_process, answer = json.loads(found)
        if of_process == _ERROR:
            name, message = answer
            raise getattr(builtins, name)(f"Process {index}: {message}")
        if of_process != topic:
            raise RuntimeError(
                f"Process {index} must do what process {process.index} does. Received: an exchange of its "
                f"{of_process}, expected: {topic}"
            )
        texts.append(answer)
    return texts


def from_main(topic: str, function: Callable[[], Any]) -> Any:
    """Return the value of a function, of JSON, which process 0 calls while the others wait.

    It calls it without the distribution, in which all processes would have to take part.
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
    """Create models on the devices of this process alone."""
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
        _leave(error)
        raise


def stops_here() -> bool:
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
    names = dict.fromkeys(name for each in all_digests for name in each)
    different = [name for name in names if len({each.get(name) for each in all_digests}) > 1]
    if different:
        received = "; ".join(
            f"process {index}: {', '.join(f'{name} {each.get(name)}' for name in different)}"
            for index, each in enumerate(all_digests)
        )
        # Waits for all processes, so that none ends before the others have read its settings.
        jax.distributed.shutdown()
        raise ArgumentError(
            " and ".join("{}" for _ in different) + " must be equal in all processes. Received: {found!s}",
            *different,
            found=received,
        )


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return text if len(text) <= 80 else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """Return a NumPy value as a list or number, and of another object the name of its class."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def current() -> Process:
    """Return this process, as `initialize_distributed` returned it."""
    return _STATE.process


def _client() -> Any:
    """Return the store of keys and values that all processes share, or None."""
    return _state_of_jax().client


def _state_of_jax() -> Any:
    from jax._src import distributed  # has no public name

    return distributed.global_state


def _key(index: int) -> str:
    """Return the key of a process in the running exchange."""
    return f"keras_transformer/{_STATE.exchanges}/{index}"


def _leave(error: BaseException) -> None:
    """Give the others an error instead of the next exchange, and wait for them a little before this process ends."""
    process = _STATE.process
    if process.count == 1 or _client() is None:
        return
    state, client = _state_of_jax(), _client()
    _STATE.exchanges += 1
    name = next((each.__name__ for each in _SHARED if isinstance(error, each)), "RuntimeError")
    shared = [_ERROR, [name, str(error) or type(error).__name__]]
    ends = time.monotonic() + (_LEAVING if isinstance(error, Exception) else 0)
    try:
        client.key_value_set(_key(process.index), json.dumps(shared))
        client.key_value_set(f"keras_transformer/left/{process.index}", "")
        for index in range(process.count):
            left = max(1, round(1000 * (ends - time.monotonic())))
            client.blocking_key_value_get(f"keras_transformer/left/{index}", left)
        state.shutdown()
    except Exception:
        # A process that computes waits for this one: let JAX end it, instead of waiting for it when this one exits.
        state.preemption_sync_manager = state.client = None
