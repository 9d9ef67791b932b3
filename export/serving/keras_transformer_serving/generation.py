"""The inputs and outputs of engines that generate, and the answers of pipelines."""

import dataclasses
import secrets
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_transformer_serving.jobs import Engine, Method
from keras_transformer_serving.row_options import MAX_SEED

GENERATE, SCORE = "generate", "score"
_GOLDEN = 0x9E3779B1


@dataclasses.dataclass(frozen=True)
class Source:
    """The inputs of the generation of a row.

    Attributes:
        ids: the source ids, or those of the prompt.
        prefix_ids: of an encoder–decoder, the first target tokens.
        start_id: of an encoder–decoder, the first input of the decoder; None for the model's.
        options: the options of the row that are given, by name in `ROW_OPTIONS`; others are the engine's. The "seed" of
            sampling is an integer in [0, 2³²), and "rows" the number of the row, on both of which its noise depends.
        noise: of sampling, float32 (N, M), in place of the noise of seed and row.
    """

    ids: Sequence[int]
    prefix_ids: Sequence[int] = ()
    start_id: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    noise: np.ndarray | None = None


class Scored(NamedTuple):
    """A target to score for a source.

    Attributes:
        source: the source.
        target_ids: the ids of the target, without a start token and the prefix of the source.
        mask: integers (S,), 0 for source ids to hide; None for none.
    """

    source: Source
    target_ids: Sequence[int]
    mask: np.ndarray | None = None


class Generated(NamedTuple):
    """The N hypotheses of a row, of M tokens at most.

    Attributes:
        ids: int32 (N, M), including the end token but not the prefix, padded.
        lengths: int32 (N,); 0 for a hypothesis that was not found, whose score is −∞.
        scores: float32 (N,), the log-probabilities, summed over tokens.
        ranking_scores: float32 (N,), the scores after the beam's length penalty; None if the engine has none.
        token_scores: float32 (N, M), the log-probability of each token; None if the engine has none.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    ranking_scores: np.ndarray | None = None
    token_scores: np.ndarray | None = None


class Token(NamedTuple):
    """A generated token.

    Attributes:
        id: its id.
        logits: the model's logits (V,), before constraints and temperature; None if the engine does not give them.
    """

    id: int
    logits: np.ndarray | None = None


class GenerationEngine(Engine, Protocol):
    """An engine of a model that generates.

    Its methods are "generate", from `Source`s to `Generated`s, and "score", from `Scored`s to log-probabilities (T,).

    Attributes:
        sampler: the settings of the sampler, among them "sampler", its name.
        num_return: the number of hypotheses, N.
        max_new_tokens: the maximum number of new tokens, M.
        vocabulary_size: the number of ids.
        pad_id: the padding id; None if there is none.
        start_id: the first input of the decoder; None for a decoder-only model.
        end_id: the id that ends a sequence.
        end_ids: all ids that end a sequence, also those of constraints.
        constraints: the settings of the constraints.
        options: the names of the options of a row that it computes; others are rejected.
        needed_for_options: by name of an option that it does not compute, the requirement that is not met; by default
            another engine.
        needed_to_attribute: the requirement of "score" with source ids to hide that is not met, "" for none.
        needed_to_give_logits: the requirement of logits of generated tokens that is not met, "" for none.
        needed_to_score: the requirement of "score" that is not met, "" for none.
        needed_to_stream: the requirement of generation token by token that is not met, "" for none.
    """

    sampler: Mapping[str, Any]
    num_return: int
    max_new_tokens: int
    vocabulary_size: int
    pad_id: int | None
    start_id: int | None
    end_id: int
    end_ids: frozenset[int]
    options: Collection[str]
    needed_for_options: Mapping[str, str]

    @property
    def constraints(self) -> Sequence[Mapping[str, Any]]:
        """The settings of the constraints."""

    @property
    def needed_to_attribute(self) -> str:
        """The requirement of "score" with source ids to hide that is not met, "" for none."""

    @property
    def needed_to_give_logits(self) -> str:
        """The requirement of logits of generated tokens that is not met, "" for none."""

    @property
    def needed_to_score(self) -> str:
        """The requirement of "score" that is not met, "" for none."""

    @property
    def needed_to_stream(self) -> str:
        """The requirement of generation token by token that is not met, "" for none."""

    def max_target_tokens(self, source: Source) -> int:
        """Return the maximum number of tokens of a target to score for a source."""

    def new_seed(self) -> int:
        """Return a new seed of sampling."""

    def ranking_score(self, score: float, length: int) -> float | None:
        """Return the score of a target after the beam's length penalty; None if the engine does not give it."""

    def tokens(self, source: Source) -> Iterator[Token]:
        """Generate token by token, up to an end token, the tokens that "generate" generates."""

    def attention(
        self, source: Source, target_ids: Sequence[int], layer: int, head: int | Sequence[int] | None
    ) -> np.ndarray:
        """Return the cross-attention weights (T, S) of a layer for a target.

        Raises:
            ValueError: if the engine does not give them, or the model has no such weights, layer or head.
        """


class ExportedEngine:
    """Base class of engines of exports: the settings, and that the engine only generates, unless a subclass does more.

    Args:
        config: the export's settings.

    Attributes:
        device: the type of the device that it runs on, "cpu" or "cuda".
        options: the names of the options of a row that it computes, by default the limit alone.
        needed_for_options: the requirement that is not met, by name of an option that needs no other engine.
    """

    methods: Mapping[str, Method]
    device = "cpu"
    options: Collection[str] = ("max_new_tokens",)
    needed_for_options: Mapping[str, str] = types.MappingProxyType({})

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.pad_id: int | None = config["pad_id"]
        self.start_id: int | None = config["start_id"]
        self.end_id: int = config["end_id"]
        self.padding_value = self.end_id if self.pad_id is None else self.pad_id
        self.max_new_tokens: int = config["max_new_tokens"]
        self.max_source_tokens: int = config["max_source_tokens"]
        self.vocabulary_size: int = config["vocabulary_size"]
        self.sampler: Mapping[str, Any] = config["generation"]
        self.num_return = int(self.sampler.get("num_return", 1))
        self.constraints: Sequence[Mapping[str, Any]] = config.get("constraints", [])
        ends = (each["end_ids"] for each in self.constraints if each["constraint"] == "EndTokens")
        self.end_ids = frozenset((self.end_id, *(id_ for ids in ends for id_ in ids)))

    @property
    def needed_to_attribute(self) -> str:
        """The requirement of "score" with source ids to hide that is not met: by default that of "score"."""
        return self.needed_to_score

    @property
    def needed_to_give_logits(self) -> str:
        """The requirement of logits of generated tokens that is not met: by default an engine that gives them."""
        return "an engine that gives logits, such as 'onnx'. Received: one that does not"

    @property
    def needed_to_score(self) -> str:
        """The requirement of "score" that is not met: by default an engine that has it."""
        return "" if SCORE in self.methods else "an engine that scores. Received: one that only generates"

    @property
    def needed_to_stream(self) -> str:
        """The requirement of generation token by token that is not met: by default an engine that does."""
        return "an engine that generates token by token. Received: one that does not"

    def map(self, method: Method, batches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the results of a method for several batches, by default one after another."""
        return [method(batch) for batch in batches]

    def max_target_tokens(self, source: Source) -> int:
        """Return the maximum number of tokens of a target to score, that of new tokens."""
        return self.max_new_tokens

    def new_seed(self) -> int:
        """Return a new seed of sampling."""
        return secrets.randbits(32)

    def ranking_score(self, score: float, length: int) -> float | None:
        """Return None: exports do not give scores after the beam's length penalty."""
        return None

    def tokens(self, source: Source) -> Iterator[Token]:
        """Raise a ValueError, as the engine does not generate token by token."""
        raise ValueError(f"Streaming needs {self.needed_to_stream}")

    def attention(
        self, source: Source, target_ids: Sequence[int], layer: int, head: int | Sequence[int] | None
    ) -> np.ndarray:
        """Raise a ValueError, as exports do not return attention weights."""
        raise ValueError(
            "`align` needs the pipeline of the model, as exported graphs do not return attention weights; "
            "`attributions` needs none. Received: an export"
        )


@dataclasses.dataclass(frozen=True)
class Generation(Mapping[str, Any]):
    """Generated ids and scores of B rows, with N hypotheses (one by default) of at most M tokens each.

    The hypotheses of a beam search are sorted from best to worst; if it finds fewer than N, the others have length 0
    and score −∞. Samples are in the order in which they were drawn.

    As a mapping it has the outputs "ids", "lengths" and "scores" of the signature "generate" of exports, without the
    axis of hypotheses if N = 1; and "error", if errors are returned.

    Attributes:
        ids: int32 (B, N, M), including the end token, padded with `pad_id`, or `end_id` for a model without `pad_id`.
        lengths: int32 (B, N), including the end token.
        scores: float32 (B, N), summed log-probabilities under the model's own distribution.
        ranking_scores: float32 (B, N), the scores by which a beam search sorts, including the length penalty; None
            from graphs.
        token_scores: float32 (B, N, M), the log-probability of each token, 0 after the end; None from graphs.
        seed: the seed of sampling, which repeats the same draws; None for other samplers, or several seeds.
        error: the error of each row, None for none; None if errors are raised.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    ranking_scores: np.ndarray | None = None
    token_scores: np.ndarray | None = None
    seed: int | None = None
    error: list[Exception | None] | None = None

    @property
    def best(self) -> np.ndarray:
        """The ids (B, M) of the first hypothesis."""
        return self.ids[:, 0]

    def __getitem__(self, name: str) -> Any:
        """Return an output of the signature "generate"."""
        if name not in [*self]:
            raise KeyError(name)
        values = getattr(self, name)
        return values[:, 0] if name != "error" and self.ids.shape[1] == 1 else values

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the outputs."""
        yield from ("ids", "lengths", "scores")
        if self.error is not None:
            yield "error"

    def __len__(self) -> int:
        """Return the number of outputs."""
        return 3 + (self.error is not None)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A generated or scored output for a text.

    Attributes:
        text: the output.
        score: its log-probability, summed over tokens.
        ranking_score: the score after the beam's length penalty; None from graphs.
        ids: its tokens, including the end token but not the prefix.
        token_scores: the log-probability of each; None from graphs, for outputs that are generated.
        seed: the seed of a sampled output.
    """

    text: str
    score: float
    ranking_score: float | None
    ids: list[int]
    token_scores: list[float] | None
    seed: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """The weights of the source pieces for each target piece.

    Attributes:
        source: S pieces, including the end token.
        target: T pieces, including the end token.
        weights: float32 (T, S), whose rows sum to 1.
        text: the target's text.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray
    text: str = ""


def part_seed(seed: int, part: int) -> int:
    """Return the seed of a part of a text: that of the text for the first."""
    return (seed + part * _GOLDEN) % (MAX_SEED + 1)


def uniform_noise(seed: int, rows: np.ndarray, hypotheses: int, steps: int) -> np.ndarray:
    """Return uniform numbers in (0, 1) that depend only on (seed, row, hypothesis, step).

    A counter-based hash: bit for bit the noise of `keras_transformer.generation`.

    Args:
        seed: an integer in [0, 2³²).
        rows: integers (B,), the index of each input.
        hypotheses: the number of hypotheses of each input, N.
        steps: the number of steps, M.

    Returns:
        float32 (B, N, M).
    """
    golden = np.uint32(_GOLDEN)
    state = _mix(np.array([seed], np.uint32) + golden)
    for axis, values in enumerate([rows, np.arange(hypotheses), np.arange(steps)]):
        numbers = np.asarray(values).astype(np.uint32).reshape([1] * axis + [-1] + [1] * (2 - axis))
        state = _mix(state + numbers * golden)
    uniform = (state >> np.uint32(9)).astype(np.float32) + np.float32(0.5)
    noise: np.ndarray = uniform * np.float32(2.0**-23)
    return noise


def _mix(state: np.ndarray) -> np.ndarray:
    """Apply the 32-bit finaliser of MurmurHash3."""
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    mixed: np.ndarray = state ^ (state >> np.uint32(16))
    return mixed


def stream_text(
    tokens: Iterator[int], decode: Callable[[list[int]], str], ids: Sequence[int] = ()
) -> Iterator[str]:
    """Yield the text of tokens while they are generated: a piece for each, "" if it adds none, and the rest.

    Args:
        tokens: the ids.
        decode: a function from ids to their text.
        ids: the ids before the first token, part of the text.
    """
    ids, emitted = list(ids), ""
    for token in tokens:
        ids.append(token)
        text = decode(ids)
        # The last character may be incomplete until later tokens add its remaining bytes.
        complete = text.startswith(emitted) and not text.endswith("\ufffd")
        yield text[len(emitted) :] if complete else ""
        emitted = text if complete else emitted
    yield decode(ids)[len(emitted) :] if ids else ""


def option_of(batch: Sequence[Source], name: str, default: Any) -> list[Any] | None:
    """Return an option of each source, by default `default`; None if none has it."""
    if not any(name in source.options for source in batch):
        return None
    return [source.options.get(name, default) for source in batch]


def padded(rows: Sequence[Sequence[int]], padding_value: int) -> tuple[np.ndarray, np.ndarray]:
    """Return padded ids and their mask (0 for padding), both int64 (B, S), S at least 1."""
    ids = np.full((len(rows), max(map(len, rows), default=0) or 1), padding_value, np.int64)
    mask = np.zeros_like(ids)
    for row, content in enumerate(rows):
        ids[row, : len(content)] = content
        mask[row, : len(content)] = 1
    return ids, mask
