"""LoRA: trainable and saved weights, merging and exporting."""

import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.training import enable_lora, load_lora_weights, merge_lora, save_lora_weights
from tests.random_weights import randomise

pytestmark = pytest.mark.backend_neutral

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "dropout": 0.1}
IDS = np.array([[5, 6, 7, 3], [8, 9, 4, 0]])
PAIRS = {"source_ids": IDS, "target_ids": np.array([[2, 9, 4], [2, 7, 0]])}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("float32")
GRAPHS = {"nodes": np.ones((2, 3, 4), "float32"), "edges": np.array([[[0, 1], [1, 2]]] * 2)}
# Functions that create models, their inputs, and the number of adapted layers.
CASES = {
    "gpt": (lambda: models.GPT(16, **SIZES, max_length=8), IDS, 4),
    "gpt rotary": (lambda: models.GPT(16, **SIZES, position_encoding="rotary", num_kv_heads=1), IDS, 4),
    "transformer": (lambda: models.Transformer(16, **SIZES), PAIRS, 12),
    "t5": (lambda: models.T5(16, **SIZES, key_dim=8), PAIRS, 12),
    "bert": (lambda: models.BERT(16, **SIZES, max_length=8), IDS, 4),
    "vit": (lambda: models.ViT(8, 4, num_classes=3, **SIZES), IMAGES, 4),
    "gat": (lambda: models.GAT(4, 3, (2, 1), 8), GRAPHS, 2),
    "mixed precision": (lambda: models.GPT(16, **SIZES, max_length=8, dtype="mixed_bfloat16"), IDS, 4),
}


def new(name="gpt"):
    """Return the base model, with the same weights at each call."""
    return randomise(CASES[name][0](), scale=0.3, seed=1)


def outputs(model, inputs):
    return keras.ops.convert_to_numpy(keras.ops.cast(model(inputs), "float32"))


def arrays(variables):
    return {
        each.path: keras.ops.convert_to_numpy(each) for each in variables if "seed_generator" not in each.path
    }


def trained(model, inputs):
    eagerly = keras.backend.backend() == "tensorflow"  # a single step
    model.compile(keras.optimizers.Adam(0.05), "mse", run_eagerly=eagerly)
    model.fit(inputs, keras.ops.ones_like(model(inputs)), verbose=0)
    return model


@pytest.fixture(scope="module")
def adapted():
    """A GPT with trained adapters."""
    model = new()
    enable_lora(model, 2, lora_alpha=3)
    return trained(model, IDS)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", CASES)
def test_only_adapters_are_trained_and_saved(name, tmp_path):
    model, (_, inputs, count) = new(name), CASES[name]
    close = {"rtol": 1e-5, "atol": 1e-5} if name != "mixed precision" else {"rtol": 0.05, "atol": 0.05}
    before = outputs(model, inputs)
    enable_lora(model, 2, lora_alpha=3)
    np.testing.assert_array_equal(outputs(model, inputs), before)
    assert {each.name for each in model.trainable_variables} == {"lora_kernel_a", "lora_kernel_b"}
    assert len(model.trainable_variables) == 2 * count
    frozen, adapters = arrays(model.non_trainable_variables), arrays(model.trainable_variables)
    after = outputs(trained(model, inputs), inputs)
    for path, value in arrays(model.non_trainable_variables).items():
        np.testing.assert_array_equal(value, frozen[path])
    for path, value in arrays(model.trainable_variables).items():
        assert path.endswith("_a") or not np.array_equal(value, adapters[path])
    assert np.abs(after - before).max() > 1e-3
    save_lora_weights(model, tmp_path / "a.lora.h5")
    fresh = new(name)
    load_lora_weights(fresh, tmp_path / "a.lora.h5")
    np.testing.assert_array_equal(outputs(fresh, inputs), after)
    assert arrays(fresh.trainable_variables).keys() == adapters.keys()
    merge_lora(model)
    np.testing.assert_allclose(outputs(model, inputs), after, **close)
    assert [each.shape for each in model.variables] == [each.shape for each in new(name).variables]


def test_adapter_files_are_small_and_have_no_frozen_weights(adapted, tmp_path):
    import h5py

    save_lora_weights(adapted, tmp_path / "a.lora.h5")
    found = []
    with h5py.File(tmp_path / "a.lora.h5") as file:
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    assert sorted(found) == sorted(each.path for each in adapted.trainable_variables)
    assert [each.name for each in tmp_path.iterdir()] == ["a.lora.h5"]  # no temporary file is left


def test_loading_into_a_model_with_adapters_replaces_them(adapted, tmp_path):
    save_lora_weights(adapted, tmp_path / "a.lora.h5")
    other = new()
    enable_lora(other, 2)
    load_lora_weights(other, tmp_path / "a.lora.h5")  # with alpha
    np.testing.assert_array_equal(outputs(other, IDS), outputs(adapted, IDS))


def test_head_weights_are_trained_and_saved(tmp_path):
    def classifier():
        keras.utils.set_random_seed(0)
        return models.SequenceClassifier(new("bert"), 3)

    model = classifier()
    enable_lora(model.encoder, 2)
    assert {"head/kernel", "head/bias"} < {each.path for each in model.trainable_variables}
    for weight in model.trainable_variables:
        weight.assign(keras.random.normal(weight.shape, seed=0))
    save_lora_weights(model, tmp_path / "a.lora.h5")
    loaded = classifier()
    load_lora_weights(loaded, tmp_path / "a.lora.h5")
    np.testing.assert_array_equal(outputs(loaded, IDS), outputs(model, IDS))
    assert arrays(loaded.trainable_variables).keys() == arrays(model.trainable_variables).keys()


def test_automatic_keras_names_do_not_affect_loading(tmp_path):
    """The head bias is a weight of the model, whose default name differs by instance."""
    for number in range(2):
        model = models.MaskedLanguageModel(new("bert"))
        if number:
            load_lora_weights(model, tmp_path / "a.lora.h5")
            np.testing.assert_array_equal(model.bias, np.ones(16))
        else:
            enable_lora(model.encoder, 1)
            model.bias.assign(np.ones(16))
            save_lora_weights(model, tmp_path / "a.lora.h5")


def test_targets_are_names_or_path_suffixes():
    model = new()
    enable_lora(model, 1, ["query", "feed_forward/output"])
    assert {each.path.rpartition("/")[0] for each in model.trainable_variables} == {
        "block_0/self_attention/query",
        "block_0/feed_forward/output",
    }


def test_a_non_trainable_model_gets_trainable_adapters():
    model = new()
    model.trainable = False
    enable_lora(model, 1)
    assert len(model.trainable_variables) == 8


@pytest.mark.slow
def test_a_merged_model_can_be_adapted_again(tmp_path):
    model = new()
    for _ in range(2):
        enable_lora(model, 1)
        merge_lora(model)
    assert not model.trainable_variables
    np.testing.assert_array_equal(outputs(model, IDS), outputs(new(), IDS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "`rank` must be a positive integer. Received: rank=0"),
        ({"rank": 2.0}, "`rank` must be a positive integer. Received: rank=2.0"),
        ({"rank": 1, "lora_alpha": -1}, "`lora_alpha` must be positive. Received: lora_alpha=-1"),
        (
            {"rank": 1, "targets": ["queri"]},
            r"`targets` must be names .*'query'.*Received: targets=\['queri'\]",
        ),
        ({"rank": 1, "targets": ["query", "c_attn"]}, "`targets` must be names"),
        ({"rank": 1, "targets": []}, r"`targets` must be names .*Received: targets=\[\]"),
        ({"rank": 1, "targets": [1]}, r"`targets` must be names .*Received: targets=\[1\]"),
    ],
)
def test_invalid_arguments_leave_the_model_unchanged(arguments, message):
    model = BASE
    count = len(model.trainable_variables)
    with pytest.raises(ValueError, match=message):
        enable_lora(model, **arguments)
    assert len(model.trainable_variables) == count


BASE = new()


@pytest.mark.parametrize("targets", ["query", 3])
def test_targets_must_be_a_list(targets):
    with pytest.raises(TypeError, match="`targets` must be a list of names"):
        enable_lora(BASE, 1, targets)


def test_models_without_or_with_adapters_are_rejected_where_needed(adapted, tmp_path):
    with pytest.raises(ValueError, match="must not have adapters yet.*4 adapted layers"):
        enable_lora(adapted, 2)
    for function in (merge_lora, lambda model: save_lora_weights(model, tmp_path / "a.lora.h5")):
        with pytest.raises(ValueError, match="`model` must have adapters"):
            function(BASE)
        with pytest.raises(TypeError, match="must be a Keras model. Received: a str"):
            function("gpt")
    with pytest.raises(ValueError, match="`targets` must be passed"):
        enable_lora(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), 1)
    constrained = keras.layers.Dense(1, kernel_constraint="non_neg", name="constrained")
    with pytest.raises(ValueError, match="constrained, which has a kernel constraint"):
        enable_lora(keras.Sequential([keras.Input((2,)), constrained]), 1, ["constrained"])
    with pytest.raises(ValueError, match="has no weights yet"):
        enable_lora(keras.Sequential([keras.layers.Dense(1, name="dense")]), 1, ["dense"])


def test_fit_requires_compile_after_adapters_are_added_or_merged():
    model = new()
    model.compile("sgd", "mse")
    enable_lora(model, 1)
    with pytest.raises(ValueError, match="compile"):
        model.fit(IDS, np.ones((2, 4, 16)), verbose=0)


def test_files_of_other_models_are_rejected(adapted, tmp_path):
    path = tmp_path / "a.lora.h5"
    save_lora_weights(adapted, path)
    wider = models.GPT(16, **{**SIZES, "model_dim": 32}, max_length=8)
    others = new()
    for weight in others.trainable_weights:
        weight.assign(weight + 1.0)
    ranked = new()
    enable_lora(ranked, 3)
    fewer = new()
    enable_lora(fewer, 2, ["query"])
    for model, message in (
        (new("bert"), "with one block_0/self_attention/key. Received: 0"),
        (wider, r"block_0/self_attention/key/lora_kernel_a of shape \(16, 2\)\. Received: shape \(32, 2\)"),
        (others, "must have the weights that the adapters of .* were trained with"),
        (ranked, "Received: rank 3 of block_0/self_attention/key, expected: 2"),
        (fewer, "must have no adapters, or the same as"),
    ):
        before = arrays(model.variables)
        with pytest.raises(ValueError, match=message):
            load_lora_weights(model, path)
        assert arrays(model.variables).keys() == before.keys()


def test_files_without_adapters_are_rejected(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_lora_weights(BASE, tmp_path / "missing.lora.h5")
    with pytest.raises(ValueError, match=r"must end in '\.lora\.h5'\. Received: filepath='adapters\.npz'"):
        load_lora_weights(BASE, "adapters.npz")
    (tmp_path / "text.lora.h5").write_text("no HDF5")
    with pytest.raises(ValueError, match="must be a file of save_lora_weights"):
        load_lora_weights(BASE, tmp_path / "text.lora.h5")
    import h5py

    with h5py.File(tmp_path / "empty.lora.h5", "w") as file:
        file["kernel"] = np.ones(2)
    with pytest.raises(ValueError, match="Received: a file without adapters"):
        load_lora_weights(BASE, tmp_path / "empty.lora.h5")


@pytest.mark.slow
def test_a_saved_model_has_merged_weights(adapted, tmp_path):
    adapted.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(outputs(loaded, IDS), outputs(adapted, IDS), rtol=1e-5, atol=1e-5)
    assert loaded.count_params() == new().count_params()
    assert not loaded.compiled  # the optimizer had variables of the adapters only


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_quantized_models_support_adapters_and_merging(adapted):
    model = new()
    model.quantize("int8")
    base = outputs(model, IDS)
    enable_lora(model, 2)
    np.testing.assert_allclose(outputs(model, IDS), base, rtol=1e-5, atol=1e-5)
    for weight in model.trainable_variables:
        weight.assign(keras.random.normal(weight.shape, stddev=0.3, seed=0))
    found = outputs(model, IDS)
    merge_lora(model)
    np.testing.assert_allclose(outputs(model, IDS), found, atol=0.05 * np.abs(found).max())
    assert np.abs(found - base).max() > 0.2 * np.abs(found).max()
