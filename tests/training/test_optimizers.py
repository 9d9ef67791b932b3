import keras
import pytest

from keras_transformer import models
from keras_transformer.training import exclude_from_weight_decay

pytestmark = pytest.mark.backend_neutral

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
MODELS = {
    "Transformer": lambda: models.Transformer(20, output_bias=True, **SIZES),
    "GPT": lambda: models.GPT(20, max_length=8, **SIZES),
    "MaskedLanguageModel": lambda: models.MaskedLanguageModel(models.BERT(20, max_length=8, **SIZES)),
    "T5": lambda: models.T5(20, **SIZES),
    "ViT": lambda: models.ViT(image_size=8, patch_size=4, num_classes=3, **SIZES),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", MODELS)
def test_weight_decay_applies_to_kernels_only(name):
    model = MODELS[name]()
    optimizer = exclude_from_weight_decay(keras.optimizers.AdamW(1.0, weight_decay=0.1))
    optimizer.build(model.trainable_variables)
    before = {
        variable.path: keras.ops.convert_to_numpy(variable).copy() for variable in model.trainable_variables
    }
    zeros = [keras.ops.zeros(variable.shape) for variable in model.trainable_variables]
    optimizer.apply(zeros, model.trainable_variables)
    for variable in model.trainable_variables:
        value = keras.ops.convert_to_numpy(variable)
        decayed = before[variable.path] * (0.9 if variable.name == "kernel" else 1.0)
        assert value == pytest.approx(decayed, rel=1e-5), variable.path


def test_built_optimizers_are_rejected():
    optimizer = keras.optimizers.AdamW()
    optimizer.build([keras.Variable([0.0])])
    with pytest.raises(ValueError, match="variables yet"):
        exclude_from_weight_decay(optimizer)
    with pytest.raises(TypeError, match="Received: optimizer='adamw'"):
        exclude_from_weight_decay("adamw")
