"""Random weights, so that outputs differ by row and no law holds by chance."""

import numpy as np


def randomise(model, scale=0.5, seed=0):
    """Give the trainable weights of a model normal values, and return the model."""
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape) * scale)
    return model
