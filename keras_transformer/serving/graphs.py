"""The ONNX graphs of an export: ids in, ids out."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.serving.noise import uniform

ENCODER = "encoder_model"
DECODER = "decoder_model_merged"


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
        self.pad_id: int = config["pad_id"]
        self.start_id: int = config["start_id"]
        self.end_id: int = config["end_id"]
        self.max_new_tokens: int = config["max_new_tokens"]
        self.max_source_tokens: int = config["max_source_tokens"]
        self.vocabulary_size: int = config["vocabulary_size"]
        self.sampler: dict[str, Any] = config["generation"]
        self._loop = loop_name(config)
        self._providers = providers or _onnxruntime().get_available_providers()
        self._sessions: dict[str, Any] = {}
        self.session(self._loop)  # a damaged file is found now, not at the first request

    def session(self, name: str) -> Any:
        """ONNX Runtime's session of a graph."""
        if name not in self._sessions:
            self._sessions[name] = _onnxruntime().InferenceSession(
                self._path(name), providers=self._providers
            )
        return self._sessions[name]

    @property
    def num_return(self) -> int:
        """N, how many hypotheses there are for each row."""
        return self.sampler.get("num_return", 1)

    def generate(
        self, input_ids: np.ndarray, rows: np.ndarray | None = None, noise: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The whole loop in one run.

        Args:
            input_ids: int64 (B, S), filled up with `pad_id`.
            rows: integers (B,), the number of each row that sampling draws for, by default 0, 1, 2, …
            noise: float32 (B, N, M, V), what sampling draws with instead of its seed.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis of N after the first where
            N > 1.
        """
        given = {"input_ids": input_ids}
        if self.sampler["sampler"] == "sample":
            given["noise"] = (
                self.noise(np.arange(len(input_ids)) if rows is None else rows) if noise is None else noise
            )
        names = ["ids", "lengths", "scores"]
        return dict(zip(names, self.session(self._loop).run(names, given), strict=True))

    def noise(self, rows: np.ndarray) -> np.ndarray:
        """What the sampler's seed makes for rows of these numbers, float32 (B, N, M, V)."""
        return uniform(self.sampler["seed"], rows, self.num_return, self.max_new_tokens, self.vocabulary_size)

    def generate_by_steps(self, input_ids: np.ndarray) -> np.ndarray:
        """Greedy ids (B, M), token by token from the encoder's and the decoder's graph.

        For callers that keep the loop to themselves; slower than `generate`. Samplers and constraints are the
        loop's.
        """
        feed = self._encoded(input_ids)
        decoder = self.session(DECODER)
        outputs = [output.name for output in decoder.get_outputs()]
        token = np.full((len(input_ids), 1), self.start_id, np.int64)
        ids = np.full((len(input_ids), self.max_new_tokens), self.pad_id, np.int64)
        ended = (input_ids == self.pad_id).all(axis=1)
        for step in range(self.max_new_tokens):
            if ended.all():
                break
            results = dict(zip(outputs, decoder.run(outputs, {**feed, "input_ids": token}), strict=True))
            logits = results.pop("logits")[:, -1]
            feed |= {_as_past(name): cache for name, cache in results.items()}
            logits[:, [self.pad_id, self.start_id]] = -np.inf
            best = np.where(ended, self.pad_id, logits.argmax(axis=-1))
            ids[:, step] = best
            ended |= best == self.end_id
            token = best[:, None]
        return ids

    def _encoded(self, input_ids: np.ndarray) -> dict[str, np.ndarray]:
        """What the decoder takes at every step, with an empty past."""
        encoder, decoder = self.session(ENCODER), self.session(DECODER)
        mask = (input_ids != self.pad_id).astype(np.int64)
        names = [output.name for output in encoder.get_outputs()]
        memory = encoder.run(names, {"input_ids": input_ids, "attention_mask": mask})
        empty = {
            entry.name: np.zeros((len(input_ids), 0, *entry.shape[2:]), memory[0].dtype)
            for entry in decoder.get_inputs()
            if ".decoder." in entry.name
        }
        encoded = {_as_past(name): tensor for name, tensor in zip(names, memory, strict=True)}
        return {"encoder_attention_mask": mask, **empty, **encoded}


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("serving needs ONNX Runtime: pip install 'keras-transformer-kit[onnx]'") from error
    return onnxruntime


def _as_past(name: str) -> str:
    return name.replace("present", "past_key_values")
