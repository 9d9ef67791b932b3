import json

import numpy as np
import pytest
from keras import ops

from keras_transformer import interop
from keras_transformer.models import T5
from tests.interop.configurations import T5_CONFIG

safetensors = pytest.importorskip("safetensors.numpy")

neutral = pytest.mark.backend_neutral
# As published; newer versions of `transformers` write the second form of the first setting.
VERSIONS = {
    "original": {},
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "v1.1, newer": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": True,
        "scale_decoder_outputs": False,
    },
}
each = pytest.mark.parametrize("version", VERSIONS)
INPUTS = {"source_ids": np.array([[5, 6, 1], [7, 1, 0]]), "target_ids": np.array([[0, 9, 4], [0, 7, 0]])}


def shapes(version):
    gated = version != "original"
    found = {"shared.weight": (12, 8), **({"lm_head.weight": (12, 8)} if gated else {})}
    for side, attentions in (
        ("encoder", ["SelfAttention"]),
        ("decoder", ["SelfAttention", "EncDecAttention"]),
    ):
        found[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (8, 2)
        found[f"{side}.final_layer_norm.weight"] = (8,)
        for name in (f"{side}.block.{i}.layer" for i in range(2)):
            for number, attention in enumerate(attentions):
                found[f"{name}.{number}.layer_norm.weight"] = (8,)
                found |= {f"{name}.{number}.{attention}.{part}.weight": (6, 8) for part in "qkv"}
                found[f"{name}.{number}.{attention}.o.weight"] = (8, 6)
            last = f"{name}.{len(attentions)}"
            found[f"{last}.layer_norm.weight"] = (8,)
            wide = ("wi_0", "wi_1") if gated else ("wi",)
            found |= {f"{last}.DenseReluDense.{part}.weight": (16, 8) for part in wide}
            found[f"{last}.DenseReluDense.wo.weight"] = (8, 16)
    return found


def random_tensors(version):
    random = np.random.default_rng(0)
    return {key: random.normal(size=shape).astype("float32") for key, shape in shapes(version).items()}


def write(folder, version, tensors, **settings):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**T5_CONFIG, **VERSIONS[version], **settings}))
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


def logits(model):
    return ops.convert_to_numpy(model(INPUTS))


@pytest.mark.slow_variants
@each
@neutral
def test_folder_round_trip_is_the_identity(version, tmp_path):
    tensors = random_tensors(version)
    model = interop.from_hugging_face(write(tmp_path / "model", version, tensors))
    assert type(model) is T5
    assert (model.tied, model.start_id, model.end_id) == (version == "original", 0, 1)
    written = interop.to_hugging_face(model, tmp_path / "again")
    found = safetensors.load_file(written / "model.safetensors")
    assert {key: tensor.shape for key, tensor in found.items()} == shapes(version)
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(found[key], tensor, err_msg=key)
    again = interop.from_hugging_face(written)
    assert again.get_config() == {**model.get_config(), "name": again.name}
    np.testing.assert_array_equal(logits(again), logits(model))
    config = json.loads((written / "config.json").read_text())
    assert config["tie_word_embeddings"] == model.tied
    assert all(config[key] == value for key, value in T5_CONFIG.items())


def test_linear_kernels_are_transposed_and_embeddings_are_not(tmp_path):
    tensors = random_tensors("v1.1")
    model = interop.from_hugging_face(write(tmp_path / "model", "v1.1", tensors))
    feed_forward = model.decoder_blocks[1].feed_forward
    gate = tensors["decoder.block.1.layer.2.DenseReluDense.wi_1.weight"]
    np.testing.assert_array_equal(feed_forward.gate.kernel, gate.T)
    table = tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    np.testing.assert_array_equal(model.decoder_bias.table, table)


@pytest.mark.slow
def test_tied_embeddings_and_unused_tables_are_accepted(tmp_path):
    tensors = random_tensors("original")
    expected = logits(interop.from_hugging_face(write(tmp_path / "plain", "original", tensors)))
    for name in ("lm_head", "encoder.embed_tokens", "decoder.embed_tokens"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].copy()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = np.ones(
        (8, 2), "float32"
    )
    found = interop.from_hugging_face(write(tmp_path / "more", "original", tensors))
    np.testing.assert_array_equal(logits(found), expected)
    tensors["lm_head.weight"] += 1
    with pytest.raises(ValueError, match="lm_head.weight differs from shared.weight"):
        interop.from_hugging_face(write(tmp_path / "more", "original", tensors))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_decoder_layers": 3}, "missing: decoder.block.2"),
        ({"num_decoder_layers": 1}, "unknown: decoder.block.1"),
        ({"tie_word_embeddings": False}, "missing: lm_head.weight"),
        ({"d_kv": 4}, r"of shape \(6, 8\) instead of \(8, 8\)"),
    ],
    ids=str,
)
def test_weights_that_do_not_match_the_config_are_rejected(tmp_path, settings, message):
    folder = write(tmp_path / "model", "original", random_tensors("original"), **settings)
    with pytest.raises(ValueError, match=message):
        interop.from_hugging_face(folder)


@pytest.mark.slow_variants
@neutral
@pytest.mark.parametrize("deeper", ["encoder", "decoder"])
def test_encoder_and_decoder_may_differ_in_depth(deeper, tmp_path):
    shallower = "decoder" if deeper == "encoder" else "encoder"
    tensors = random_tensors("v1.1")
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{shallower}.block.1.")}
    key = "num_decoder_layers" if deeper == "encoder" else "num_layers"
    layers = {"num_layers": 2, "num_decoder_layers": 2, key: 1}
    model = interop.from_hugging_face(write(tmp_path / "model", "v1.1", tensors, **layers))
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == tuple(layers.values())
    written = interop.to_hugging_face(model, tmp_path / "again")
    config = json.loads((written / "config.json").read_text())
    assert {name: config[name] for name in layers} == layers
    assert safetensors.load_file(written / "model.safetensors").keys() == tensors.keys()
    np.testing.assert_array_equal(logits(interop.from_hugging_face(written)), logits(model))
