"""Generation: one loop over a pure step, run under XLA in Python and exported without it."""

from keras_transformer.generation.generator import Generation as Generation
from keras_transformer.generation.generator import Generator as Generator
from keras_transformer.generation.generator import generate as generate
from keras_transformer.generation.loop import generate_ids as generate_ids
from keras_transformer.generation.samplers import Greedy as Greedy
from keras_transformer.generation.samplers import get as get

__all__ = ["Generation", "Generator", "Greedy", "generate", "generate_ids", "get"]
