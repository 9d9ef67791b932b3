import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, interop, models

keras_hub = pytest.importorskip("keras_hub")
hub = keras_hub.models
pytestmark = [
    pytest.mark.backend_neutral,
    pytest.mark.filterwarnings("ignore:Layer '.*' .of type T5MultiHeadAttention. was passed:UserWarning"),
]

PAD = 1
IDS = np.array([[2, 7, 9, 5, 3, PAD, PAD], [2, 6, 3, 8, 11, 4, 3]])
SEGMENTS = np.array([[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1]])
REAL = IDS != PAD
TARGETS = np.array([[PAD, 7, 9, 5, 3, 2], [PAD, 6, 3, 8, 11, 4]])
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32") / 2
POSITIONS = np.array([[1, 3], [2, 6]])
SIZES = {"vocabulary_size": 30, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
TEXT = {**SIZES, "num_layers": 2, "dropout": 0.2, "max_sequence_length": 12}


def randomized(model):
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in weight.dtype:
            weight.assign(random.normal(size=weight.shape) * 0.3 + (weight.path.endswith("gamma") * 1.0))
    return model


def bert(**options):
    return hub.BertBackbone(**TEXT, **options)


def vit(**options):
    sizes = {"image_shape": (8, 12, 3), "patch_size": (4, 4), "num_layers": 2, "num_heads": 2}
    return hub.ViTBackbone(**{**sizes, "hidden_dim": 16, "mlp_dim": 24, **options})


def t5(**options):
    return hub.T5Backbone(**SIZES, key_value_dim=5, dropout=0.2, **options)


# For each case, KerasHub's model, the class of this package and its arguments that are not defaults.
CASES = {
    "BertBackbone": (bert, models.BERT, {"activation": "gelu_tanh", "dropout": 0.2, "hidden_dim": 24}),
    "BertMaskedLM": (lambda: hub.BertMaskedLM(bert()), models.MaskedLanguageModel, {"head_epsilon": 1e-5}),
    "BertTextClassifier": (
        lambda: hub.BertTextClassifier(bert(), 3, activation="softmax", dropout=0.3),
        models.SequenceClassifier,
        {"dropout": 0.3, "num_classes": 3},
    ),
    "RobertaBackbone": (
        lambda: hub.RobertaBackbone(**TEXT),
        models.BERT,
        {"activation": keras.activations.gelu, "epsilon": 1e-5, "pad_id": 1, "num_segments": 0},
    ),
    "RobertaMaskedLM": (
        lambda: hub.RobertaMaskedLM(hub.RobertaBackbone(**TEXT)),
        models.MaskedLanguageModel,
        {},
    ),
    "RobertaTextClassifier": (
        lambda: hub.RobertaTextClassifier(hub.RobertaBackbone(**TEXT), 2),
        models.SequenceClassifier,
        {"dropout": 0.0},
    ),
    "GPT2Backbone": (lambda: hub.GPT2Backbone(**TEXT), models.GPT, {"end_id": 29, "pad_id": None}),
    "GPT2CausalLM": (
        lambda: hub.GPT2CausalLM(hub.GPT2Backbone(**TEXT)),
        models.GPT,
        {"dropout": 0.2, "activation": "gelu_tanh"},
    ),
    "T5Backbone": (
        lambda: t5(use_gated_activation=False),
        models.T5,
        {"activation": keras.activations.relu, "key_dim": 5, "dropout": 0.2},
    ),
    "T5Seq2SeqLM": (
        lambda: hub.T5Seq2SeqLM(
            t5(activation=bert().transformer_layers[0].activation, tie_embedding_weights=False)
        ),
        models.T5,
        {"activation": "geglu_tanh", "tied": False},
    ),
    "tied T5Seq2SeqLM": (
        lambda: hub.T5Seq2SeqLM(t5(activation="gelu")),
        models.T5,
        {"activation": "geglu", "tied": True},
    ),
    "ViTBackbone": (
        lambda: vit(dropout_rate=0.1, attention_dropout=0.3),
        models.ViT,
        {"dropout": 0.1, "attention_dropout": 0.3, "num_classes": None},
    ),
    "ViTImageClassifier": (
        lambda: hub.ViTImageClassifier(vit(use_mha_bias=False, layer_norm_epsilon=1e-3), 3),
        models.ViT,
        {"qkv_bias": False, "epsilon": 1e-3, "pooling": "token"},
    ),
    "ViTImageClassifier without class token": (
        lambda: hub.ViTImageClassifier(
            vit(use_class_token=False, use_mlp_bias=False, use_patch_bias=False), 3, pooling="gap"
        ),
        models.ViT,
        {"pooling": "mean"},
    ),
}


@pytest.fixture
def converted(request):
    """Return KerasHub's model with random weights, and the converted model; the padding id is 1."""
    hub_model = randomized(CASES[request.param][0]())
    name = type(hub_model).__name__
    ids = {} if name.startswith(("GPT2", "ViT", "Roberta")) else {"pad_id": PAD}
    ids |= {"start_id": PAD} if name.startswith("T5") else {}
    return hub_model, interop.from_keras_hub(hub_model, **ids)


each_case = pytest.mark.parametrize("converted", CASES, indirect=True)


def values_of(model):
    weights = [weight for weight in model.weights if "float" in weight.dtype]
    return {value for weight in weights for value in np.ravel(ops.convert_to_numpy(weight)).tolist()}


def outputs(hub_model, model):
    """Return pairs of outputs of both models, without padding."""
    name = type(hub_model).__name__
    if name.startswith("ViT"):
        return [(hub_model(IMAGES), model.encode(IMAGES) if name == "ViTBackbone" else model(IMAGES))]
    if name.startswith("T5"):
        expected = hub_model(
            {
                "encoder_token_ids": IDS,
                "encoder_padding_mask": REAL.astype("int32"),
                "decoder_token_ids": TARGETS,
                "decoder_padding_mask": np.ones_like(TARGETS),
            }
        )
        if name == "T5Backbone":  # as logits, like the converted model
            expected = hub_model.token_embedding(expected["decoder_sequence_output"] * 16**-0.5, reverse=True)
        return [(expected, model({"source_ids": IDS, "target_ids": TARGETS}))]
    inputs = {"token_ids": IDS, "padding_mask": REAL}
    if name.startswith("Bert"):
        inputs["segment_ids"] = SEGMENTS
    given = {key: value for key, value in inputs.items() if key != "padding_mask" or name.startswith("GPT2")}
    if name.endswith("MaskedLM"):
        return [
            (
                hub_model({**inputs, "mask_positions": POSITIONS}),
                model({**given, "masked_positions": POSITIONS}),
            )
        ]
    expected, found = hub_model(inputs), (model.hidden if name == "GPT2Backbone" else model)(given)
    if name == "BertBackbone":
        pooled = (expected["pooled_output"], model.pool(found))
        return [(expected["sequence_output"][REAL], ops.convert_to_numpy(found)[REAL]), pooled]
    if name.endswith("TextClassifier"):
        return [(expected, ops.softmax(found) if name.startswith("Bert") else found)]
    return [(ops.convert_to_numpy(each)[REAL] for each in (expected, found))]


@pytest.mark.slow_variants
@each_case
def test_outputs_and_weights_equal_keras_hub(converted, request):
    """Weights without a counterpart stay zero."""
    hub_model, model = converted
    _, expected_class, arguments = CASES[request.node.callspec.params["converted"]]
    assert type(model) is expected_class
    assert {name: getattr(model, name) for name in arguments} == arguments
    for expected, found in outputs(hub_model, model):
        expected, found = ops.convert_to_numpy(expected), ops.convert_to_numpy(found)
        assert np.ptp(expected) > 0.1
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert values_of(model) - {0.0} == values_of(hub_model)


@pytest.mark.slow
def test_greedy_generation_equals_keras_hub():
    hub_model = randomized(hub.GPT2CausalLM(hub.GPT2Backbone(**TEXT)))
    model = interop.from_keras_hub(hub_model)
    hub_model.compile(sampler="greedy")
    prompts, length = np.array([[5, 6, 7], [8, 9, 4]]), 12
    padded = np.pad(prompts, [(0, 0), (0, length - 3)])
    mask = np.pad(np.ones_like(prompts), [(0, 0), (0, length - 3)])
    found = hub_model.generate({"token_ids": padded, "padding_mask": mask}, stop_token_ids=None)
    answers = generation.generate(model, prompts, "greedy", max_new_tokens=length - 3)
    for row, answer, count in zip(
        found["token_ids"], ops.convert_to_numpy(answers.ids)[:, 0], answers.lengths[:, 0], strict=True
    ):
        np.testing.assert_array_equal(np.asarray(row)[3:][: int(count)], answer[: int(count)])


@pytest.mark.slow
def test_arguments_can_be_overridden():
    model = interop.from_keras_hub(hub.GPT2Backbone(**TEXT), dropout=0.0, end_id=3, dtype="mixed_bfloat16")
    assert (model.dropout, model.attention_dropout, model.end_id) == (0.0, 0.0, 3)
    assert model.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(2)]), "one of KerasHub's classes .*Received: a keras"),
        (
            lambda: hub.AlbertBackbone(**{**TEXT, "num_layers": 1}, embedding_dim=8),
            r"one of KerasHub's classes .*AlbertBackbone",
        ),
        (lambda: hub.BertTextClassifier(bert(), 2, activation="tanh"), "activation='tanh'"),
        (
            lambda: hub.RobertaTextClassifier(hub.RobertaBackbone(**TEXT), 2, dropout=0.1),
            "RobertaTextClassifier, must have dropout=0.*Received: dropout=0.1",
        ),
        (
            lambda: hub.RobertaTextClassifier(hub.RobertaBackbone(**TEXT), 2, hidden_dim=8),
            "must have hidden_dim=16. Received: hidden_dim=8",
        ),
        (lambda: hub.ViTImageClassifier(vit(), 2, pooling="gap"), "pooling='gap' with use_class_token=True"),
        (
            lambda: hub.ViTImageClassifier(vit(), 2, intermediate_dim=8),
            "intermediate_dim=None. Received: intermediate_dim=8",
        ),
        (lambda: t5(activation="tanh"), "activation among .*Received: activation='tanh'"),
        (lambda: hub.ViTImageClassifier(vit(), 2, dropout=0.5), "dropout=0.*Received: dropout=0.5"),
    ],
)
def test_unsupported_models_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        interop.from_keras_hub(make())


def test_another_number_of_layers_is_rejected():
    backbone = hub.GPT2Backbone(**{**TEXT, "num_layers": 1})
    with pytest.raises(ValueError, match="`num_layers` must be that of `model`, 1. Received: num_layers=2"):
        interop.from_keras_hub(backbone, num_layers=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`:UserWarning")
def test_quantized_models_are_rejected():
    backbone = hub.GPT2Backbone(**{**TEXT, "num_layers": 1})
    backbone.quantize("int8")
    with pytest.raises(ValueError, match="`model` must not be quantized. Received: .* of dtype int8"):
        interop.from_keras_hub(backbone)


def test_head_settings_of_a_masked_language_model_are_in_its_config():
    encoder = models.BERT(13, 1, 2, 8, max_length=9)
    model = models.MaskedLanguageModel(encoder, head_activation="relu", head_epsilon=1e-3)
    again = models.MaskedLanguageModel.from_config(model.get_config())
    assert (again.head_activation, again.head_epsilon) == (keras.activations.relu, 1e-3)
