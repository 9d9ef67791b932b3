import json

import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, interop
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.interop.hugging_face import ARCHITECTURES
from keras_transformer.models import GPT, Transformer
from tests.interop.configurations import CONFIGS

safetensors = pytest.importorskip("safetensors.numpy")

neutral = pytest.mark.backend_neutral

IDS = np.array([[5, 6, 7, 1, 9], [8, 3, 4, 2, 2]])


def norm(name):
    return {f"{name}.weight": (8,), f"{name}.bias": (8,)}


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def conv1d(name, inputs, outputs):
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def gpt_shapes(words, positions, final):
    shapes = {f"transformer.{words}.weight": (12, 8), f"transformer.{positions}.weight": (16, 8)}
    for i in range(2):
        name = f"transformer.h.{i}"
        shapes |= norm(f"{name}.ln_1") | norm(f"{name}.ln_2")
        shapes |= conv1d(f"{name}.attn.c_attn", 8, 24) | conv1d(f"{name}.attn.c_proj", 8, 8)
        shapes |= conv1d(f"{name}.mlp.c_fc", 8, 32) | conv1d(f"{name}.mlp.c_proj", 32, 8)
    return shapes | (norm(final) if final else {})


def marian_shapes():
    shapes = {"model.shared.weight": (12, 8), "final_logits_bias": (1, 12)}
    for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for name in (f"model.{side}.layers.{i}" for i in range(2)):
            for attention in attentions:
                shapes |= norm(f"{name}.{attention}_layer_norm")
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes |= linear(f"{name}.{attention}.{part}", 8, 8)
            shapes |= linear(f"{name}.fc1", 8, 16) | linear(f"{name}.fc2", 16, 8)
            shapes |= norm(f"{name}.final_layer_norm")
    return shapes


SHAPES = {
    "gpt2": gpt_shapes("wte", "wpe", "transformer.ln_f"),
    "openai-gpt": gpt_shapes("tokens_embed", "positions_embed", None),
    "marian": marian_shapes(),
}
each = pytest.mark.parametrize("name", CONFIGS)


def random_tensors(name):
    random = np.random.default_rng(0)
    return {key: random.normal(size=shape).astype("float32") * 0.5 for key, shape in SHAPES[name].items()}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def saved(tmp_path):
    """Return saved(name), which writes a folder as `transformers` does, with random weights."""
    return lambda name: write(tmp_path / "model", CONFIGS[name], random_tensors(name))


def logits(model, ids=IDS):
    inputs = {"source_ids": ids, "target_ids": ids} if is_encoder_decoder(model) else ids
    return ops.convert_to_numpy(model(inputs))


def gpt_by_hand(w, config, ids):
    """Compute the papers' equations in NumPy, from the tensors of the file."""
    d, heads = config["n_embd"], config["n_head"]
    post = config["model_type"] == "openai-gpt"
    words, positions = ("tokens_embed", "positions_embed") if post else ("wte", "wpe")

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def affine(name, x):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(name, x):
        q, k, v = (
            part.reshape(*ids.shape, heads, -1).swapaxes(1, 2)
            for part in np.split(affine(f"{name}.c_attn", x), 3, -1)
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(d / heads)
        scores = np.where(np.tri(ids.shape[1], dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ v
        return affine(f"{name}.c_proj", out.swapaxes(1, 2).reshape(*ids.shape, d))

    def feed_forward(name, x):
        x = affine(f"{name}.c_fc", x)
        return affine(f"{name}.c_proj", 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))

    x = w[f"transformer.{words}.weight"][ids] + w[f"transformer.{positions}.weight"][: ids.shape[1]]
    for i in range(config["n_layer"]):
        name = f"transformer.h.{i}"
        if post:
            x = norm(f"{name}.ln_1", x + attention(f"{name}.attn", x))
            x = norm(f"{name}.ln_2", x + feed_forward(f"{name}.mlp", x))
        else:
            x = x + attention(f"{name}.attn", norm(f"{name}.ln_1", x))
            x = x + feed_forward(f"{name}.mlp", norm(f"{name}.ln_2", x))
    x = x if post else norm("transformer.ln_f", x)
    return x @ w[f"transformer.{words}.weight"].T


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=neutral), "openai-gpt"])
def test_gpt_logits_equal_reference_implementation(saved, name):
    model = interop.from_hugging_face(saved(name))
    assert type(model) is GPT
    expected = gpt_by_hand(random_tensors(name), CONFIGS[name], IDS)
    np.testing.assert_allclose(logits(model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_marian_starts_from_the_padding_token_and_adds_the_logits_bias(saved):
    model = interop.from_hugging_face(saved("marian"))
    tensors = random_tensors("marian")
    assert type(model) is Transformer
    assert model.start_id == model.pad_id == 11
    before = logits(model)
    model.output_bias.assign(np.zeros(12))
    np.testing.assert_allclose(
        before - logits(model),
        np.broadcast_to(tensors["final_logits_bias"], before.shape),
        rtol=1e-4,
        atol=1e-4,
    )
    kernel = model.decoder_blocks[1].cross_attention.value_projection.kernel
    np.testing.assert_array_equal(kernel, tensors["model.decoder.layers.1.encoder_attn.v_proj.weight"].T)
    # The start token is attended to: changing its embedding changes the logits of the second token.
    ids = {"source_ids": IDS, "target_ids": np.array([[11, 4], [11, 5]])}
    before = ops.convert_to_numpy(model(ids))
    table = np.array(model.embedding.embedding.embeddings)
    table[11] += np.arange(8)
    model.embedding.embedding.embeddings.assign(table)
    assert not np.isclose(ops.convert_to_numpy(model(ids))[:, 1, :11], before[:, 1, :11]).all(-1).any()
    out = generation.generate(model, IDS, max_new_tokens=4)
    assert (out.best[:, 0] != 11).all()
    # Step by step equals the full forward pass.
    target = np.concatenate([np.full((2, 1), 11), out.best[:, :-1]], axis=1)
    at_once = ops.convert_to_numpy(model({"source_ids": IDS, "target_ids": target}))
    allowed = at_once[..., :11].argmax(-1)
    row = out.lengths[0, 0]
    np.testing.assert_array_equal(allowed[0, :row], out.best[0, :row])


@each
@neutral
def test_folder_round_trip_is_the_identity(saved, name, tmp_path):
    folder = saved(name)
    model = interop.from_hugging_face(folder)
    written = interop.to_hugging_face(model, tmp_path / "again")
    tensors = safetensors.load_file(written / "model.safetensors")
    assert {key: tensor.shape for key, tensor in tensors.items()} == SHAPES[name]
    for key, tensor in random_tensors(name).items():
        np.testing.assert_array_equal(tensors[key], tensor, err_msg=key)
    config = json.loads((written / "config.json").read_text())
    for key in CONFIGS[name].keys() - {"n_inner"}:
        assert config[key] == CONFIGS[name][key]
    assert config["architectures"] == [ARCHITECTURES[name].class_name]
    again = interop.from_hugging_face(written)
    assert again.get_config() == {**model.get_config(), "name": again.name}


@each
def test_every_constructor_argument_maps_to_a_config_setting(name):
    architecture = ARCHITECTURES[name]
    of_training = {"name", "dtype", "trainable", "frozen", "rematerialize"}
    known = {*architecture.settings, *architecture.fixed, *of_training}
    sizes = {"vocabulary_size": 5, "num_layers": 1, "num_heads": 1, "model_dim": 2, "hidden_dim": 2}
    assert set(architecture.model(**sizes).get_config()) == known


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("name", "change", "pad_id"),
    [
        ("gpt2", {}, None),
        ("gpt2", {"pad_token_id": 11}, None),  # the end token, which is not padding
        ("gpt2", {"pad_token_id": 0}, 0),
        ("openai-gpt", {}, None),
    ],
)
def test_pad_id_is_read_from_the_config(name, change, pad_id, tmp_path):
    folder = write(tmp_path / "it", {**CONFIGS[name], **change}, random_tensors(name))
    model = interop.from_hugging_face(folder)
    assert model.pad_id == pad_id
    again = interop.from_hugging_face(interop.to_hugging_face(model, tmp_path / "again"))
    assert again.pad_id == pad_id
    # An end token in a prompt is a normal token: later outputs depend on it.
    end_id = model.end_id
    separated, other = (model(np.array([[5, one, 6]]))[0, -1] for one in (end_id, 7))
    assert np.abs(np.asarray(separated) - np.asarray(other)).max() > 1e-3


def test_missing_prefix_masks_and_tied_matrix_are_accepted(tmp_path):
    tensors = random_tensors("gpt2")
    bare = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 16, 16), "float32")
    bare["lm_head.weight"] = bare["wte.weight"].copy()
    model = interop.from_hugging_face(write(tmp_path / "bare", CONFIGS["gpt2"], bare))
    whole = interop.from_hugging_face(write(tmp_path / "whole", CONFIGS["gpt2"], tensors))
    np.testing.assert_array_equal(logits(model), logits(whole))
    bare["lm_head.weight"] += 1
    with pytest.raises(ValueError, match="lm_head.weight differs from transformer.wte.weight"):
        interop.from_hugging_face(write(tmp_path / "bare", CONFIGS["gpt2"], bare))


def test_shards_are_read_by_their_index(saved, tmp_path):
    whole = saved("gpt2")
    tensors = random_tensors("gpt2")
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["gpt2"]))
    places = {}
    for number, keys in enumerate((list(tensors)[::2], list(tensors)[1::2])):
        safetensors.save_file({key: tensors[key] for key in keys}, folder / f"part-{number}.safetensors")
        places |= dict.fromkeys(keys, f"part-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    found = interop.from_hugging_face(folder)
    np.testing.assert_array_equal(logits(found), logits(interop.from_hugging_face(whole)))
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="Missing: part-1.safetensors"):
        interop.from_hugging_face(folder)


def test_half_precision_files_are_read(tmp_path):
    import ml_dtypes

    tensors = {key: tensor.astype(ml_dtypes.bfloat16) for key, tensor in random_tensors("gpt2").items()}
    model = interop.from_hugging_face(write(tmp_path / "half", CONFIGS["gpt2"], tensors), dropout=0.0)
    assert model.dropout == 0
    expected = tensors["transformer.h.1.mlp.c_fc.weight"].astype("float32")
    np.testing.assert_array_equal(model.blocks[1].feed_forward.hidden.kernel, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w: w.pop("transformer.ln_f.bias"), ValueError, "missing: transformer.ln_f.bias"),
        (lambda w: w.update(other=np.ones(2)), ValueError, "unknown: other"),
        (
            lambda w: w.update({"transformer.wte.weight": np.ones((13, 8))}),
            ValueError,
            r"transformer.wte.weight of shape \(13, 8\) instead of \(12, 8\)",
        ),
        (
            lambda w: (w.clear(), w.update(random_tensors("openai-gpt"))),
            ValueError,
            "missing: .*; unknown: .*",
        ),
        (lambda w: (w.clear(), w.update(random_tensors("marian"))), ValueError, "missing: .* and 23 more"),
    ],
    ids=["missing", "unknown", "vocabulary", "another", "another still"],
)
def test_weights_that_do_not_match_the_config_are_rejected(tmp_path, change, error, message):
    tensors = random_tensors("gpt2")
    change(tensors)
    folder = write(tmp_path / "model", CONFIGS["gpt2"], tensors)
    with pytest.raises(error, match=f"must have the weights of .* as in its config.json.*{message}"):
        interop.from_hugging_face(folder)


def test_truncated_file_is_rejected(saved):
    folder = saved("gpt2")
    content = (folder / "model.safetensors").read_bytes()
    for length in (len(content) - 3, 100, 4, 0):
        (folder / "model.safetensors").write_bytes(content[:length])
        with pytest.raises(ValueError, match="model.safetensors` must be a valid safetensors file"):
            interop.from_hugging_face(folder)


def test_weights_of_tensorflow_are_rejected(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt2"]))
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(FileNotFoundError, match="not TensorFlow's tf_model.h5, which docs/coming_from"):
        interop.from_hugging_face(tmp_path)
    weights = {"model/decoder/layers.0/fc1/kernel:0": np.zeros([2, 2], "float32")}
    safetensors.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "tf"})
    with pytest.raises(
        ValueError, match="must have PyTorch's names of weights. Received: those of a TensorFlow"
    ):
        interop.from_hugging_face(tmp_path)


def test_existing_folder_is_not_overwritten(saved, tmp_path):
    model = interop.from_hugging_face(saved("gpt2"))
    with pytest.raises(FileExistsError, match="exists already"):
        interop.to_hugging_face(model, tmp_path / "model")


@pytest.mark.slow
@neutral
def test_marian_encoder_and_decoder_may_differ_in_depth_and_dropout(tmp_path):
    tensors = {
        key: tensor for key, tensor in random_tensors("marian").items() if ".decoder.layers.1" not in key
    }
    settings = {"decoder_layers": 1, "dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.0}
    config = {**CONFIGS["marian"], **settings}
    model = interop.from_hugging_face(write(tmp_path / "model", config, tensors))
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (2, 1)
    assert (model.dropout, model.attention_dropout, model.hidden_dropout) == (0.1, 0.2, 0.0)
    written = interop.to_hugging_face(model, tmp_path / "again")
    found = json.loads((written / "config.json").read_text())
    assert {name: found[name] for name in config} == config
    np.testing.assert_array_equal(logits(interop.from_hugging_face(written)), logits(model))


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt"])
def test_all_three_dropout_rates_of_gpt_are_read_and_written(name, tmp_path):
    rates = {"resid_pdrop": 0.1, "attn_pdrop": 0.2, "embd_pdrop": 0.0}
    model = interop.from_hugging_face(
        write(tmp_path / "model", {**CONFIGS[name], **rates}, random_tensors(name))
    )
    assert (model.dropout, model.attention_dropout, model.embedding_dropout) == tuple(rates.values())
    written = json.loads((interop.to_hugging_face(model, tmp_path / "again") / "config.json").read_text())
    assert {rate: written[rate] for rate in rates} == rates


def test_overriding_the_dropout_overrides_those_that_equal_it(saved, tmp_path):
    model = interop.from_hugging_face(saved("gpt2"), dropout=0.0)
    assert (model.dropout, model.attention_dropout, model.embedding_dropout) == (0.0, 0.0, 0.0)
    config = {**CONFIGS["gpt2"], "attn_pdrop": 0.2}
    model = interop.from_hugging_face(write(tmp_path / "other", config, random_tensors("gpt2")), dropout=0.0)
    assert (model.dropout, model.attention_dropout, model.embedding_dropout) == (0.0, 0.2, 0.0)
