"""What is exported of each kind of pipeline."""

from types import ModuleType
from typing import Any

from keras_transformer import generation
from keras_transformer.export import forward, generators
from keras_transformer.pipelines.folders import Saved


def of(pipeline: Any) -> ModuleType:
    """The module with `signatures` and `graphs` of pipelines of this kind."""
    return generators if generates(pipeline) else forward


def generates(pipeline: Any) -> bool:
    """Whether it answers by a loop, rather than by running its model once."""
    return hasattr(pipeline, "sampler")


def check(pipeline: Any) -> None:
    """Raise where a pipeline cannot be exported."""
    if not isinstance(pipeline, Saved):
        raise ValueError(
            f"`pipeline` must be one of keras_transformer.pipelines. Received: {type(pipeline).__name__}"
        )
    if isinstance(getattr(pipeline, "sampler", None), generation.Speculative):
        raise ValueError(
            "`pipeline` must not draft: export `pipeline.with_settings('greedy')`, whose ids are the same. "
            f"Received: sampler={pipeline.sampler}"
        )
