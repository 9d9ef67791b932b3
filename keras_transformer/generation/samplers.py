"""How the next token is chosen, as values."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_transformer.arguments import is_integer, is_number
from keras_transformer.generation.validation import check_generates, check_seed

NORMALIZATIONS = ("gnmt", "length")
_STOPPING = ("heuristic", "num_beams")


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The most probable token at every step; of several, the one with the lowest id."""

    @property
    def hypotheses(self) -> int:
        """How many sequences run side by side."""
        return 1

    @property
    def num_return(self) -> int:
        """How many of them are returned."""
        return 1


@dataclasses.dataclass(frozen=True)
class Beam:
    r"""The best of many hypotheses that are searched side by side.

    A hypothesis of n tokens, the end token included, is ranked by its summed log-probability over a penalty,
    $((5 + n) / 6)^\alpha$ ("gnmt") or $n^\alpha$ ("length"). One that ends while it is among the `num_beams` best
    leaves the beam for a set of its own and the next best take its place; those that are cut at the limit compete
    with those that have ended. A beam of one is greedy search.

    Args:
        num_beams: hypotheses that run side by side. More than there are sequences make the search exhaustive.
        length_penalty: α. Above 0 it favours long sequences, below 0 short ones, at 0 the most probable. Penalties of
            all lengths must be normal numbers of float32.
        normalization: "gnmt" or "length".
        early_stopping: when a row stops before the limit. True as soon as no running hypothesis can enter its n-best
            any more; the answer is the same as with False, never, and only the time differs. The two others are of
            `transformers` and may stop too early for a positive length penalty: "heuristic" (`False` there) as soon as
            `num_beams` hypotheses have ended and none that runs has a better score at its present length, "num_beams"
            (`True` there) as soon as so many have ended.
        num_return: how many of the best are returned.
        diversity: γ. The k-th best continuation of a hypothesis is chosen as though its log-probability were
            γ·(k−1) lower, so that not all hypotheses descend from one. 0 for plain beam search.

    Raises:
        ValueError: where a setting is out of range.

    References:
        Wu et al., "Google's Neural Machine Translation System" (2016), equation 14 (without its coverage penalty);
        Li et al., "A Simple, Fast Diverse Decoding Algorithm for Neural Generation" (2016), section 3.2.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    normalization: str = "gnmt"
    early_stopping: bool | str = True
    num_return: int = 1
    diversity: float = 0.0

    def __post_init__(self) -> None:
        _unwrap(self)
        _check_positive("num_beams", self.num_beams)
        _check_positive("num_return", self.num_return)
        _check_number(
            "length_penalty", self.length_penalty, "a finite number", lambda value: -np.inf < value < np.inf
        )
        _check_number(
            "diversity", self.diversity, "a finite number of at least 0", lambda value: 0 <= value < np.inf
        )
        _check(
            "early_stopping",
            self.early_stopping,
            f"True, False or one of {list(_STOPPING)}",
            isinstance(self.early_stopping, bool) or self.early_stopping in _STOPPING,
        )
        if self.num_return > self.num_beams:
            raise ValueError(
                "`num_return` must be at most `num_beams`. "
                f"Received: num_return={self.num_return}, num_beams={self.num_beams}"
            )
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"`normalization` must be one of {list(NORMALIZATIONS)}. "
                f"Received: normalization={self.normalization!r}"
            )

    @property
    def hypotheses(self) -> int:
        """How many sequences run side by side."""
        return self.num_beams

    def penalties(self, max_length: int) -> np.ndarray:
        """What the scores of sequences of 0, 1, …, `max_length` tokens are divided by; float32.

        Raises:
            ValueError: where float32 has no normal number for one.
        """
        lengths = np.maximum(
            np.arange(max_length + 1), 1
        )  # a row without a source has no tokens and no score
        base = (5 + lengths) / 6 if self.normalization == "gnmt" else lengths
        with np.errstate(over="ignore", under="ignore"):
            penalties = np.power(base, float(self.length_penalty))
        limits = np.finfo(np.float32)
        if not (limits.tiny <= penalties.min() <= penalties.max() <= limits.max):
            raise ValueError(
                "`length_penalty` must give finite and positive float32 numbers for sequences of up to "
                f"{max_length} tokens. Received: length_penalty={self.length_penalty}"
            )
        return penalties.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Sample:
    r"""A token drawn from the model's distribution at every step.

    $$w_t \sim \mathrm{softmax}(\mathrm{filter}(z / \tau))$$

    Each filter keeps a set of the most probable tokens, ties included, of what the one before has left; their
    shares stay as they are.

    Args:
        temperature: τ in [1e-20, 1e20]. Below 1 the probable tokens become more probable.
        top_k: keeps the k most probable tokens; 0 for all.
        top_p: keeps the smallest set of the most probable tokens whose probabilities sum up to at least p.
        min_p: keeps tokens at least this much as probable as the most probable one.
        seed: the same seed draws the same tokens for a row of the same number, whatever is beside it, on every
            backend, compiled or not (where float32 rounding decides between two tokens aside).
        num_return: how many sequences are drawn for each row.

    Raises:
        ValueError: where a setting is out of range.

    References:
        Fan et al., "Hierarchical Neural Story Generation" (2018) for top-k; Holtzman et al., "The Curious Case of
        Neural Text Degeneration" (2020) for top-p; Nguyen et al., "Turning Up the Heat" (2024) for min-p.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_return: int = 1

    def __post_init__(self) -> None:
        _unwrap(self)
        _check_number(
            "temperature", self.temperature, "a number in [1e-20, 1e20]", lambda value: 1e-20 <= value <= 1e20
        )
        _check("top_k", self.top_k, "an integer of at least 0", is_integer(self.top_k) and self.top_k >= 0)
        _check_number("top_p", self.top_p, "a number in (0, 1]", lambda value: 0 < value <= 1)
        _check_number("min_p", self.min_p, "a number in [0, 1]", lambda value: 0 <= value <= 1)
        check_seed(self.seed)
        _check_positive("num_return", self.num_return)

    @property
    def hypotheses(self) -> int:
        """How many sequences run side by side."""
        return self.num_return


@dataclasses.dataclass(frozen=True)
class Speculative:
    """Greedy search that a smaller model runs ahead of: the same ids as `Greedy`, sooner where the two agree.

    Args:
        draft: the smaller model, of the same kind, vocabulary and special ids.
        num_tokens: K, how many tokens it proposes at a time.

    Raises:
        TypeError: where the draft does not generate.
        ValueError: where `num_tokens` is out of range.

    References:
        Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), with temperature 0;
        Xia et al., "Speculative Decoding" (2023).
    """

    draft: Any
    num_tokens: int = 4

    def __post_init__(self) -> None:
        _unwrap(self)
        check_generates("draft", self.draft)
        _check_positive("num_tokens", self.num_tokens)

    @property
    def hypotheses(self) -> int:
        """How many sequences run side by side."""
        return 1

    @property
    def num_return(self) -> int:
        """How many of them are returned."""
        return 1


@dataclasses.dataclass(frozen=True)
class Contrastive:
    r"""The most probable of a few tokens that is not too much like what came before.

    $$\arg\max_{v \in \mathrm{top}_k}\; (1 - \alpha)\, p(v) - \alpha \max_j \cos(h_v, h_j)$$

    The hidden state h_v is the decoder's last one after the candidate v, and j goes over all tokens before it, a
    prompt's too. The model has `hidden_step` and `logits`, as `models.Transformer` and `models.GPT`.

    Args:
        top_k: k, how many candidates there are.
        penalty_alpha: α in [0, 1]; 0 for greedy search.

    Raises:
        ValueError: where a setting is out of range.

    References:
        Su et al., "A Contrastive Framework for Neural Text Generation" (2022), equation 5.
    """

    top_k: int = 4
    penalty_alpha: float = 0.6

    def __post_init__(self) -> None:
        _unwrap(self)
        _check_positive("top_k", self.top_k)
        _check_number(
            "penalty_alpha", self.penalty_alpha, "a number in [0, 1]", lambda value: 0 <= value <= 1
        )

    @property
    def hypotheses(self) -> int:
        """How many tokens stand side by side in a step."""
        return self.top_k

    @property
    def num_return(self) -> int:
        """How many sequences are returned."""
        return 1


Sampler = Greedy | Beam | Sample | Speculative | Contrastive

_NAMES: dict[str, type] = {"greedy": Greedy, "beam": Beam, "sample": Sample, "contrastive": Contrastive}


def get(identifier: Any) -> Sampler:
    """The sampler that an identifier stands for.

    Args:
        identifier: a sampler, its name, or its config as `serialize` makes it.

    Returns:
        A sampler.

    Raises:
        ValueError: for anything else, and where a config has a setting out of range.

    Example:
        >>> get("greedy")
        Greedy()
        >>> get({"sampler": "beam", "num_beams": 8}).num_beams
        8
    """
    if isinstance(identifier, (*_NAMES.values(), Speculative)):
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


def serialize(sampler: Sampler) -> dict[str, Any]:
    """The config of a sampler, for `get`; a model that drafts has none."""
    if isinstance(sampler, Speculative):
        raise ValueError(f"`sampler` must be one that can be written down. Received: sampler={sampler!r}")
    name = next(name for name, cls in _NAMES.items() if isinstance(sampler, cls))
    return {"sampler": name, **dataclasses.asdict(sampler)}


def _unwrap(sampler: Any) -> None:
    """NumPy's numbers among the settings made Python's, which JSON has and which leave the types of tensors alone."""
    for field in dataclasses.fields(sampler):
        if isinstance(value := getattr(sampler, field.name), np.generic):
            object.__setattr__(sampler, field.name, value.item())


def _check_positive(name: str, value: Any) -> None:
    _check(name, value, "a positive integer", is_integer(value) and value > 0)


def _check_number(name: str, value: Any, expectation: str, condition: Callable[[float], bool]) -> None:
    _check(name, value, expectation, is_number(value) and condition(value))


def _check(name: str, value: Any, expectation: str, fulfilled: bool) -> None:
    if not fulfilled:
        raise ValueError(f"`{name}` must be {expectation}. Received: {name}={value!r}")
