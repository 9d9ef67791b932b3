"""Properties of the compiled loop."""

import math
import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import generation


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="asks TensorFlow for XLA's program")
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_compiled_step_does_not_copy_the_cache(batch_size, beams):
    import tensorflow as tf

    model = kt.models.GPT(50, num_layers=2, num_heads=2, model_dim=16, hidden_dim=32, max_length=200)
    sampler = generation.Beam(beams) if beams > 1 else "greedy"

    @tf.function(jit_compile=True, autograph=False)
    def loop(ids):
        return generation.generate_ids(model, ids, 120, sampler=sampler)["ids"]

    ids = tf.constant(np.full((batch_size, 9), 5, "int32"))
    program = loop.experimental_get_compiler_ir(ids)(stage="optimized_hlo")
    assert "dynamic-update-slice" in program
    copied = [
        math.prod(map(int, shape.split(","))) for shape in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", program)
    ]
    assert max(copied, default=0) < batch_size * 16 * (8 + 120 * beams)  # the size of the keys of one layer
