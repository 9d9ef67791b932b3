"""The ONNX graphs of an export: ids in, ids out."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.serving.noise import uniform

ENCODER = "encoder_model"
DECODER = "decoder_model_merged"
MODEL = "model"  # a decoder alone, or what runs once


def loop_name(config: dict[str, Any]) -> str:
    """The name of the graph that holds the whole loop, from an export's settings."""
    return f"generate_{config['generation']['sampler']}"


class Graphs:
    """Generation by ONNX Runtime.

    Args:
        path: the file of a graph, by its name.
        config: the export's settings.
        providers: ONNX Runtime's execution providers, by default those of this machine, GPUs first.
    """

    def __init__(
        self,
        path: Callable[[str], str | os.PathLike[str]],
        config: dict[str, Any],
        providers: Sequence[Any] | None = None,
    ) -> None:
        self._path = path
        self.pad_id: int | None = config["pad_id"]
        self.start_id: int | None = config["start_id"]  # a decoder alone has none
        self.end_id: int = config["end_id"]
        self.padding_value = self.end_id if self.pad_id is None else self.pad_id
        self.max_new_tokens: int = config["max_new_tokens"]
        self.max_source_tokens: int = config["max_source_tokens"]
        self.vocabulary_size: int = config["vocabulary_size"]
        self.sampler: dict[str, Any] = config["generation"]
        self._loop = loop_name(config)
        self._providers = providers
        self._sessions: dict[str, Any] = {}
        self.session(self._loop)  # a damaged file is found now, not at the first request

    def session(self, name: str) -> Any:
        """ONNX Runtime's session of a graph."""
        if name not in self._sessions:
            self._sessions[name] = new_session(self._path(name), self._providers)
        return self._sessions[name]

    @property
    def num_return(self) -> int:
        """N, how many hypotheses there are for each row."""
        return self.sampler.get("num_return", 1)

    def padding_mask(self, input_ids: np.ndarray) -> np.ndarray:
        """Int64 (B, S), 0 for ids equal to `pad_id`; 1 everywhere where that is None."""
        return np.ones_like(input_ids) if self.pad_id is None else (input_ids != self.pad_id).astype(np.int64)

    def generate(
        self,
        input_ids: np.ndarray,
        rows: np.ndarray | None = None,
        noise: np.ndarray | None = None,
        attention_mask: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """The whole loop in one run.

        Args:
            input_ids: int64 (B, S), padded with `pad_id`, or with any id where `attention_mask` is given.
            rows: integers (B,), the number of each row that sampling draws for, by default 0, 1, 2, …
            noise: float32 (B, N, M, V), what sampling draws with instead of its seed.
            attention_mask: integers (B, S), 0 for padding, by default where ids equal `pad_id`; a model without one
                has no other way to say what is padding.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis of N after the first where
            N > 1.
        """
        mask = (
            self.padding_mask(input_ids) if attention_mask is None else np.asarray(attention_mask, np.int64)
        )
        if self.pad_id is None:
            given = {"input_ids": input_ids, "attention_mask": mask}
        else:
            given = {"input_ids": np.where(mask != 0, input_ids, self.pad_id)}
        if self.sampler["sampler"] == "sample":
            given["noise"] = (
                self.noise(np.arange(len(input_ids)) if rows is None else rows) if noise is None else noise
            )
        names = ["ids", "lengths", "scores"]
        return dict(zip(names, self.session(self._loop).run(names, given), strict=True))

    def noise(self, rows: np.ndarray) -> np.ndarray:
        """What the sampler's seed makes for rows of these numbers, float32 (B, N, M, V)."""
        return uniform(self.sampler["seed"], rows, self.num_return, self.max_new_tokens, self.vocabulary_size)

    def generate_by_steps(
        self, input_ids: np.ndarray, attention_mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Greedy ids (B, M), token by token from the graphs of a step.

        For callers that keep the loop to themselves; slower than `generate`. Samplers and constraints are the
        loop's. The arguments are those of `generate`.
        """
        mask = self.padding_mask(input_ids) if attention_mask is None else attention_mask
        first = self._encoded if self.start_id is not None else self._prompted
        step = first(input_ids, mask)
        ids = np.full((len(input_ids), self.max_new_tokens), self.padding_value, np.int64)
        ended = ~mask.any(axis=1)
        token = None
        never = [id_ for id_ in (self.pad_id, self.start_id) if id_ not in (None, self.end_id)]
        for column in range(self.max_new_tokens):
            if ended.all():
                break
            logits = step(token)[:, -1]
            logits[:, never] = -np.inf
            best = np.where(ended, self.padding_value, logits.argmax(axis=-1))
            ids[:, column] = best
            ended |= best == self.end_id
            token = best[:, None]
        return ids

    def _encoded(self, input_ids: np.ndarray, mask: np.ndarray) -> Callable[[np.ndarray | None], np.ndarray]:
        """From a token of each row, None before the first, to the logits of the next one."""
        encoder = self.session(ENCODER)
        names = [output.name for output in encoder.get_outputs()]
        memory = encoder.run(names, {"input_ids": input_ids, "attention_mask": mask})
        feed = {_as_past(name): tensor for name, tensor in zip(names, memory, strict=True)}
        feed |= {"encoder_attention_mask": mask, **self._empty(DECODER, ".decoder.", input_ids)}

        def step(token: np.ndarray | None) -> np.ndarray:
            feed["input_ids"] = np.full((len(input_ids), 1), self.start_id) if token is None else token
            return self._step(DECODER, feed)

        return step

    def _prompted(self, input_ids: np.ndarray, mask: np.ndarray) -> Callable[[np.ndarray | None], np.ndarray]:
        """The same of a decoder alone, which reads its prompts at the first step, the last token last."""
        order = np.argsort(mask != 0, axis=1, kind="stable")  # padding first
        first, first_mask = (np.take_along_axis(each, order, axis=1) for each in (input_ids, mask))
        feed = self._empty(MODEL, "past_key_values", input_ids)

        def step(token: np.ndarray | None) -> np.ndarray:
            new, real = (first, first_mask) if token is None else (token, np.ones_like(token))
            before = feed.get("attention_mask", np.zeros((len(new), 0), np.int64))
            feed["attention_mask"] = mask = np.concatenate([before, real], axis=1).astype(np.int64)
            feed["position_ids"] = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -new.shape[1] :]
            feed["input_ids"] = new
            return self._step(MODEL, feed)

        return step

    def _step(self, name: str, feed: dict[str, np.ndarray]) -> np.ndarray:
        """Logits (B, T, V); what the cache holds then is in `feed`."""
        session = self.session(name)
        outputs = [output.name for output in session.get_outputs()]
        results = dict(zip(outputs, session.run(outputs, feed), strict=True))
        logits = results.pop("logits")
        feed |= {_as_past(output): cache for output, cache in results.items()}
        return logits

    def _empty(self, name: str, part: str, input_ids: np.ndarray) -> dict[str, np.ndarray]:
        """A past of no tokens."""
        return {
            entry.name: np.zeros((len(input_ids), entry.shape[1], 0, entry.shape[3]), _DTYPES[entry.type])
            for entry in self.session(name).get_inputs()
            if part in entry.name
        }


def new_session(path: str | os.PathLike[str], providers: Sequence[Any] | None = None) -> Any:
    """ONNX Runtime's session of a file, by default with all providers that this machine has, GPUs first."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("serving needs ONNX Runtime: pip install 'keras-transformer-kit[onnx]'") from error
    return onnxruntime.InferenceSession(path, providers=providers or onnxruntime.get_available_providers())


def _as_past(name: str) -> str:
    return name.replace("present", "past_key_values")


_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
