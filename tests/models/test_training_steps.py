"""On TensorFlow, the function of a training step is traced once."""

import keras
import numpy as np
import pytest

from keras_transformer import models, training

IDS = np.tile(np.arange(1, 5), (4, 1))


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("fit", "float32"),
        ("train_on_batch", "mixed_float16"),
        pytest.param("fit", "mixed_float16", marks=pytest.mark.slow),
        pytest.param("train_on_batch", "float32", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_traced_once(method, dtype, monkeypatch):
    keras.utils.set_random_seed(0)  # with other weights, a step in float16 can overflow and be skipped
    model, traced = models.GPT(8, 1, 1, 4, max_length=4, dtype=dtype), []
    loss = training.LabelSmoothedCrossentropy(0.0, pad_id=0)
    model.compile(keras.optimizers.Adam(0.1), loss, metrics=[training.TokenAccuracy()], jit_compile=False)
    compute_loss = models.GPT.compute_loss
    monkeypatch.setattr(
        models.GPT, "compute_loss", lambda *args, **kw: traced.append(1) or compute_loss(*args, **kw)
    )
    if method == "fit":
        model.fit(IDS, IDS, batch_size=2, epochs=2, verbose=0)
    else:
        for _ in range(3):
            model.train_on_batch(IDS, IDS)
    assert len(traced) == 1
    assert model.optimizer.iterations == (4 if method == "fit" else 3)
