"""The options of a row that is generated from, declared once for all engines and for all ways to call them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_type_hints

from keras_transformer_serving.tasks import Tensor

NEW_SEED = -1  # draws a new seed
MAX_SEED = 2**32 - 1
TEMPERATURES = (1e-20, 1e20)
SAMPLE = "sample"
Config = Mapping[str, Any]
"""The settings of an export, of which "generation", "constraints" and "max_new_tokens" are used."""


@dataclasses.dataclass(frozen=True)
class RowOption:
    """A number that each row can have.

    Attributes:
        dtype: "int32", "int64" or "float32".
        help: one sentence for the command line and for requests.
        default: a function from the settings to the value of a row without it.
        range: a function from the settings to the least and the largest value.
        sampler: the name of the only sampler with the option; None for all.
        only_in_signatures: whether calls and the command line are without it.
    """

    dtype: str
    help: str
    default: Callable[[Config], float]
    range: Callable[[Config], tuple[float, float]]
    sampler: str | None = None
    only_in_signatures: bool = False

    @property
    def is_real(self) -> bool:
        """True for a real number, False for an integer."""
        return self.dtype == "float32"

    def tensor(self, name: str, config: Config) -> Tensor:
        """Return the input of signatures."""
        default = (float if self.is_real else int)(self.default(config))
        return Tensor(name, self.dtype, default=default, range=self.range(config), help=self.help)


def _limits(config: Config) -> tuple[int, int]:
    constraints = config.get("constraints", [])
    counts = [each["count"] for each in constraints if each["constraint"] == "MinNewTokens"]
    return max([1, *counts]), config["max_new_tokens"]


def _seed(config: Config) -> int:
    seed = config["generation"]["seed"]
    return NEW_SEED if seed is None else seed


class RowOptions(TypedDict, total=False):
    """The options of a row: one value for all rows, or one for each; None for the default.

    Attributes:
        max_new_tokens: the maximum number of new tokens, at most the pipeline's, without the prefix. If a text is
            split, it limits each part.
        min_new_tokens: the minimum number of tokens before an end token, by default 0.
        temperature: the temperature of sampling, by default the sampler's.
        seed: the seed of sampling, by default the sampler's or, without one, a new seed. The noise of a text depends
            on it and on the index of the text.
    """

    max_new_tokens: Annotated[
        int | Sequence[int] | None,
        RowOption(
            "int32",
            "the maximum number of tokens",
            default=lambda config: config["max_new_tokens"],
            range=_limits,
        ),
    ]
    min_new_tokens: Annotated[
        int | Sequence[int] | None,
        RowOption(
            "int32",
            "the minimum number of tokens before an end token",
            default=lambda config: 0,
            range=lambda config: (0, config["max_new_tokens"]),
        ),
    ]
    temperature: Annotated[
        float | Sequence[float] | None,
        RowOption(
            "float32",
            "sample: below 1 for a sharper distribution",
            default=lambda config: config["generation"].get("temperature", 1),
            range=lambda config: TEMPERATURES,
            sampler=SAMPLE,
        ),
    ]
    seed: Annotated[
        int | Sequence[int] | None,
        RowOption(
            "int64",
            "sample: the seed; -1 draws a new one",
            default=_seed,
            range=lambda config: (NEW_SEED, MAX_SEED),
            sampler=SAMPLE,
        ),
    ]


ROW_OPTIONS: dict[str, RowOption] = {
    **{name: hint.__metadata__[0] for name, hint in get_type_hints(RowOptions, include_extras=True).items()},
    "rows": RowOption(
        "int32",
        "sample: the number of the row, which seeds the noise; -1 for its index in the request",
        default=lambda config: -1,
        range=lambda config: (-1, 2**31 - 1),
        sampler=SAMPLE,
        only_in_signatures=True,
    ),
}
"""All options, by name."""


def tensors_of(config: Config) -> tuple[Tensor, ...]:
    """Return the options of a sampler as inputs of signatures."""
    sampler = config["generation"]["sampler"]
    return tuple(
        option.tensor(name, config)
        for name, option in ROW_OPTIONS.items()
        if option.sampler in (None, sampler)
    )


def of_calls() -> dict[str, RowOption]:
    """Return the options of calls and of the command line, by name."""
    return {name: option for name, option in ROW_OPTIONS.items() if not option.only_in_signatures}
