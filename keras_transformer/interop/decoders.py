"""Settings of ids, windows and rotary positions that decoder-only architectures of `transformers` share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.interop.architecture import Derived
from keras_transformer.layers.positions.rotary_scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    RotaryScaling,
    YaRNScaling,
)
from keras_transformer.models.block_arguments import max_length_of, one_if_equal, per_block
from keras_transformer.relations import Causal, SlidingWindow
from keras_transformer_options.arguments import is_integer, is_number

Config = Mapping[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"


def expected(config: Config, expectation: str, **received: Any) -> ValueError:
    """Return the error for a `config.json` with a setting that is not supported."""
    shown = ", ".join(f"{name}={value!r}" for name, value in received.items())
    return ValueError(
        f"`config.json` of a {config.get('model_type')} must have {expectation}. Received: {shown}"
    )


def _read_ids(config: Config) -> dict[str, Any]:
    """Return the first of the ids that end a text, and the padding id, unless it also ends a text."""
    pad_id, end_ids = config.get("pad_token_id"), config.get("eos_token_id")
    ends = end_ids if isinstance(end_ids, list) else [end_ids]
    if not ends or not all(map(is_integer, ends)):
        raise expected(config, "an integer or a list of integers as eos_token_id", eos_token_id=end_ids)
    if pad_id is not None and not is_integer(pad_id):
        raise expected(config, "an integer as pad_token_id", pad_token_id=pad_id)
    return {"end_id": ends[0], "pad_id": None if pad_id in (*ends, -1) else pad_id}


IDS = Derived(
    ("eos_token_id", "pad_token_id"),
    _read_ids,
    lambda model: {"eos_token_id": model.end_id, "pad_token_id": model.pad_id},
)


def window(config: Config) -> Any:
    """Return the number of tokens in a window, or None."""
    size = config.get("sliding_window")
    if size is not None and not (is_integer(size) and size > 0):
        raise expected(config, "a positive integer as sliding_window", sliding_window=size)
    return size


def windows(
    is_sliding: Callable[[Config, int], bool],
    *settings: str,
    has_types: bool = True,
    has_switch: bool = False,
) -> Derived:
    """Return the relation of each block, derived from `layer_types` or without it from other settings.

    Args:
        is_sliding: a function of a `config.json` and the index of a block: whether it has a window if there are no
            `layer_types`.
        *settings: the names of the settings that it reads.
        has_types: whether `transformers` reads `layer_types`; otherwise they must agree with `is_sliding`.
        has_switch: whether windows need `use_sliding_window`.
    """

    def read(config: Config) -> dict[str, Any]:
        size: Any = None if has_switch and not config.get("use_sliding_window") else window(config)
        derived = [SLIDING if is_sliding(config, i) else FULL for i in range(config["num_hidden_layers"])]
        types = config.get("layer_types") or derived
        is_list = isinstance(types, list) and len(types) == len(derived)
        if not is_list or any(type_ not in (FULL, SLIDING) for type_ in types):
            raise expected(
                config, f"{FULL!r} or {SLIDING!r} for each layer as layer_types", layer_types=types
            )
        if types != derived and not has_types:
            raise expected(config, f"no layer_types, or {derived}", layer_types=types)
        if SLIDING in types and size is None:
            raise expected(config, f"a window for {SLIDING!r}", sliding_window=size, layer_types=types)
        relations = [SlidingWindow(size - 1) if type_ == SLIDING else Causal() for type_ in types]
        return {"relation": one_if_equal(relations)}

    def write(model: Any) -> dict[str, Any]:
        relations = per_block("relation", model.relation, model.num_layers)
        lefts = [relation.left for relation in relations if isinstance(relation, SlidingWindow)]
        types = [SLIDING if isinstance(relation, SlidingWindow) else FULL for relation in relations]
        return {
            "sliding_window": lefts[0] + 1 if lefts and lefts[0] is not None else None,
            **({"use_sliding_window": bool(lefts)} if has_switch else {}),
            **({"layer_types": types} if has_types else {}),
        }

    switch = ("use_sliding_window",) if has_switch else ()
    return Derived(("sliding_window", "layer_types", *switch, *settings), read, write)


NO_WINDOWS = Derived((), lambda config: {"relation": Causal()}, lambda model: {})


LENGTH, ORIGINAL_LENGTH = "max_position_embeddings", "original_max_position_embeddings"
ROPE_SETTINGS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    LENGTH,
    ORIGINAL_LENGTH,
)
# The scaling of each type, and a mapping from its arguments to settings.
_SCALINGS: dict[str, tuple[type[RotaryScaling], dict[str, str]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "dynamic": (DynamicNTKScaling, {"factor": "factor", "original_length": LENGTH}),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "original_length": ORIGINAL_LENGTH,
            "low_frequency_factor": "low_freq_factor",
            "high_frequency_factor": "high_freq_factor",
        },
    ),
    "yarn": (
        YaRNScaling,
        {
            "factor": "factor",
            "original_length": ORIGINAL_LENGTH,
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "attention_factor": "attention_factor",
        },
    ),
    "longrope": (
        LongRoPEScaling,
        {
            "factor": "factor",
            "original_length": ORIGINAL_LENGTH,
            "short_factors": "short_factor",
            "long_factors": "long_factor",
            "attention_factor": "attention_factor",
        },
    ),
}
_OF_ALL_TYPES = {"rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL_LENGTH}


def rotary_positions(
    types: Sequence[str] = tuple(_SCALINGS),
    has_part: bool = False,
    has_rotary_dim: bool = True,
    has_positions: Callable[[Config, int], bool] = lambda config, block: True,
    written: Callable[[Any], dict[str, Any]] = lambda model: {},
    settings: Sequence[str] = (),
) -> Derived:
    """Return rotary frequencies and the maximum length, derived from old and new forms of `config.json`.

    Args:
        types: the types of scalings that the class of `transformers` accepts.
        has_part: whether `partial_rotary_factor` may be less than 1.
        has_rotary_dim: whether the model has the argument `rotary_dim`.
        has_positions: a function of a `config.json` and the index of a block: whether it has positions.
        written: a function of a model that returns the settings from which `has_positions` is read.
        settings: the names of these settings.
    """

    def read(config: Config) -> dict[str, Any]:
        rope, blocks = rope_of(config), range(config["num_hidden_layers"])
        base, scaling = rotary(config, rope, types)
        bases = [base if has_positions(config, i) else None for i in blocks]
        factor = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
        if not is_number(factor) or not 0 < factor <= 1 or (factor < 1 and not has_part):
            allowed = "a number up to 1" if has_part else "1"
            raise expected(config, f"{allowed} as partial_rotary_factor", partial_rotary_factor=factor)
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return {
            "max_wavelength": one_if_equal(bases),
            "scaling": scaling,
            "max_length": max_length(config, [scaling]),
            **({"rotary_dim": None if factor == 1 else int(head_dim * factor)} if has_rotary_dim else {}),
        }

    def write(model: Any) -> dict[str, Any]:
        bases = per_block("max_wavelength", model.max_wavelength, model.num_layers)
        scaling = per_block("scaling", model.scaling, model.num_layers)[0]
        rotary_dim = model.rotary_dim if has_part else None
        return {
            "rope_theta": next((base for base in bases if base is not None), 10000.0),
            "rope_scaling": written_rope(scaling),
            **written_length(model, scaling),
            **({"partial_rotary_factor": rotary_dim / model.key_dim} if rotary_dim else {}),
            **written(model),
        }

    return Derived((*ROPE_SETTINGS, *settings), read, write)


ROTARY = rotary_positions()


def rope_of(config: Config) -> Config:
    """Return `rope_parameters`, which older versions of `transformers` call `rope_scaling`."""
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if old and new and old != new:
        raise expected(
            config,
            "rope_parameters or rope_scaling, not two that differ",
            rope_parameters=new,
            rope_scaling=old,
        )
    rope = old or new or {}
    if not isinstance(rope, dict):
        raise expected(config, "a dictionary as rope_parameters or rope_scaling", rope_parameters=rope)
    return rope


def rotary(
    config: Config, rope: Config, types: Sequence[str] = tuple(_SCALINGS)
) -> tuple[float, RotaryScaling | None]:
    """Return the base of rotary frequencies and their scaling.

    Args:
        config: a `config.json`.
        rope: its `rope_parameters`, for one type of layers.
        types: the types of scalings that the class of `transformers` accepts.
    """
    base: Any = rope.get("rope_theta") or config.get("rope_theta")
    if not is_number(base) or base <= 0:
        raise expected(config, "a positive number as rope_theta", rope_theta=base)
    rope_type: Any = rope.get("rope_type", rope.get("type", "default"))
    rope_type = "longrope" if rope_type == "su" else rope_type  # its name in the first versions of Phi-3
    if rope_type == "default":
        return base, None
    if rope_type not in types:
        raise expected(config, f"a rope_type among {['default', *types]}", rope_type=rope_type)
    scaling, names = _SCALINGS[rope_type]
    settings = {name: value for name, value in rope.items() if value is not None}
    unknown = {name: settings[name] for name in settings.keys() - _OF_ALL_TYPES - {*names.values()}}
    if unknown:
        raise expected(config, f"no other settings of rope_type={rope_type!r}", **unknown)
    length: Any = config.get(LENGTH)
    original = config.get(ORIGINAL_LENGTH) or rope.get(ORIGINAL_LENGTH) or length
    values = {LENGTH: length, **settings, ORIGINAL_LENGTH: original}
    if rope_type == "longrope" and is_integer(length) and is_integer(original):
        values.setdefault("factor", max(length / original, 1.0))
    try:
        return base, scaling(**{argument: values[name] for argument, name in names.items() if name in values})
    except (TypeError, ValueError) as error:
        raise expected(config, f"valid settings of rope_type={rope_type!r} ({error})", rope=rope) from error


def written_rope(scaling: RotaryScaling | None) -> dict[str, Any] | None:
    """Return the `rope_scaling` of a scaling, or None without one."""
    for rope_type, (kind, names) in _SCALINGS.items():
        if type(scaling) is kind:
            config = scaling.get_config()
            values = {names[argument]: config[argument] for argument in names if config[argument] is not None}
            values.pop(LENGTH, None)
            return {"rope_type": rope_type, **values}
    return None


def max_length(config: Config, scalings: Sequence[RotaryScaling | None]) -> int | None:
    """Return the maximum length of a text."""
    length = config.get(LENGTH)
    if length is not None and not (is_integer(length) and length > 0):
        raise expected(config, f"a positive integer as {LENGTH}", **{LENGTH: length})
    return max_length_of(length, scalings)


def written_length(model: Any, scaling: RotaryScaling | None) -> dict[str, Any]:
    """Return the settings of lengths."""
    match scaling:
        case LongRoPEScaling():
            original = scaling.original_length
            return {LENGTH: round(scaling.factor * original), ORIGINAL_LENGTH: original}
        case DynamicNTKScaling():
            return {LENGTH: scaling.original_length}
    return {} if model.max_length is None else {LENGTH: model.max_length}
