"""Recipes in several processes: unsupported options, and work that process 0 does for all."""

import base64
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer import processes, text
from keras_transformer.recipes.pretrained import copied
from keras_transformer_options.arguments import ArgumentError


def check_options(recipe: Any) -> None:
    """Raise a ValueError if a recipe's options do not support several processes."""
    count = processes.current().count
    if count == 1:
        return
    devices = len(keras.distribution.list_devices())
    if devices != count:
        raise ValueError(
            "Each process must have one device to train a recipe: start a process for each device. "
            f"Received: {devices} devices of {count} processes"
        )
    for name, is_valid, expected in (
        ("accumulate", recipe.accumulate == 1, "1 in several processes, which share each batch"),
        ("minutes", recipe.minutes is None, "None in several processes, whose clocks differ: use {epochs}"),
        ("monitor", recipe.monitor == "loss", '"loss" in several processes'),
        ("batch_size", (recipe.batch_size or 0) % count == 0, "a multiple of the number of processes"),
    ):
        if not is_valid:
            template = f"{{}} must be {expected}. Received: {{=}}, {count} processes"
            raise ArgumentError(template, name, name, **{name: getattr(recipe, name)})


def per_process(number: int | None) -> int | None:
    """Return the number of examples or positions of a batch for each process."""
    return None if number is None else max(1, number // processes.current().count)


def trained_once(train: Callable[[], text.Tokenizer]) -> text.Tokenizer:
    """Train a tokenizer, in several processes only in process 0, and return it."""
    if processes.current().count == 1:
        return train()

    def saved() -> dict[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            train().save(folder)
            files = pathlib.Path(folder).iterdir()
            return {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}

    with tempfile.TemporaryDirectory() as folder:
        for name, content in processes.from_main("tokenizer", saved).items():
            pathlib.Path(folder, name).write_bytes(base64.b64decode(content))
        return text.load(folder)


def local(pipeline: Any) -> Any:
    """Return a pipeline that a single process can call and save: in several processes, a copy on its device."""
    if processes.current().count == 1:
        return pipeline
    with processes.undistributed():
        return copied(pipeline)
