"""Embeddings of texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.pipelines.errors import Errors, InvalidInputError, as_list
from keras_transformer_serving.pipelines.texts import (
    Arrays,
    TextPipeline,
    TextTask,
    Truncate,
    Windows,
    as_floats,
)
from keras_transformer_serving.tasks import DEFAULT, TEXT, Row, Tensor

EMBED = "embed"


class EmbeddingTask(TextTask):
    """The embedding of texts as vectors."""

    @property
    def _prompts(self) -> Mapping[str, str]:
        prompts: Mapping[str, str] = self.config.get("prompts") or {}
        return prompts

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        errors: Errors = "raise",
        truncate: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Embed texts.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.
            prompt_name: the name of a prompt of the export that is put before each text; by default that of the
                export's setting `default_prompt_name`.
            prompt: a prompt without a name; "" for none.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens.
            truncate_dim: the number of first values of vectors to keep, which are normalised again if vectors are, for
                models that were trained so; by default all.

        Returns:
            float32 (n, E), or (E,) for one string; with errors="return" a list of vectors and errors.

        Raises:
            ValueError: if a text is too long, `prompt_name` is unknown, both a name and a prompt are given, or vectors
                have fewer values than `truncate_dim`.

        References:
            Kusupati et al., "Matryoshka Representation Learning" (2022).
        """
        size: int = self.config["model_dim"]
        if truncate_dim is not None and not (type(truncate_dim) is int and 1 <= truncate_dim <= size):
            raise ValueError(
                f"`truncate_dim` must be an integer in [1, {size}]. Received: truncate_dim={truncate_dim!r}"
            )
        one = isinstance(text, str)
        texts = [text] if isinstance(text, str) else as_list("text", text)
        options = _prompt_options(self._prompts, prompt_name, prompt)
        columns = {"text": texts, **{name: [value] * len(texts) for name, value in options.items()}}
        answers = self._answers(columns, batch_size, errors=errors, truncate=truncate)
        if truncate_dim is not None:
            normalize = self.config["normalize"]
            answers = [
                each
                if isinstance(each, Exception)
                else first_values(np.asarray(each), truncate_dim, normalize)
                for each in answers
            ]
        if errors == "return":
            return answers[0] if one else answers
        rows = as_floats(answers, truncate_dim or size)
        return rows[0] if one else rows

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs of each signature; of EMBED also a prompt and its name."""
        if not config.get("prompts"):
            return {DEFAULT: (TEXT,)}
        name = Tensor("prompt_name", "string", default=config["default_prompt_name"] or "")
        return {DEFAULT: (TEXT,), EMBED: (TEXT, name, Tensor("prompt", "string", default=""))}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the output "embedding"."""
        return (Tensor("embedding", "float32", (config["model_dim"],)),)

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.vectors`: cosines, and the ranking of texts by similarity."""
        return closeness.vectors(pairs, "sentence_embedding")


class Embedding(EmbeddingTask, TextPipeline):
    """An exported encoder of sentences; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, None]:
        """Convert a text to windows of ids, with the default prompt, the prompt of a name, or a prompt.

        The name "" means no prompt. A prompt other than "" replaces the prompt of the name.
        """
        text, *options = texts
        name, prompt = options or (self.config.get("default_prompt_name") or "", "")
        if name and name not in self._prompts:
            raise InvalidInputError(
                "prompt_name", f"`prompt_name` must be one of {list(self._prompts)}. Received: {name}"
            )
        prompt = prompt or (self._prompts[name] if name else "")
        return self._windows(self.tokenizer.tokenize(prompt + text), "text", truncate), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> Row:
        """Average the vectors (W, D) of the windows of a text, weighted by their numbers of tokens."""
        weights = np.array([len(ids) + 2 for ids in windows.ids], np.float32)[:, None]
        mean: np.ndarray = (weights * outputs["pooled"]).sum(axis=0) / weights.sum()
        return {"embedding": first_values(mean, None, self.config["normalize"])}


def first_values(vectors: np.ndarray, count: int | None, normalize: bool) -> np.ndarray:
    """Return the first values of vectors (…, E), None for all, normalised to length 1 on request: (…, count)."""
    vectors = vectors[..., :count]
    if not normalize:
        return vectors
    normalized: np.ndarray = vectors / np.sqrt(
        np.maximum(np.square(vectors).sum(axis=-1, keepdims=True), 1e-12)
    )
    return normalized


def _prompt_options(
    prompts: Mapping[str, str], prompt_name: str | None, prompt: str | None
) -> dict[str, str]:
    """Return the inputs "prompt_name" and "prompt" of `preprocess`; none for the default prompt.

    Args:
        prompts: the prompts, by name.
        prompt_name: the name of one of them, or None.
        prompt: a prompt without a name, or None.
    """
    if prompt is not None:
        if prompt_name is not None:
            raise ValueError(
                "`prompt` must be None beside a `prompt_name`. "
                f"Received: prompt_name={prompt_name!r}, prompt={prompt!r}"
            )
        if not isinstance(prompt, str):
            raise TypeError(f"`prompt` must be a string. Received: prompt={prompt!r}")
        return {"prompt_name": "", "prompt": prompt}
    if prompt_name is None:
        return {}
    if prompt_name not in prompts:
        raise ValueError(
            f"`prompt_name` must be one of {list(prompts)}. Received: prompt_name={prompt_name!r}"
        )
    return {"prompt_name": prompt_name, "prompt": ""}
