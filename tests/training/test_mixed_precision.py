"""Training in mixed precision learns what training in float32 does."""

import keras
import pytest

from keras_transformer import models

pytestmark = pytest.mark.backend_neutral

TINY = {"vocabulary_size": 12, "num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8}


@pytest.mark.parametrize(
    ("head", "base"),
    [
        (lambda encoder: models.SequenceClassifier(encoder, 2), models.BERT),
        (lambda decoder: models.GPTClassifier(decoder, 2), models.GPT),
        (lambda model: models.Unlimiformer(model, top_k=2, chunk_length=4), models.Transformer),
    ],
    ids=["bert", "gpt", "unlimiformer"],
)
def test_heads_have_the_policy_of_their_model_and_so_its_loss_scaling(head, base):
    model = head(base(**TINY, dtype="mixed_float16"))
    assert model.dtype_policy.name == "mixed_float16"
    model.compile("adam", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert head(base(**TINY)).dtype_policy.name == "float32"
