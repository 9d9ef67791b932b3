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
    theirs = modeling_mamba2.Mamba2Mixer(config, layer_idx=0)
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if name != "A_log":
                weight.normal_(0, 0.3)
    ours = layers.Mamba2(
        NUM_HEADS,
        STATE_DIM,
        num_groups=num_groups,
        kernel_size=kernel_size,
        epsilon=config.layer_norm_epsilon,
    )
    ours.build((None, None, MODEL_DIM))
    given = dict(theirs.named_parameters())
    pairs = [
        (ours.input_projection.kernel, given["in_proj.weight"]),
        (ours.kernel, given["conv1d.weight"]),
        (ours.bias, given["conv1d.bias"]),
        (ours.step_bias, given["dt_bias"]),
        (ours.log_decay, given["A_log"]),
        (ours.skip, given["D"]),
        (ours.scale, given["norm.weight"]),
        (ours.output_projection.kernel, given["out_proj.weight"]),
    ]
    if len(pairs) != len(given) or len(pairs) != len(ours.trainable_weights):
        raise RuntimeError("not every weight has a counterpart")
    for mine, other in pairs:
        mine.assign(_as_ours(other))
    inputs = np.random.default_rng(seed).normal(size=(BATCH_SIZE, length, MODEL_DIM)).astype("float32")
    their_outputs = theirs(torch.tensor(inputs))
    (their_outputs**2).mean().backward()
    with tf.GradientTape() as tape:
        outputs, _ = ours.scan(inputs, ours.zero_state(BATCH_SIZE), None, False)
        loss = tf.reduce_mean(outputs**2)
    gradients = tape.gradient(loss, [mine.value for mine, _ in pairs])
    _, continued = ours.scan(inputs[:, :-1], ours.zero_state(BATCH_SIZE), None, False)
    last, _ = ours.scan(inputs[:, -1:], continued, None, False)
    compared = [
        (mine.path, gradient.numpy(), _as_ours(other.grad))
        for gradient, (mine, other) in zip(gradients, pairs, strict=True)
    ]
    return {
        "outputs": float(np.abs(outputs.numpy() - their_outputs.detach().numpy()).max()),
        "state": float(np.abs(last.numpy() - their_outputs[:, -1:].detach().numpy()).max()),
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
