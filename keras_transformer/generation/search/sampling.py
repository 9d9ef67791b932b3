"""Sampling from the model's distribution."""

from keras import ops

from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search import categorical
from keras_transformer.generation.search.greedy import GreedySearch
from keras_transformer.generation.search.interface import Inputs
from keras_transformer.typing import Tensor


class SamplingSearch(GreedySearch):
    """Draw one token per step for each of R independent hypotheses."""

    def __init__(self, inputs: Inputs, decoder: PromptedModel) -> None:
        super().__init__(inputs, decoder)
        self.noise = inputs.noise
        self.seed = self.sampler.seed if inputs.seed is None else inputs.seed
        if self.seed is None and self.noise is None:
            raise ValueError(
                "`seed` or `noise` must be passed for a sampler without a seed, as compiled functions cannot draw one. "
                f"Received: sampler={self.sampler}"
            )
        temperatures = inputs.temperatures
        self.temperature = self.sampler.temperature if temperatures is None else temperatures[:, None, None]
        batch_size = ops.shape(decoder.last_positions)[0]
        self.rows = ops.arange(batch_size, dtype="int32") if inputs.rows is None else inputs.rows

    def _choose(self, candidates: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        token = categorical.draw(candidates, self.sampler, self.temperature, self._noise(step))
        return token, ops.max(candidates, axis=-1)

    def _noise(self, step: Tensor) -> Tensor:
        if self.noise is not None:
            return ops.take(self.noise, step, axis=2)
        return categorical.uniform(self.seed, self.rows, self.hypotheses, step)
