"""The inputs of a model as data: their names, shapes and dtypes, and the checks of a call."""

import contextlib
import contextvars
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.ops.attention_inputs import known_values
from keras_transformer.typing import Tensor


class InputSpec(NamedTuple):
    """The spec of an input of integers, or of finite floats.

    Attributes:
        limit: the integers must be in [minimum, limit); None for no limit. With 2 the input may be boolean. The name of
            an axis stands for its size.
        axes: the names of the axes.
        required: whether the model needs the input.
        exported: whether it is an input of exported models; by default, required inputs are.
        dtype: its dtype in exported models; floats for an input of floats.
        minimum: the smallest integer.
        max_length: the maximum size of the last axis, or None.
        positions: the name of the input of the positions of its tokens, with which it may be longer.
        any_number: whether an input of floats may also have integers, as images of bytes.
        is_padded: whether −1 is padding, in all entries of the last axis.
    """

    limit: int | str | None
    axes: tuple[str, ...] = ("B", "T")
    required: bool = True
    exported: bool | None = None
    dtype: str = "int32"
    minimum: int = 0
    max_length: int | None = None
    positions: str = ""
    any_number: bool = False
    is_padded: bool = False

    @property
    def is_exported(self) -> bool:
        """True if it is an input of exported models."""
        return self.required if self.exported is None else self.exported

    @property
    def is_float(self) -> bool:
        """True if the input has floats."""
        return "float" in self.dtype

    def for_keras(self, name: str) -> keras.InputSpec:
        """Return the corresponding `keras.InputSpec`, in which axes have no names."""
        shape = tuple(int(axis) if axis.isdigit() else None for axis in self.axes)
        return keras.InputSpec(self.dtype, shape, name=name)


InputSpecs = Mapping[str, InputSpec]

# The integers up to which floats of 16 bits hold all integers.
_EXACT = {"float16": 2**11, "bfloat16": 2**8}
# The types of integers that are not cast: TensorFlow has few kernels for others.
_INTEGERS = ("bool", "int32", "int64")

_ARE_CHECKED: contextvars.ContextVar[bool] = contextvars.ContextVar("are_checked", default=False)


@contextlib.contextmanager
def inputs_checked() -> Iterator[None]:
    """Trace models without assertions about their inputs: they are checked before, or the graph is one of an export."""
    token = _ARE_CHECKED.set(True)
    try:
        yield
    finally:
        _ARE_CHECKED.reset(token)


def are_inputs_checked() -> bool:
    """Return True inside `inputs_checked`."""
    return _ARE_CHECKED.get()


def with_integers(inputs: Any, specs: InputSpecs) -> Any:
    """Cast the inputs that must be integers to int32, unless they are int32 or int64.

    Keras builds a model of other models, such as a `Sequential`, with float inputs. They must not be rounded to
    float16 before they are cast.

    Args:
        inputs: the inputs of a call, a dictionary of tensors or one tensor. Other inputs are returned unchanged.
        specs: the inputs, by name.

    Raises:
        TypeError: if an input is ragged.
        ValueError: if the values are known and have a fraction or do not fit int32, or if an input is in float16 or
            bfloat16, which round some of its integers, or of strings.
    """
    if isinstance(inputs, dict):
        return {
            name: _integers(name, values, specs[name]) if name in specs else values
            for name, values in inputs.items()
        }
    required = [name for name, spec in specs.items() if spec.required]
    return _integers(required[0], inputs, specs[required[0]]) if len(required) == 1 else inputs


def _integers(name: str, values: Any, spec: InputSpec) -> Any:
    check_numbers(name, values)
    if spec.is_float or not hasattr(values, "shape") or not hasattr(values, "dtype"):
        return values
    dtype = keras.backend.standardize_dtype(values.dtype)
    if dtype in _INTEGERS or not ("float" in dtype or "int" in dtype):
        return values
    if dtype in _EXACT and not (isinstance(spec.limit, int) and spec.limit <= _EXACT[dtype] + 1):
        raise ValueError(
            f"`{name}` must be integers: {dtype} rounds integers above {_EXACT[dtype]}. Begin a `keras.Sequential` in "
            f'this precision with keras.Input(shape, dtype="int32"). Received: {name}.dtype={dtype}'
        )
    if (known := known_values(values)) is not None:
        check_values(name, known, ~(known == np.floor(known)), "integers")
        check_values(name, known, ~(np.abs(known.astype("float64")) < 2**31), "integers of 32 bits")
    elif "float" in dtype:  # in a graph, a fraction becomes an id that is in no vocabulary
        values = ops.where(ops.equal(values, ops.floor(values)), values, -float(2**31))
    return ops.cast(values, "int32")


def as_dictionary(inputs: Any, specs: InputSpecs) -> dict[str, Tensor]:
    """Return a model's inputs by name, after checking names, shapes, dtypes and, if known, values.

    Args:
        inputs: a dictionary of tensors, or one tensor if only one input is required. Symbolic tensors have no values.
        specs: the inputs, by name.

    Raises:
        ValueError: if an input is missing, unknown, of a wrong dtype or shape, or out of range.
    """
    required = [name for name, spec in specs.items() if spec.required]
    if isinstance(inputs, dict):
        if not {*required} <= inputs.keys() <= specs.keys():
            optional = [name for name in specs if name not in required]
            also = f" and may have {optional}" if optional else ""
            raise ValueError(f"`inputs` must have {required}{also}. Received: the keys {sorted(inputs)}")
        named = inputs
    elif len(required) == 1 and not isinstance(inputs, tuple):
        named = {required[0]: inputs}
    else:
        raise TypeError(f"`inputs` must be a dictionary with {required}. Received: {_described(inputs)}")
    sizes: dict[str, int] = {}
    for name, values in named.items():
        spec = specs[name]
        if spec.positions in named:  # several sequences may be packed in a row
            spec = spec._replace(max_length=None)
        _check_tensor(name, values, spec, sizes)
        if (known := known_values(values)) is None:
            continue
        if spec.is_float:
            check_values(name, known, ~np.isfinite(known), "finite")
        else:
            limit, minimum = (
                sizes.get(spec.limit) if isinstance(spec.limit, str) else spec.limit,
                spec.minimum,
            )
            wrong = (known < minimum) if limit is None else (known < minimum) | (known >= limit)
            expectation = f"at least {minimum}" if limit is None else f"in [{minimum}, {limit})"
            check_values(name, known, wrong, expectation)
            if spec.is_padded:
                padding = np.broadcast_to((known == -1).any(-1, keepdims=True), known.shape)
                check_values(name, known, padding & (known != -1), "-1 in both places, or in none")
    return dict(named)


def with_assertions(inputs: Any, specs: InputSpecs) -> Any:
    """Add assertions about lengths and integers to a graph of TensorFlow, where they are unknown before it runs.

    They raise an `InvalidArgumentError` that names the input, except under XLA, which ignores them. There and on JAX,
    where lengths are known, ids outside the vocabulary and graphs with edges of other nodes give NaN, see
    `layers.embeddings.nan_for_unknown_rows`.

    Args:
        inputs: the inputs of a call, a dictionary of tensors or one tensor.
        specs: the inputs, by name.
    """
    if keras.backend.backend() != "tensorflow":
        return inputs
    if isinstance(inputs, dict):
        known = {name: values for name, values in inputs.items() if name in specs}
        return inputs | {name: _asserted(name, values, specs, known) for name, values in known.items()}
    required = [name for name, spec in specs.items() if spec.required]
    return _asserted(required[0], inputs, specs, {}) if len(required) == 1 else inputs


def _asserted(name: str, values: Any, specs: InputSpecs, named: Mapping[str, Any]) -> Any:
    """Return an input after assertions about its shape and its integers."""
    tf, spec, assertions = sys.modules["tensorflow"], specs[name], list[Any]()
    if not tf.is_symbolic_tensor(values) or values.shape.rank != len(spec.axes):
        return values
    if spec.max_length is not None and values.shape[-1] is None and spec.positions not in named:
        message = f"`{name}` must be at most max_length={spec.max_length} long"
        assertions.append(tf.debugging.assert_less_equal(tf.shape(values)[-1], spec.max_length, message))
    for index, axis in enumerate(spec.axes):
        if axis.isdigit() and values.shape[index] is None:
            message = f"`{name}` must have the shape ({', '.join(spec.axes)})"
            assertions.append(tf.debugging.assert_equal(tf.shape(values)[index], int(axis), message))
    limit = spec.limit
    if isinstance(limit, str):  # the size of an axis of another input
        # Without the other input, the call raises an error.
        others = [other for other in named if limit in specs[other].axes]
        limit = tf.shape(named[others[0]])[specs[others[0]].axes.index(limit)] if others else None
    if values.dtype.is_integer and limit is not None:
        message = f"`{name}` must be in [{spec.minimum}, {spec.limit})"
        for check, bound in (
            (tf.debugging.assert_greater_equal, spec.minimum),
            (tf.debugging.assert_less, limit),
        ):
            assertions.append(check(values, tf.cast(bound, values.dtype), message))
    if values.dtype.is_integer and spec.is_padded:
        padding, message = tf.equal(values, -1), f"`{name}` must be -1 in both places, or in none"
        assertions.append(
            tf.debugging.assert_equal(tf.reduce_any(padding, -1), tf.reduce_all(padding, -1), message)
        )
    if not assertions:
        return values
    with tf.control_dependencies(assertions):
        return tf.identity(values)


def _check_tensor(name: str, values: Any, spec: InputSpec, sizes: dict[str, int]) -> None:
    """Raise a ValueError if an array or tensor has a wrong dtype, or is known to have a wrong shape.

    Args:
        name: the name of the input, for the error.
        values: the array or tensor.
        spec: its axes and its dtype.
        sizes: the known sizes of axes, to which the sizes of the input are added.
    """
    if not hasattr(values, "shape"):
        raise TypeError(f"`{name}` must be an array or a tensor. Received: {str(values)[:80]}")
    dtype = keras.backend.standardize_dtype(values.dtype)
    is_valid = ("float" if spec.is_float else "int") in dtype or (spec.limit == 2 and dtype == "bool")
    is_valid = is_valid or spec.any_number
    unknown = getattr(values.shape, "rank", 0) is None
    shape = () if unknown else tuple(values.shape)
    if is_valid and not unknown:
        is_valid = len(shape) == len(spec.axes) and all(
            size is None or sizes.setdefault(axis, int(axis) if axis.isdigit() else size) == size
            for axis, size in zip(spec.axes, shape, strict=True)
        )
    if not is_valid:
        kind = "floats" if spec.is_float else "booleans" if spec.limit == 2 else "integers"
        kind = "numbers" if spec.any_number else kind
        others = "".join(
            f", {axis} = {size}" for axis, size in sizes.items() if axis in spec.axes and axis.isalpha()
        )
        raise ValueError(
            f"`{name}` must be {kind} of shape ({', '.join(spec.axes)}){others}. "
            f"Received: {name}.shape={values.shape if unknown else shape}, dtype={dtype}"
        )
    if shape and None not in (limit := spec.max_length, shape[-1]) and shape[-1] > limit:
        raise ValueError(f"`{name}` must be at most max_length={limit} long. Received: {name}.shape={shape}")


def check_numbers(name: str, values: Any) -> None:
    """Raise an error for a ragged tensor, and for strings."""
    if hasattr(values, "to_tensor"):
        raise TypeError(
            f"`{name}` must be a dense tensor, such as ids.to_tensor(tokenizer.pad_id). "
            f"Received: a {type(values).__name__}"
        )
    dtype = getattr(values, "dtype", type(values))
    kind = getattr(dtype, "name", getattr(dtype, "__name__", str(dtype)))
    if kind in ("string", "object") or kind.startswith(("str", "bytes", "StringDType")):
        raise ValueError(
            f"`{name}` must be numbers: token ids as from `tokenizer.tokenize`, classes as indices. "
            f"Received: {name} of {kind}"
        )


def check_values(name: str, values: np.ndarray, wrong: np.ndarray, expectation: str) -> None:
    """Raise a ValueError for the first value where `wrong` is True, if any."""
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"index {list(index)}"
    if len(index) <= 2:
        place = ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), index, strict=False))
    raise ValueError(f"`{name}` must be {expectation}. Received: {values[index]} at {place}")


def _described(inputs: Any) -> str:
    shape = getattr(inputs, "shape", None)
    return f"a {type(inputs).__name__}" + ("" if shape is None else f" of shape {tuple(shape)}")
