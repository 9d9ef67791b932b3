"""Samplers: the settings of greedy search, beam search, sampling, speculative and contrastive decoding."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from keras_transformer.generation.validation import check_compatible, check_generates
from keras_transformer_options.arguments import (
    ArgumentError,
    check,
    check_one_of,
    check_positive_integer,
    check_seed,
    is_integer,
    is_number,
)

NORMALIZATIONS = ("gnmt", "length")
_STOPPING = ("heuristic", "num_beams")
TEMPERATURES = (1e-20, 1e20)


class Sampler:
    """Base class of samplers: frozen dataclasses of settings, each with a search assigned by `register`.

    Attributes:
        num_return: N, the number of sequences returned for each row of the batch.
        hypotheses: R, the number of tokens of each row that the model reads in a step.
        draws: True if the search samples: then the sampler has a `seed`, and rows, noise and seed are inputs.
        reads_last: True if the model also reads the last generated token.
        supports_shortlist: True if the search supports a `VocabularyShortlist`.
        streams: True if the tokens of a step are final, as `stream` requires; the search is then a
            `search.interface.TokenSearch`.
        forces_words: True if the search supports `ForcedWords`.
        drafts: draft models that the search runs in addition to the model.
    """

    draws: ClassVar[bool] = False
    reads_last: ClassVar[bool] = False
    supports_shortlist: ClassVar[bool] = False
    num_return: int = 1

    @property
    def hypotheses(self) -> int:
        """The number of hypotheses of a row, R."""
        return self.num_return

    @property
    def drafts(self) -> tuple[Any, ...]:
        """The draft models that the search runs in addition to the model."""
        return ()

    @property
    def streams(self) -> bool:
        """True if there is a single hypothesis."""
        return self.hypotheses == 1

    @property
    def forces_words(self) -> bool:
        """True if the search supports `ForcedWords`."""
        return False

    def check(self, model: Any, max_new_tokens: int) -> None:
        """Raise a ValueError if the sampler does not support the model or `max_new_tokens`."""


@dataclasses.dataclass(frozen=True)
class Greedy(Sampler):
    """Greedy search: choose the most probable token at every step, the lowest id in a tie."""

    supports_shortlist: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Beam(Sampler):
    r"""Beam search: keep the best hypotheses of several in parallel.

    A hypothesis of n tokens, including the end token, is ranked by its summed log-probability divided by the length
    penalty $((5 + n) / 6)^\alpha$ ("gnmt") or $n^\alpha$ ("length"). A hypothesis that ends among the `num_beams` best
    is moved to the set of finished hypotheses, and the next best takes its place; hypotheses truncated at the limit
    compete with the finished ones. A beam of one is greedy search.

    Args:
        num_beams: the number of running hypotheses. With more beams than sequences the search is exhaustive.
        length_penalty: α. Values above 0 favour long sequences, values below 0 short ones; 0 ranks by log-probability.
            The penalties of all lengths must be normal float32 numbers.
        normalization: "gnmt" or "length".
        early_stopping: when to stop before the limit. True: as soon as no running hypothesis can be among the
            `num_return` best, with the same results as False (never stop). The other two values are the settings of
            `transformers` and may stop too early for a positive length penalty: "heuristic" (`False` in `transformers`)
            as soon as `num_beams` hypotheses are finished and no running one has a better score at its current length,
            "num_beams" (`True` in `transformers`) as soon as `num_beams` hypotheses are finished.
        num_return: the number of best hypotheses to return.
        diversity: γ. To choose candidates, the log-probability of the k-th best continuation of each hypothesis is
            lowered by γ·(k−1), which favours different parents; 0 for plain beam search.

    References:
        Wu et al., "Google's Neural Machine Translation System" (2016), equation 14 (without its coverage penalty);
        Li et al., "A Simple, Fast Diverse Decoding Algorithm for Neural Generation" (2016), section 3.2.
    """

    supports_shortlist: ClassVar[bool] = True

    num_beams: int = 4
    length_penalty: float = 0.6
    normalization: str = "gnmt"
    early_stopping: bool | str = True
    num_return: int = 1
    diversity: float = 0.0

    def __post_init__(self) -> None:
        _unwrap(self)
        check_positive_integer(num_beams=self.num_beams, num_return=self.num_return)
        penalty, diversity, stopping = self.length_penalty, self.diversity, self.early_stopping
        check(is_number(penalty) and -np.inf < penalty < np.inf, "be a finite number", length_penalty=penalty)
        is_valid = is_number(diversity) and 0 <= diversity < np.inf
        check(is_valid, "be a finite number of at least 0", diversity=diversity)
        is_valid = isinstance(stopping, bool) or stopping in _STOPPING
        check(is_valid, f"be True, False or one of {list(_STOPPING)}", early_stopping=stopping)
        is_valid = self.num_return <= self.num_beams
        check(is_valid, "be at most {num_beams}", num_return=self.num_return, num_beams=self.num_beams)
        check_one_of(NORMALIZATIONS, normalization=self.normalization)

    @property
    def hypotheses(self) -> int:
        """The number of hypotheses of a row, R."""
        return self.num_beams

    @property
    def forces_words(self) -> bool:
        """True if there are at least two beams."""
        return self.num_beams > 1

    def check(self, model: Any, max_new_tokens: int) -> None:
        """Raise a ValueError if a length penalty is not a normal float32 number."""
        self.penalties(max_new_tokens)

    def penalties(self, max_length: int) -> np.ndarray:
        """Return the length penalties of 0, 1, …, `max_length` tokens, float32, by which scores are divided."""
        lengths = np.maximum(
            np.arange(max_length + 1), 1
        )  # a row without a source has no tokens and no score
        base = (5 + lengths) / 6 if self.normalization == "gnmt" else lengths
        with np.errstate(over="ignore", under="ignore"):
            penalties = np.power(base, float(self.length_penalty))
        limits = np.finfo(np.float32)
        if not (limits.tiny <= penalties.min() <= penalties.max() <= limits.max):
            raise ArgumentError(
                "{length_penalty} must give finite and positive float32 numbers for up to {max_length!s} tokens",
                max_length=max_length,
                length_penalty=self.length_penalty,
            )
        return penalties.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Sample(Sampler):
    r"""Sampling: draw every token from the model's distribution.

    $$w_t \sim \mathrm{softmax}(\mathrm{filter}(z / \tau))$$

    z are the logits. The filters are applied in the order below. Each keeps the most probable tokens, including ties,
    without changing their relative probabilities.

    Args:
        temperature: τ in [1e-20, 1e20]. Values below 1 sharpen the distribution.
        top_k: keep the k most probable tokens; 0 for all.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least p.
        min_p: keep tokens whose probability is at least p times that of the most probable one.
        seed: the seed of the noise. The same seed and row number draw the same tokens in any batch, on every backend,
            compiled or not, up to float32 rounding. With None, every call draws a seed from Python's `random`, which
            `keras.utils.set_random_seed` seeds, and reports it as `Generation.seed`.
        num_return: the number of sequences to draw for each row of the batch.

    References:
        Fan et al., "Hierarchical Neural Story Generation" (2018) for top-k; Holtzman et al., "The Curious Case of
        Neural Text Degeneration" (2020) for top-p; Nguyen et al., "Turning Up the Heat" (2024) for min-p.
    """

    draws: ClassVar[bool] = True
    supports_shortlist: ClassVar[bool] = True

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    num_return: int = 1

    def __post_init__(self) -> None:
        _unwrap(self)
        low, high = TEMPERATURES
        is_valid = is_number(self.temperature) and low <= self.temperature <= high
        check(is_valid, "be a number in [1e-20, 1e20]", temperature=self.temperature)
        check(is_integer(self.top_k) and self.top_k >= 0, "be an integer of at least 0", top_k=self.top_k)
        check(is_number(self.top_p) and 0 < self.top_p <= 1, "be a number in (0, 1]", top_p=self.top_p)
        check(is_number(self.min_p) and 0 <= self.min_p <= 1, "be a number in [0, 1]", min_p=self.min_p)
        if self.seed is not None:
            check_seed(seed=self.seed)
        check_positive_integer(num_return=self.num_return)


@dataclasses.dataclass(frozen=True)
class Speculative(Sampler):
    """Speculative decoding: greedy search accelerated by a draft model, with the same ids as `Greedy`.

    Args:
        draft: a smaller model with the same vocabulary and special ids, encoder–decoder or decoder-only like the model.
        num_tokens: K, the number of tokens that the draft proposes at a time.

    References:
        Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), with temperature 0;
        Xia et al., "Speculative Decoding" (2023).
    """

    draft: Any
    num_tokens: int = 4

    def __post_init__(self) -> None:
        _unwrap(self)
        check_generates("draft", self.draft)
        check_positive_integer(num_tokens=self.num_tokens)

    @property
    def drafts(self) -> tuple[Any, ...]:
        """The draft model."""
        return (self.draft,)

    @property
    def streams(self) -> bool:
        """False: a step generates several tokens."""
        return False

    def check(self, model: Any, max_new_tokens: int) -> None:
        """Raise a ValueError if model and draft differ in vocabulary or special ids, or only one is decoder-only."""
        check_compatible(model, self.draft, "draft")


@dataclasses.dataclass(frozen=True)
class Contrastive(Sampler):
    r"""Contrastive search: choose among the k most probable tokens by probability and dissimilarity to the context.

    $$\arg\max_{v \in \mathrm{top}_k}\; (1 - \alpha)\, p(v) - \alpha \max_j \cos(h_v, h_j)$$

    h_v is the decoder's last hidden state of the candidate v, and j runs over all earlier tokens, including the prompt.
    The model must have `hidden_step` and `logits`, such as `models.Transformer` and `models.GPT`.

    Args:
        top_k: k, the number of candidates.
        penalty_alpha: α in [0, 1]; 0 for greedy search.

    References:
        Su et al., "A Contrastive Framework for Neural Text Generation" (2022), equation 5.
    """

    reads_last: ClassVar[bool] = True

    top_k: int = 4
    penalty_alpha: float = 0.6

    def __post_init__(self) -> None:
        _unwrap(self)
        check_positive_integer(top_k=self.top_k)
        is_valid = is_number(self.penalty_alpha) and 0 <= self.penalty_alpha <= 1
        check(is_valid, "be a number in [0, 1]", penalty_alpha=self.penalty_alpha)

    @property
    def hypotheses(self) -> int:
        """The number of candidates decoded in a step, R."""
        return self.top_k

    @property
    def streams(self) -> bool:
        """False: the model reads a token before it is chosen."""
        return False

    def check(self, model: Any, max_new_tokens: int) -> None:
        """Raise a ValueError if the model does not return hidden states."""
        if not (hasattr(model, "hidden_step") and hasattr(model, "logits")):
            raise ValueError(
                "`model` must have `hidden_step` and `logits` for `Contrastive`. "
                f"Received: model of type {type(model).__name__}"
            )


_NAMES: dict[str, Any] = {}
_SEARCHES: dict[type[Sampler], Callable[..., Any]] = {}


def register(name: str | None, sampler: type[Sampler], search: Callable[..., Any]) -> None:
    """Register a sampler, so that `generate` accepts it.

    Args:
        name: the name for `get` and `serialize`; None for a sampler without a config, such as one that holds a model.
        sampler: a frozen dataclass derived from `Sampler`.
        search: a function of `search.interface.Inputs` and the `prompts.PromptedModel` that returns a
            `search.interface.Search`, such as the class of the search.
    """
    if name is not None:
        _NAMES[name] = sampler
    _SEARCHES[sampler] = search


def search_of(sampler: Sampler) -> Callable[..., Any]:
    """Return the registered search of a sampler."""
    return _SEARCHES[type(sampler)]


def get(identifier: Any) -> Sampler:
    """Retrieve a sampler.

    Args:
        identifier: a sampler, its name, or its config as returned by `serialize`.

    Example:
        >>> get("greedy")
        Greedy()
        >>> get({"sampler": "beam", "num_beams": 8}).num_beams
        8
    """
    if isinstance(identifier, Sampler) and type(identifier) in _SEARCHES:
        return identifier
    if isinstance(identifier, str) and identifier in _NAMES:
        return _NAMES[identifier]()
    if isinstance(identifier, dict) and str(identifier.get("sampler")) in _NAMES:
        cls = _NAMES[identifier["sampler"]]
        settings = {name: value for name, value in identifier.items() if name != "sampler"}
        if settings.keys() <= {field.name for field in dataclasses.fields(cls)}:
            return cls(**settings)
    raise ValueError(
        f"`sampler` must be one of {sorted(_NAMES)}, a sampler or its config. Received: sampler={identifier!r}"
    )


def serialize(sampler: Any) -> dict[str, Any]:
    """Return the config of a sampler for `get`; `Speculative` has no config, because it holds a model."""
    for name, cls in _NAMES.items():
        if type(sampler) is cls:
            return {"sampler": name, **dataclasses.asdict(sampler)}
    raise ValueError(
        f"`sampler` must be serializable, which `{type(sampler).__name__}` is not. Received: sampler={sampler!r}"
    )


def _unwrap(sampler: Any) -> None:
    """Convert NumPy settings to Python numbers, which JSON supports and which do not promote tensors."""
    for field in dataclasses.fields(sampler):
        if isinstance(value := getattr(sampler, field.name), np.generic):
            object.__setattr__(sampler, field.name, value.item())
