"""Compare a Mamba-2 layer in `transformers` and in this package, with the same weights: outputs, states and gradients.

.venv-bench/bin/python benchmarks/parity/mamba2.py            # --help lists the options
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import torch
from transformers.models.mamba2 import modeling_mamba2

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import layers

SHAPES = {
    "one group, one chunk": {"num_groups": 1, "length": 12},
    "two groups, many chunks": {"num_groups": 2, "length": 150},
    "a convolution of two tokens": {"num_groups": 1, "length": 70, "kernel_size": 2},
}
MODEL_DIM, NUM_HEADS, STATE_DIM, BATCH_SIZE = 64, 8, 16, 3


def compare(length: int, num_groups: int, kernel_size: int = 4, seed: int = 0) -> references.Figures:
    """Return the largest differences of outputs and last states, and the largest relative difference of a gradient."""
    torch.manual_seed(seed)
    config = modeling_mamba2.Mamba2Config(
        num_heads=NUM_HEADS,
        head_dim=2 * MODEL_DIM // NUM_HEADS,
        hidden_size=MODEL_DIM,
        state_size=STATE_DIM,
        n_groups=num_groups,
        conv_kernel=kernel_size,
        chunk_size=32,
    )
    reference = modeling_mamba2.Mamba2Mixer(config, layer_idx=0)
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            if name != "A_log":
                weight.normal_(0, 0.3)
    layer = layers.Mamba2(
        NUM_HEADS,
        STATE_DIM,
        num_groups=num_groups,
        kernel_size=kernel_size,
        epsilon=config.layer_norm_epsilon,
    )
    layer.build((None, None, MODEL_DIM))
    reference_weights = dict(reference.named_parameters())
    pairs = [
        (layer.input_projection.kernel, reference_weights["in_proj.weight"]),
        (layer.kernel, reference_weights["conv1d.weight"]),
        (layer.bias, reference_weights["conv1d.bias"]),
        (layer.step_bias, reference_weights["dt_bias"]),
        (layer.log_decay, reference_weights["A_log"]),
        (layer.skip, reference_weights["D"]),
        (layer.scale, reference_weights["norm.weight"]),
        (layer.output_projection.kernel, reference_weights["out_proj.weight"]),
    ]
    if len(pairs) != len(reference_weights) or len(pairs) != len(layer.trainable_weights):
        raise RuntimeError("not every weight has a counterpart")
    for mine, other in pairs:
        mine.assign(_as_ours(other))
    inputs = np.random.default_rng(seed).normal(size=(BATCH_SIZE, length, MODEL_DIM)).astype("float32")
    expected = reference(torch.tensor(inputs))
    (expected**2).mean().backward()
    with tf.GradientTape() as tape:
        outputs, _ = layer.scan(inputs, layer.zero_state(BATCH_SIZE), None, False)
        loss = tf.reduce_mean(outputs**2)
    gradients = tape.gradient(loss, [mine.value for mine, _ in pairs])
    _, continued = layer.scan(inputs[:, :-1], layer.zero_state(BATCH_SIZE), None, False)
    last, _ = layer.scan(inputs[:, -1:], continued, None, False)
    compared = [
        (mine.path, gradient.numpy(), _as_ours(other.grad))
        for gradient, (mine, other) in zip(gradients, pairs, strict=True)
    ]
    return {
        "outputs": float(np.abs(outputs.numpy() - expected.detach().numpy()).max()),
        "state": float(np.abs(last.numpy() - expected[:, -1:].detach().numpy()).max()),
        **references.worst_gradient(compared),
    }


def _as_ours(array: torch.Tensor) -> np.ndarray:
    """Transpose a matrix of PyTorch, and remove the middle axis of a convolution kernel."""
    array = array.detach()
    return (array[:, 0] if array.dim() == 3 else array).numpy().T


REFERENCE = references.Reference(
    __file__,
    __doc__,
    SHAPES,
    lambda run: {**run.case, **compare(**run.case, seed=run.seed)},
    limits={"outputs": 1e-4, "state": 1e-4, "gradients": 1e-3},
    name="parity_mamba2",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
