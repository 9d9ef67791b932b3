"""A check for TensorFlow's distribution strategies that fail in `fit`."""

from typing import Any

import keras

_INSTEAD = "Or train with Keras on JAX and keras.distribution (see docs/distributed.md)."


def check_strategy(model: Any) -> None:
    """Raise a ValueError if the compiled model cannot be trained with its `tf.distribute` strategy.

    `MirroredStrategy` works without XLA and gradient accumulation: its variables are on several devices, and neither
    compiled functions nor the accumulators of Keras' optimizers can update them. `MultiWorkerMirroredStrategy` is not
    supported by Keras 3.
    """
    if keras.backend.backend() != "tensorflow":
        return
    strategy = model.distribute_strategy
    name = type(strategy).__name__
    if name in ("CollectiveAllReduceStrategy", "MultiWorkerMirroredStrategy"):
        raise ValueError(
            "The model must not be created in the scope of a MultiWorkerMirroredStrategy, which Keras 3 does not "
            "support. Train in several processes with Keras on JAX: keras_transformer.training.initialize_distributed "
            f"(see docs/distributed.md). Received: {name}"
        )
    if strategy.num_replicas_in_sync == 1:
        return
    received = f"{name} with {strategy.num_replicas_in_sync} replicas"
    if model.jit_compile is True:
        raise ValueError(
            f"`jit_compile` must be False in `compile` for a model in the scope of a {name}. {_INSTEAD} "
            f"Received: jit_compile=True, {received}"
        )
    steps = getattr(_innermost(model.optimizer), "gradient_accumulation_steps", None)
    if steps:
        raise ValueError(
            f"`gradient_accumulation_steps` must be None for a model in the scope of a {name}. {_INSTEAD} "
            f"Received: gradient_accumulation_steps={steps}, {received}"
        )


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)
