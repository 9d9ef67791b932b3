"""Positional encodings of grids of patches."""

from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers.positions.absolute import table_initializer
from keras_transformer.layers.positions.sinusoids import geometric, paired_waves
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of, check_positive

ENCODINGS = ("sinusoidal", "learned")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Positions2D(ConfiguredLayer):
    r"""Add an encoding of the row and the column to every cell of a grid, such as an image's patches.

    $$y_{rc} = x_{rc} + [PE_{D/2}(r);\ PE_{D/2}(c)] \quad\text{or}\quad y_{rc} = x_{rc} + P_{rc}$$

    Sinusoidal: the first half of the features encodes the row, the second half the column, for grids of any size and
    without weights. Learned: a table P with a vector for each cell.

    Args:
        kind: "sinusoidal" or "learned".
        grid_shape: (height, width), required if the inputs are sequences of cells, numbered row by row.
        max_wavelength: the longest wavelength of the sinusoids.
        initializer: initializer of the table, by default normal with a standard deviation of 0.02.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, height, width, D), or (B, T, D) with T = height · width.

    Shapes:
        input and output: (B, height, width, D) or (B, T, D); D divisible by 4 if sinusoidal

    Example:
        >>> Positions2D("learned", grid_shape=(14, 14))(keras.ops.zeros((1, 196, 8))).shape
        TensorShape([1, 196, 8])

    References:
        Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), section 3.1 and appendix D.4; the sinusoidal
        form as in He et al., "Masked Autoencoders" (2022), with the paper's interleaved sines and cosines.
    """

    def __init__(
        self,
        kind: str = "sinusoidal",
        grid_shape: tuple[int, int] | None = None,
        max_wavelength: float = 10000.0,
        initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_one_of(ENCODINGS, kind=kind)
        check_positive(max_wavelength=max_wavelength)
        if grid_shape is not None and (len(grid_shape) != 2 or min(grid_shape) < 1):
            raise ValueError(
                f"`grid_shape` must be a positive height and width. Received: grid_shape={grid_shape}"
            )
        self.kind = kind
        self.grid_shape = None if grid_shape is None else tuple(grid_shape)
        self.max_wavelength = max_wavelength
        self.initializer = table_initializer(initializer)
        self._table_shape = self.grid_shape
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Check the shape of the inputs and create the table of a learned encoding."""
        height, width = self._known_grid(tuple(input_shape))
        model_dim = input_shape[-1]
        if self.kind == "sinusoidal":
            if model_dim % 4:
                raise ValueError(
                    f"`inputs` must have a last axis divisible by 4. Received: inputs.shape={tuple(input_shape)}"
                )
            return
        if height is None or width is None:
            raise ValueError(
                "`grid_shape` must be passed if kind='learned' and the inputs' height or width is not static. "
                f"Received: grid_shape=None, inputs.shape={tuple(input_shape)}"
            )
        self._table_shape = (height, width)
        self.table = self.add_weight(
            name="table", shape=(height, width, model_dim), initializer=self.initializer
        )

    def call(self, inputs: Tensor) -> Tensor:
        """Add the encoding of the cells."""
        self._known_grid(tuple(inputs.shape))
        if self.kind == "learned":
            encoding = self.table
        else:
            height, width = self.grid_shape or ops.shape(inputs)[1:3]
            encoding = self.encode(height, width, inputs.shape[-1])
        if len(inputs.shape) == 3:
            encoding = ops.reshape(encoding, [-1, inputs.shape[-1]])  # (T, D)
        return inputs + ops.cast(encoding, inputs.dtype)

    def encode(self, height: Any, width: Any, model_dim: int) -> Tensor:
        """Return the sinusoidal encoding of a grid, float32 (height, width, D)."""
        frequencies = geometric(self.max_wavelength, model_dim // 2)
        rows, columns = (
            paired_waves(ops.arange(size), frequencies, "interleaved") for size in (height, width)
        )
        rows, columns = rows[:, None], columns[None]  # (height, 1, D/2), (1, width, D/2)
        return ops.concatenate([rows + ops.zeros_like(columns), columns + ops.zeros_like(rows)], axis=-1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return input_shape

    def _known_grid(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the height and width of inputs, None if unknown; raise a ValueError if they do not fit."""
        if len(shape) not in (3, 4) or (len(shape) == 3 and self.grid_shape is None):
            raise ValueError(
                "`inputs` must be (B, height, width, D), or (B, T, D) where `grid_shape` is passed. "
                f"Received: inputs.shape={shape}, grid_shape={self.grid_shape}"
            )
        grid = self._table_shape or shape[1:3]
        expected = grid if len(shape) == 4 else (grid[0] * grid[1],)
        if any(
            actual is not None and actual != size for actual, size in zip(shape[1:-1], expected, strict=True)
        ):
            raise ValueError(
                f"`inputs` must have {grid[0]} × {grid[1]} cells, as many as the grid. "
                f"Received: inputs.shape={shape}"
            )
        return grid
