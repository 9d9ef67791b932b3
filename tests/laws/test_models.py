"""Laws of every model: a new model or variant is a case in `models.py`."""

import functools
import inspect

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.configuration import serialized
from keras_transformer.layers import Dropout, FeedForward, MultiHeadAttention
from keras_transformer.models import BERT, GPT, T5, Gemma, Llama, SequenceClassifier, Transformer
from keras_transformer.models.model import flatten_layers
from keras_transformer.ops import GrowingCache, StaticCache

from .cases import numbers, over, randomise, tensors
from .models import DIFFERENT, HEADS, IDS, LIMITED, MODELS, unlimiformer
from .parameters import COUNTED, DEVIATIONS, PUBLISHED, arguments_of, count


def words(case):
    """Return the names of the inputs that are token ids."""
    return [name for name in ("token_ids", "source_ids", "target_ids") if name in case.inputs]


ALL_BUT_GAT = tuple(name for name in MODELS if not name.startswith("GAT"))
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
each_model = over(MODELS)
each_dropping = over(MODELS, lambda case: case.options.get("dropout"))
each_on_tokens = over(MODELS, words)
# The layers that have a rate of their own, and models with such rates.
RATES = {"attention_dropout": MultiHeadAttention, "embedding_dropout": Dropout, "hidden_dropout": FeedForward}
WITH_RATES = ("GPT-gpt2", "Transformer-pre", "BERT-base", "ViT-class token", "Whisper-defaults")
each_decoder = over(MODELS, lambda case: case.make in (GPT, Llama, Gemma, Transformer, T5, unlimiformer))


def tiny(case, **options):
    """Return a model in which every weight, including biases, is random."""
    return randomise(case.new(**options), 0.3)


@functools.cache
def shared(case):
    """Return a model as of `tiny`, which tests share and do not change."""
    return tiny(case)


def answers(model, inputs, **options):
    """Return the outputs of a model as a list of arrays."""
    given = inputs.get("inputs", inputs)
    return keras.tree.flatten(numbers(model(given, **options)))


@functools.cache
def shared_answers(case):
    """Return the outputs of the shared model on the inputs of the case."""
    return answers(shared(case), case.inputs)


def assert_close(found, expected, **options):
    """Compare lists of outputs."""
    for actual, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, reference, **{**CLOSE, **options})


@each_model
def test_config_has_every_argument_and_creates_an_equal_model(case):
    model = shared(case)
    config, kind = model.get_config(), type(model)
    assert set(inspect.signature(kind).parameters) - {"kwargs"} <= set(config)
    again = kind.from_config(config)
    assert again.get_config() == config
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    for name, value in case.options.items():
        if not isinstance(config.get(name, {}), dict):  # of an object
            assert np.array_equal(config[name], serialized(value)), name


@each_model
def test_outputs_are_equal_after_loading(case, tmp_path):
    model = shared(case)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(again) is type(model)
    assert again.get_config() == model.get_config()
    assert len(again.losses) == len(model.losses)
    for found, expected in zip(answers(again, case.inputs), shared_answers(case), strict=True):
        np.testing.assert_array_equal(found, expected)


@each_model
def test_outputs_have_the_symbolic_shapes_in_float32(case):
    model = shared(case)
    given = case.inputs.get("inputs", case.inputs)
    shapes = keras.tree.map_structure(lambda array: array.shape, given)
    announced = model.compute_output_shape(shapes)
    found = model(given)
    assert keras.tree.map_structure(lambda each: tuple(each.shape), found) == announced
    assert {keras.backend.standardize_dtype(each.dtype) for each in keras.tree.flatten(found)} == {"float32"}


@each_dropping
def test_dropout_applies_only_during_training(case):
    model, expected = shared(case), shared_answers(case)
    assert_close(answers(model, case.inputs, training=False), expected, rtol=0, atol=0)
    first, second = (answers(model, case.inputs, training=True)[0] for _ in range(2))
    assert not np.allclose(first, expected[0])
    assert not np.allclose(first, second)


@over({name: MODELS[name] for name in WITH_RATES})
def test_each_rate_of_dropout_is_separate_and_defaults_to_dropout(case):
    names = RATES.keys() & inspect.signature(case.make).parameters.keys()
    for name in names:
        model, rates = case.new(**{**dict.fromkeys(names, 0.0), "dropout": 0.0, name: 0.5}), {}
        for layer in flatten_layers(model):
            rates.setdefault(type(layer), set()).add(getattr(layer, "dropout", getattr(layer, "rate", 0.0)))
        dropping = {kind for kind, found in rates.items() if found != {0.0}}
        assert dropping - {Dropout} == {RATES[name]} - {Dropout}  # a `Dropout` is part of others
        assert rates[RATES[name]] - ({0.0} if name == "embedding_dropout" else set()) == {0.5}
        assert getattr(case.new(dropout=0.3), name) == 0.3


def padding_id(model):
    """Return the padding id of a model, or of its encoder or decoder."""
    return getattr(model, "encoder", getattr(model, "decoder", getattr(model, "model", model))).pad_id


@each_on_tokens
def test_padding_does_not_change_outputs(case):
    model = shared(case)
    pad, expected = padding_id(model) or 0, shared_answers(case)
    of_words = dict.fromkeys(words(case), pad)
    longer = {
        name: np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, 2)], constant_values=of_words.get(name, 0))
        for name, ids in case.inputs.items()
    }
    for found, known in zip(answers(model, longer), expected, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[tuple(map(slice, known.shape))], known, **CLOSE)


@each_on_tokens
def test_examples_of_a_batch_do_not_affect_each_other(case):
    model = shared(case)
    pad, expected = padding_id(model) or 0, shared_answers(case)
    for row in range(2):  # the last one is padding
        single = {name: value[row : row + 1] for name, value in case.inputs.items()}
        lengths = {name: 1 + np.nonzero(single[name] != pad)[-1].max() for name in words(case)}
        single = {
            name: value[..., : lengths.get(name, lengths.get("token_ids"))] for name, value in single.items()
        }
        for found, known in zip(answers(model, single), expected, strict=True):
            np.testing.assert_allclose(found, known[row : row + 1][tuple(map(slice, found.shape))], **CLOSE)


@each_decoder
def test_a_token_changes_only_its_own_and_later_logits(case):
    model, name = shared(case), words(case)[-1]
    changed = {**case.inputs, name: case.inputs[name].copy()}
    changed[name][0, 2] = 10
    (before,), (after,) = shared_answers(case), answers(model, changed)
    np.testing.assert_array_equal(after[0, :2], before[0, :2])
    np.testing.assert_array_equal(after[1:], before[1:])
    assert not np.isclose(after[0, 2], before[0, 2]).any()


def may_have_another_padding_id(case):
    """Return whether the padding id is an argument, 0 in the case, on which positions do not depend."""
    is_zero = not case.options.get("pad_id") and case.options.get("position_layout") != "fairseq"
    return words(case) and inspect.isclass(case.make) and is_zero


@over(MODELS, may_have_another_padding_id)
def test_another_padding_id_gives_equal_outputs(case):
    """Padding comes first, where causal attention would see it, except in targets, which begin with a token."""
    inputs = {name: ids if name == "target_ids" else ids[:, ::-1] for name, ids in case.inputs.items()}
    other = {**inputs, **{name: np.where(inputs[name] == 0, 11, inputs[name]) for name in words(case)}}
    real = inputs[words(case)[-1]] != 0
    (expected,), (found,) = answers(shared(case), inputs), answers(tiny(case, pad_id=11), other)
    np.testing.assert_allclose(found[real], expected[real], **CLOSE)


@over(MODELS, lambda case: inspect.isclass(case.make))
def test_an_empty_batch_gives_empty_outputs(case):
    nothing = {name: value[:0] for name, value in case.inputs.items()}
    for found, expected in zip(answers(shared(case), nothing), shared_answers(case), strict=True):
        assert found.shape == (0, *expected.shape[1:])


@pytest.mark.slow_variants
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@over({**DIFFERENT, **HEADS})
def test_mixed_precision_is_accurate_and_finite_with_padded_rows(case, precision):
    expected, model = shared_answers(case), tiny(case, dtype=f"mixed_{precision}")
    for found, exact in zip(answers(model, case.inputs), expected, strict=True):
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, exact, atol=0.1 * np.abs(exact).max())  # so none is infinite or NaN
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    assert all(np.isfinite(each).all() for each in answers(model, case.inputs, training=True))


@pytest.mark.slow
@over(DIFFERENT)
def test_mixed_precision_trains_with_finite_weights(case):
    model = tiny(case, dtype="mixed_float16")
    model.compile("adam", "mse", jit_compile=False)
    for _ in range(2):
        fit_to_ones(model, case.inputs)
    assert all(np.isfinite(numbers(weight)).all() for weight in model.trainable_weights)


@pytest.mark.slow
@over(DIFFERENT)
def test_compiled_outputs_equal_eager_outputs(case, modes):
    model, expected = tiny(case), shared_answers(case)
    inputs = tensors(case.inputs)
    for mode, wrap in modes.items():
        assert_close(keras.tree.flatten(wrap(model)(inputs.get("inputs", inputs))), expected, err_msg=mode)


@each_model
def test_a_model_can_be_a_layer_of_a_functional_model(case):
    core = tiny(case)
    symbols = case.symbols()
    model = keras.Model(symbols, core(symbols.get("inputs", symbols)))
    assert_close(keras.tree.flatten(model(case.inputs)), shared_answers(case))


@each_on_tokens
def test_pooling_after_a_model_ignores_padding(case):
    """A layer of Keras after the model reads the mask of the tokens."""
    model = shared(case)
    lengthened = {
        name: np.pad(
            value, [[0, 0]] * (value.ndim - 1) + [[0, 1]], constant_values=getattr(model, "pad_id", 0) or 0
        )
        if name in words(case) or name == "segment_ids"
        else value
        for name, value in case.inputs.items()
    }
    masks = keras.tree.flatten(model.compute_mask(tensors(case.inputs)))
    for mask, short, long in zip(
        masks, *(keras.tree.flatten(model(given)) for given in (case.inputs, lengthened)), strict=False
    ):
        if mask is None:
            assert short.shape[:-1] == long.shape[:-1] or "masked_positions" not in case.inputs
            continue
        assert mask.shape == short.shape[: len(mask.shape)]
        if len(mask.shape) == 2:
            pool = keras.layers.GlobalAveragePooling1D()
            rows = ops.any(mask, axis=1)
            found, expected = (numbers(pool(each))[numbers(rows)] for each in (short, long))
            assert_close([found], [expected])


@each_model
def test_frozen_layers_stay_frozen(case):
    model = case.new()
    for layer in flatten_layers(model)[::2]:
        layer.trainable = False
    for again in (type(model).from_config(model.get_config()), keras.models.clone_model(model)):
        assert [weight.path for weight in again.trainable_weights] == [
            weight.path for weight in model.trainable_weights
        ]
    model.trainable = False
    core = type(model).from_config(model.get_config())
    symbols = case.symbols()
    assert keras.Model(symbols, core(symbols.get("inputs", symbols))).trainable_weights == []


def steps(model, case, lengths, kv_cache, room, **options):
    """Return the logits of one step for each part of the target or sequence."""
    ids = case.inputs.get("target_ids", case.inputs.get("token_ids"))
    context = model.encode(case.inputs["source_ids"]) if "source_ids" in case.inputs else None
    cache, outputs, start = model.empty_cache(len(ids), room, kv_cache=kv_cache), [], 0
    for length in lengths:
        now = slice(start, start + length)
        positions = np.broadcast_to(np.arange(start, start + length, dtype="int32"), ids[:, now].shape)
        output, cache = model.step(
            ids[:, now], cache, context, cache_index=start, positions=positions, kv_cache=kv_cache
        )
        assert keras.backend.standardize_dtype(output.dtype) == "float32"
        outputs.append(numbers(output))
        start += length
    return np.concatenate(outputs, axis=1), ids


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("kv_cache", "parts", "room"),
    [
        (StaticCache(), "prompt first", 8),
        (StaticCache(in_place=False), "one by one", 5),
        (GrowingCache(), "one by one", 0),
        (GrowingCache(rolling=False), "prompt first", 0),
    ],
    ids=["in place", "compared", "rolling", "growing"],
)
@each_decoder
def test_decoding_step_by_step_equals_one_call(case, kv_cache, parts, room):
    model = shared(case)
    length = case.inputs.get("target_ids", IDS).shape[1]
    lengths = (1,) * length if parts == "one by one" else (2, *(1,) * (length - 2))
    found, ids = steps(model, case, lengths, kv_cache, room)
    real = case.inputs.get("padding_mask", ids != model.pad_id)
    np.testing.assert_allclose(found[real], shared_answers(case)[0][real], **CLOSE)


def layers(model, method):
    """Return all layers, at any depth, that have the method and have weights."""
    types = keras.layers.Dense | keras.layers.EinsumDense | keras.layers.Embedding
    found = flatten_layers(model)
    return [layer for layer in found if isinstance(layer, types) and hasattr(layer, method)]


def size(weights):
    """Return the number of parameters."""
    return sum(int(np.prod(weight.shape)) for weight in weights)


@pytest.mark.slow_variants
@over(DIFFERENT)
def test_lora_starts_as_identity_and_trains_few_weights(case, tmp_path):
    model = tiny(case)
    before, parameters = answers(model, case.inputs), size(model.trainable_weights)
    adapted = layers(model, "enable_lora")
    assert len(adapted) >= 2
    for layer in adapted:
        layer.enable_lora(1)
    assert_close(answers(model, case.inputs), before, rtol=1e-5, atol=1e-5)
    assert size(model.trainable_weights) < parameters / 2
    frozen = {weight.path: numbers(weight) for weight in model.non_trainable_weights}
    adapters = [weight for weight in model.trainable_weights if weight.name.startswith("lora_")]
    learning = [
        weight for weight in adapters if weight.name.endswith("_b")
    ]  # the others are multiplied by zero
    assert len(learning) == len(adapters) / 2 == len(adapted)
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=keras.backend.backend() == "tensorflow")
    fit_to_ones(model, case.inputs)
    assert all(np.abs(numbers(weight)).max() > 0 for weight in learning)
    for weight in model.non_trainable_weights:
        if weight.path in frozen:
            np.testing.assert_array_equal(weight, frozen[weight.path])
    after = answers(model, case.inputs)
    assert not all(np.allclose(a, b, atol=1e-5) for a, b in zip(after, before, strict=True))
    model.save(tmp_path / "model.keras")  # with the adapters added to the weights
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert_close(answers(loaded, case.inputs), after)


def fit_to_ones(model, inputs):
    """Train for one step towards outputs of one."""
    given = inputs.get("inputs", inputs)
    model.fit(given, keras.tree.map_structure(ops.ones_like, model(given)), verbose=0)


# Quantization is slow: the quick tests have only the smallest model.
@over(DIFFERENT, slow=ALL_BUT_GAT)
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize(
    ("mode", "error"), [("int8", 0.1), pytest.param("int4", 0.6, marks=pytest.mark.slow)]
)
def test_quantized_model_is_accurate_and_saved(case, mode, error, tmp_path):
    model = tiny(case)
    before = answers(model, case.inputs)
    model.quantize(mode)
    assert any(variable.dtype == "int8" for variable in model.variables)  # two integers of 4 bits, too
    for found, expected in zip(answers(model, case.inputs), before, strict=True):
        assert not np.array_equal(found, expected)
        np.testing.assert_allclose(found, expected, atol=error * np.abs(expected).max())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert [each.dtype for each in loaded.variables] == [each.dtype for each in model.variables]
    assert_close(answers(loaded, case.inputs), answers(model, case.inputs), rtol=0, atol=0)


@pytest.mark.slow_variants
@over(DIFFERENT)
def test_summary_counts_every_parameter(case):
    model, lines = tiny(case), []
    model.summary(print_fn=lambda line, **_: lines.append(line), expand_nested=True)
    text = "\n".join(lines)
    assert f"Total params: {model.count_params():,}" in text
    assert "?" not in text  # every layer has an output shape
    assert "unbuilt" not in text


@over({name: MODELS[name] for name in COUNTED})
def test_number_of_parameters_equals_the_formula(case):
    assert shared(case).count_params() == count(case.make, case.options)


@pytest.mark.parametrize(("model", "size"), PUBLISHED)
def test_published_sizes_have_their_numbers_of_parameters(model, size):
    assert count(model, arguments_of(model, size)) == PUBLISHED[model, size]


@pytest.mark.parametrize("name", DEVIATIONS)
def test_initial_values_have_the_deviations_of_the_paper(name):
    keras.utils.set_random_seed(0)
    create, deviation = DEVIATIONS[name]
    drawn = []
    for weight in create().trainable_weights:
        values, expected = numbers(weight), deviation(weight)
        # The standard deviation of n normal numbers has a relative error of 1 / √(2 n).
        assert values.std() == pytest.approx(expected, rel=4 / (2 * values.size) ** 0.5), weight.path
        assert name != "BERT" or not expected or np.abs(values).max() <= 0.04
        assert not any(expected and np.array_equal(values, others) for others in drawn), weight.path
        drawn.append(values)


@each_model
def test_every_layer_is_built_with_its_model(case):
    """This allows `summary`, quantization and LoRA before the first call."""
    assert [layer.name for layer in flatten_layers(case.new()) if not layer.built] == []


@over({**DIFFERENT, **HEADS}, slow=ALL_BUT_GAT)
@pytest.mark.filterwarnings(
    "ignore:Gradients do not exist for variables .'pooler:UserWarning"
)  # of a bare BERT
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX does not export a GAT of any number of nodes"
)
@pytest.mark.parametrize(
    "trained", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["new", "trained"]
)
def test_keras_exports_equal_the_model(case, trained, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    model = tiny(case)
    signature = model.input_signature()
    inputs = case.inputs.get("inputs", case.inputs)
    if isinstance(signature, dict):
        inputs = {name: inputs[name].astype(spec.dtype) for name, spec in signature.items()}
    if trained:
        model.compile("sgd", "mse")
        fit_to_ones(model, case.inputs)
    model.export(tmp_path / "export", verbose=False)
    loaded = tensorflow.saved_model.load(tmp_path / "export")
    for rows, length in ((3, None), (1, 4)):  # of any size
        shorter = [slice(rows), ..., slice(length)] if words(case) else [slice(rows)]
        some = keras.tree.map_structure(lambda array, part=tuple(shorter): array[part], inputs)
        expected = keras.tree.flatten(numbers(model(some)))
        assert_close(keras.tree.flatten(loaded.serve(some)), expected, atol=1e-5)


# Keras patches tf2onnx for NumPy 2.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
@pytest.mark.parametrize("name", ["Transformer-pre", "GAT-gat"])
def test_keras_onnx_exports_equal_the_model(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    case, _ = MODELS[name]
    model = tiny(case)
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    feed = {key: case.inputs[key].astype(spec.dtype) for key, spec in model.input_signature().items()}
    assert_close(session.run(None, feed)[:1], answers(model, case.inputs)[:1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
def test_keras_onnx_export_of_an_unsupported_operation_raises_an_error(tmp_path):
    """Keras would write a file that ONNX Runtime cannot load: exact GELU has no ONNX operation."""
    pytest.importorskip("tf2onnx")
    case, _ = MODELS["ViT-class token"]
    with pytest.raises(ValueError, match=r"kt\.export\.onnx_model.*Received: Erfc"):
        tiny(case).export(tmp_path / "model.onnx", format="onnx", verbose=False)
    assert not (tmp_path / "model.onnx").exists()


def test_a_subclass_that_passes_its_arguments_on_has_them_in_its_config():
    class Passing(SequenceClassifier):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    encoder = BERT(**LIMITED)
    for model in (Passing(encoder, 3), Passing(encoder=encoder, num_classes=3)):
        again = Passing.from_config(model.get_config())
        assert again.num_classes == 3
        assert again.encoder.get_config() == encoder.get_config()
