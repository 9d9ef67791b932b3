"""Hand-made folders in the layout of `sentence-transformers` as pipelines, compared with NumPy."""

import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import interop, pipelines, text
from keras_transformer.interop.sentence_transformers import from_sentence_transformers
from keras_transformer.models import BERT, GPT, MaskedLanguageModel, SentenceEncoder
from tests import arrays
from tests.random_weights import randomise
from tests.sentence_pieces import sentence_piece

safetensors = pytest.importorskip("safetensors.numpy")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##x", "query", "."]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}
TEXTS = ["a b c", "h ax", "", "a [MASK] b"]
IDS = [[2, 5, 6, 7, 3], [2, 12, 5, 13, 3], [2, 3], [2, 5, 4, 6, 3]]
MAX_LENGTH = 10
LONG, TRUNCATED = "a b c d " * 5, [2, *[5, 6, 7, 8] * 2, 3]
OLD, NEW = "sentence_transformers.models.{}", "sentence_transformers.base.modules.{}.{}"
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
TANH = "torch.nn.modules.activation.Tanh"
MEAN = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}


randomised = functools.partial(randomise, seed=1)


@pytest.fixture(scope="module")
def encoder():
    return randomised(BERT(len(PIECES), **SIZES, max_length=16))


@pytest.fixture(scope="module")
def transformer(encoder, tmp_path_factory):
    """Return the folder of `encoder` and its tokenizer."""
    folder = interop.to_hugging_face(encoder, tmp_path_factory.mktemp("bert") / "it")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return folder


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_layers(folder, layers, first, type_=OLD.format):
    """Write the modules after the transformer, as (name, (settings, tensors)); return their list."""
    modules = []
    for number, (name, settings, tensors) in enumerate(layers, first):
        part = f"{number}_{name}"
        write_json(folder / part / "config.json", settings)
        if tensors:
            safetensors.save_file(tensors, folder / part / "model.safetensors")
        modules.append({"idx": number, "name": str(number), "path": part, "type": type_(name)})
    return modules


def write(transformer, folder, pooling=MEAN, layers=(), of_model=None, of_transformer=None, old=True):
    """Write a folder with the transformer in 0_Transformer (old versions of the library) or in the folder itself."""
    path = "0_Transformer" if old else ""
    shutil.copytree(transformer, folder / path)
    of_transformer = {"max_seq_length": MAX_LENGTH, "do_lower_case": False} | (of_transformer or {})
    if old:
        write_json(folder / path / "sentence_bert_config.json", of_transformer)
    else:
        write_json(folder / "tokenizer_config.json", {"model_max_length": MAX_LENGTH})

    def type_(name):
        return OLD.format(name) if old else NEW.format(name.lower(), name)

    first = {"idx": 0, "name": "0", "path": path, "type": type_("Transformer")}
    rest = write_layers(folder, [("Pooling", pooling, {}), *layers], 1, type_)
    write_json(folder / "modules.json", [first, *rest])
    if of_model is not None:
        write_json(folder / "config_sentence_transformers.json", of_model)
    return folder


def token_ids(embed, text, **prompt):
    options = {name: tf.constant([value]) for name, value in prompt.items()}
    return embed.preprocess(tf.constant([text]), **options).inputs["token_ids"].numpy()[0].tolist()


def states(encoder, ids):
    return np.asarray(encoder(np.array([ids])))[0]


POOLINGS = {
    "cls_token": lambda h: h[0],
    "max_tokens": lambda h: h.max(0),
    "mean_tokens": lambda h: h.mean(0),
    "mean_sqrt_len_tokens": lambda h: h.sum(0) / np.sqrt(len(h)),
    "weightedmean_tokens": lambda h: np.arange(1, len(h) + 1) @ h / np.arange(1, len(h) + 1).sum(),
    "lasttoken": lambda h: h[-1],
}
NEW_NAMES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.mark.slow_variants
@pytest.mark.parametrize("old", [True, False])
def test_all_poolings_are_concatenated_in_the_order_of_the_library(transformer, encoder, old, tmp_path):
    pooling = {"word_embedding_dimension": 8}
    pooling |= {f"pooling_mode_{name}": True for name in reversed(POOLINGS)}  # in a fixed order
    functions = list(POOLINGS.values())
    if not old:
        pooling = {"embedding_dimension": 8, "pooling_mode": NEW_NAMES[::-1], "include_prompt": True}
        functions = functions[::-1]
    embed = pipelines.from_hugging_face(write(transformer, tmp_path / "it", pooling, old=old))
    expected = [np.concatenate([of(states(encoder, ids)) for of in functions]) for ids in IDS]
    np.testing.assert_allclose(embed(TEXTS), expected, **CLOSE)
    assert (embed.normalize, embed.max_length) == (False, MAX_LENGTH)


@pytest.mark.slow_variants
@pytest.mark.parametrize("named", [None, ["BertForMaskedLM"], ["BertForPreTraining"]], ids=str)
def test_the_encoder_is_read_whatever_class_the_config_names(transformer, encoder, named, tmp_path):
    folder = write(transformer, tmp_path / "it")
    config = json.loads((folder / "0_Transformer" / "config.json").read_text())
    del config["pad_token_id"]
    write_json(folder / "0_Transformer" / "config.json", {**config, "architectures": named})
    found = from_sentence_transformers(folder).model.encoder
    np.testing.assert_array_equal(states(found, IDS[0]), states(encoder, IDS[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("old", [True, False])
def test_each_pooling_equals_numpy(transformer, encoder, name, old, tmp_path):
    settings = {"word_embedding_dimension": 8, f"pooling_mode_{name}": True}
    if not old:
        settings = {"embedding_dimension": 8, "pooling_mode": NEW_NAMES[list(POOLINGS).index(name)]}
    folder = write(transformer, tmp_path / "it", settings, [("Normalize", {}, {})], old=old)
    embed = pipelines.from_hugging_face(folder)
    pooled = [POOLINGS[name](states(encoder, ids)) for ids in IDS]
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(TEXTS), expected, **CLOSE)


def dense(size, units, activation=TANH, bias=True):
    random = np.random.default_rng(units)
    tensors = {"linear.weight": random.normal(size=(units, size)).astype("float32")}
    if bias:
        tensors["linear.bias"] = random.normal(size=units).astype("float32")
    settings = {"in_features": size, "out_features": units, "bias": bias, "activation_function": activation}
    return "Dense", settings, tensors


@pytest.mark.slow
def test_layers_after_the_pooling_equal_numpy(transformer, encoder, tmp_path):
    norm = {"norm.weight": np.arange(4, dtype="float32"), "norm.bias": np.ones(4, "float32")}
    layers = [
        dense(8, 6),
        ("Normalize", {"module_input_name": "sentence_embedding"}, {}),
        dense(6, 4, "torch.nn.modules.linear.Identity", bias=False),
        ("LayerNorm", {"dimension": 4}, norm),
    ]
    embed = pipelines.from_hugging_face(write(transformer, tmp_path / "it", layers=layers))
    vectors = np.stack([states(encoder, ids).mean(0) for ids in IDS])
    first, second = layers[0][2], layers[2][2]
    vectors = np.tanh(vectors @ first["linear.weight"].T + first["linear.bias"])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) @ second["linear.weight"].T
    deviation = np.sqrt(vectors.var(1, keepdims=True) + 1e-5)
    expected = (vectors - vectors.mean(1, keepdims=True)) / deviation * np.arange(4) + 1
    np.testing.assert_allclose(embed(TEXTS), expected, **CLOSE)
    assert embed([]).shape == (0, 4)
    embed.save(tmp_path / "saved")
    np.testing.assert_allclose(pipelines.load(tmp_path / "saved")(TEXTS), expected, **CLOSE)


PROMPTS = {"prompts": {"query": "query b ", "none": ""}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def prompted(transformer, tmp_path_factory):
    return pipelines.from_hugging_face(
        write(transformer, tmp_path_factory.mktemp("it") / "it", of_model=PROMPTS)
    )


def test_long_texts_are_truncated_to_the_maximum_length_of_the_folder(prompted):
    assert type(prompted.model) is SentenceEncoder
    assert (prompted.long_texts, prompted.max_length) == ("truncate", MAX_LENGTH)
    assert token_ids(prompted, LONG, prompt_name="") == TRUNCATED
    longer = pipelines.Embedding(prompted.model, prompted.tokenizer)
    assert token_ids(longer, "a " * 14) == [2, *[5] * 14, 3]


def test_arguments_override_the_settings_of_the_folder(transformer, tmp_path):
    strict = pipelines.from_hugging_face(write(transformer, tmp_path / "it"), long_texts="refuse")
    with pytest.raises(ValueError, match="at most 8 tokens each, as `max_length` is 10.*Received: 20 tokens"):
        strict([LONG])


@pytest.mark.slow_variants
@pytest.mark.parametrize("is_normalised", [True, False])
def test_vectors_are_truncated_after_all_modules(transformer, tmp_path, is_normalised):
    layers = [("Normalize", {}, {})] if is_normalised else []
    whole = pipelines.from_hugging_face(write(transformer, tmp_path / "whole", layers=layers))
    folder = write(transformer, tmp_path / "short", layers=layers, of_model={"truncate_dim": 3})
    short = pipelines.from_hugging_face(folder)
    np.testing.assert_allclose(short(TEXTS), whole(TEXTS)[:, :3], rtol=1e-5, atol=1e-6)
    assert short.embedding_dim == 3
    again = pipelines.to_hugging_face(short, tmp_path / "again")
    np.testing.assert_allclose(pipelines.from_hugging_face(again)(TEXTS), short(TEXTS), rtol=1e-5, atol=1e-6)


def test_truncated_vectors_are_normalised_again(transformer, tmp_path):
    folder = write(transformer, tmp_path / "it")
    whole, short = (
        pipelines.from_hugging_face(folder, normalize=True, truncate_dim=size) for size in (None, 4)
    )
    expected = whole(TEXTS)[:, :4]
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    for vectors in (short(TEXTS), whole(TEXTS, truncate_dim=4), short.served()(TEXTS)):
        np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(short(TEXTS[0], truncate_dim=1), np.sign(expected[0, :1]), rtol=1e-6)
    signature = short.serve(tf.constant(TEXTS))["embedding"]
    np.testing.assert_allclose(signature, expected, rtol=1e-5, atol=1e-6)
    for wrong in (0, whole.embedding_dim + 1, True, 1.5):
        with pytest.raises(ValueError, match=r"`truncate_dim` must be an integer in \[1, "):
            whole(TEXTS, truncate_dim=wrong)
        with pytest.raises(ValueError, match=r"`truncate_dim` must be an integer in \[1, "):
            pipelines.from_hugging_face(folder, truncate_dim=wrong)
    with pytest.raises(ValueError, match="`normalize` must be False with truncate_dim"):
        pipelines.to_hugging_face(short, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_prompts_are_put_before_texts(prompted):
    with_prompt, without = (
        prompted([f"query b {text}" for text in TEXTS], prompt=""),
        prompted(TEXTS, prompt=""),
    )
    assert np.abs(with_prompt - without).max() > 0.01
    np.testing.assert_allclose(prompted(TEXTS), with_prompt, **CLOSE)
    np.testing.assert_allclose(prompted(iter(TEXTS), prompt_name="query"), with_prompt, **CLOSE)
    np.testing.assert_allclose(prompted(TEXTS[0], prompt="query b "), with_prompt[0], **CLOSE)
    with pytest.raises(ValueError, match=r"`prompt_name` must be one of \['query', 'none'\]. .*'other'"):
        prompted(TEXTS, prompt_name="other")
    with pytest.raises(ValueError, match="`prompt` must be None beside a `prompt_name`"):
        prompted(TEXTS, prompt_name="query", prompt="a")
    with pytest.raises(TypeError, match="`prompt` must be a string. Received: prompt=5"):
        prompted(TEXTS, prompt=5)


def test_the_signature_embed_has_a_prompt_for_each_text(prompted):
    graph = prompted.signatures()["embed"]
    names, prompts = ["query", "none", "", "other"], ["", "", "query b ", ""]
    found = graph.function(*map(tf.constant, (TEXTS, names, prompts)))
    expected = [prompted(TEXTS[0]), prompted(TEXTS[1], prompt=""), prompted(TEXTS[2]), np.zeros(8)]
    np.testing.assert_allclose(found["embedding"], expected, **CLOSE)
    errors = [error.decode() for error in found["error"].numpy()]
    assert errors[:3] == [""] * 3
    assert errors[3] == "`prompt_name` must be one of ['query', 'none']. Received: other"
    defaults = graph.function(tf.constant(TEXTS), *map(tf.constant, graph.defaults.values()))
    np.testing.assert_allclose(defaults["embedding"], prompted(TEXTS), **CLOSE)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompts": ["a"]}, TypeError, "`prompts` must be a dictionary from names to texts"),
        ({"prompts": {"a": 1}}, TypeError, "`prompts` must be a dictionary from names to texts"),
        ({"prompts": {"": "a"}}, ValueError, "`prompts` must have non-empty names"),
        (
            {"prompts": {"a": "b"}, "default_prompt_name": "c"},
            ValueError,
            r"`default_prompt_name` must be one of \['a'\]",
        ),
        ({"long_texts": "other"}, ValueError, "`long_texts` must be one of .*'truncate'"),
        ({"max_length": 17}, ValueError, r"`max_length` must be an integer in \[2, 16\].*max_length=17"),
        ({"max_length": 1}, ValueError, r"`max_length` must be an integer in \[2, 16\].*max_length=1"),
        ({"pooling": "max"}, ValueError, r"`pooling` must be one of \('mean',\). Received: pooling='max'"),
    ],
)
def test_wrong_arguments_are_rejected(prompted, arguments, error, message):
    with pytest.raises(error, match=message):
        pipelines.Embedding(prompted.model, prompted.tokenizer, **arguments)


def test_lowercasing_follows_the_setting_of_the_folder(transformer, tmp_path):
    folder = write(transformer, tmp_path / "it", of_transformer={"do_lower_case": True})
    write_json(folder / "0_Transformer" / "tokenizer_config.json", {"do_lower_case": False})
    embed = pipelines.from_hugging_face(folder)
    assert token_ids(embed, "A b C") == IDS[0]
    assert embed.tokenizer.tokenize(["Á"]).to_list() == [[1]]  # accents are kept
    write_json(folder / "0_Transformer" / "sentence_bert_config.json", {})
    assert pipelines.from_hugging_face(folder).tokenizer.tokenize(["A"]).to_list() == [[1]]


@pytest.mark.slow
def test_classification_heads_are_not_read(encoder, tmp_path):
    model = MaskedLanguageModel(encoder)
    folder = interop.to_hugging_face(model, tmp_path / "bert")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    embed = pipelines.from_hugging_face(write(folder, tmp_path / "it", old=False))
    np.testing.assert_allclose(embed(TEXTS[0]), states(encoder, IDS[0]).mean(0), **CLOSE)


def without_file(path):
    return lambda folder: (folder / path).unlink()


def with_content(path, content):
    return lambda folder: write_json(folder / path, content)


def modules(*names):
    return [{"path": "1_Pooling", "type": name} for name in names]


def add_layer(name, settings, tensors):
    def change(folder):
        listed = json.loads((folder / "modules.json").read_text())
        write_json(folder / "modules.json", listed + write_layers(folder, [(name, settings, tensors)], 2))

    return change


def pytorch_weights(folder):
    add_layer(*dense(8, 4))(folder)
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")


TRANSFORMER, POOLING = OLD.format("Transformer"), OLD.format("Pooling")
INVALID = {
    "word embeddings": (
        with_content("modules.json", modules(OLD.format("WordEmbeddings"), POOLING)),
        "must list the modules Transformer and Pooling .*Dense, LayerNorm, Normalize. Received: WordEmb.*, Pooling",
    ),
    "CLIP": (with_content("modules.json", modules(OLD.format("CLIPModel"))), "Received: CLIPModel"),
    "no modules": (with_content("modules.json", []), "Received: none"),
    "an own class": (
        with_content("modules.json", modules("custom_st.Transformer", POOLING)),
        "Received: custom_st.Transformer, Pooling",
    ),
    "CNN": (with_content("modules.json", modules(TRANSFORMER, POOLING, OLD.format("CNN"))), "Pooling, CNN"),
    "no list": (
        with_content("modules.json", {"a": 1}),
        "must be a list of modules, each with a type and a path",
    ),
    "a path outside": (
        with_content("modules.json", [{"path": "../x", "type": TRANSFORMER}]),
        r"must have paths below its folder. Received: path='../x'",
    ),
    "another pooling": (
        with_content("1_Pooling/config.json", {"pooling_mode": "other"}),
        "must have a pooling_mode among .*Received: pooling_mode=.'other'",
    ),
    "an unknown pooling": (
        with_content("1_Pooling/config.json", {**MEAN, "pooling_mode_other": True}),
        "must only have the settings .*Received: pooling_mode_other=True",
    ),
    "excluded prompts": (
        with_content("1_Pooling/config.json", {**MEAN, "include_prompt": False}),
        "must have include_prompt=True. Received: include_prompt=False",
    ),
    "another size": (
        with_content("1_Pooling/config.json", {**MEAN, "word_embedding_dimension": 4}),
        "must have word_embedding_dimension=8. Received: word_embedding_dimension=4",
    ),
    "an unknown activation": (
        add_layer(*dense(8, 4, "torch.nn.modules.activation.ELU")),
        "must have an activation_function among .*Received: activation_function='torch.nn.modules.activation.ELU'",
    ),
    "a residual connection": (
        add_layer("Dense", {**dense(8, 8)[1], "use_residual": True}, {}),
        "Received: use_residual=True",
    ),
    "another input": (
        add_layer("Dense", {**dense(8, 8)[1], "module_input_name": "token_embeddings"}, {}),
        "must have module_input_name='sentence_embedding'",
    ),
    "another input size": (add_layer(*dense(6, 4)), "must have in_features=8. Received: in_features=6"),
    "weights of another shape": (
        add_layer("Dense", dense(8, 4)[1], dense(8, 5)[2]),
        r"must have weights of the shapes .*\(4, 8\).*Received: .*\(5, 8\)",
    ),
    "damaged weights of PyTorch": (
        pytorch_weights,
        "pytorch_model.bin` must be a dictionary of tensors in PyTorch",
    ),
    "another model type": (
        with_content(
            "config_sentence_transformers.json", {"activation_fn": "x", "model_type": "SparseEncoder"}
        ),
        "must have model_type='SentenceTransformer'. Received: model_type='SparseEncoder'",
    ),
    "prompts that are not strings": (
        with_content("config_sentence_transformers.json", {"prompts": {"query": 1}}),
        "must have prompts that are strings, by name",
    ),
    "an unknown default prompt": (
        with_content("config_sentence_transformers.json", {"default_prompt_name": "x"}),
        r"must have a default_prompt_name among \[\]. Received: default_prompt_name='x'",
    ),
    "another modality": (
        with_content("0_Transformer/sentence_bert_config.json", {"modality_config": {"image": {}}}),
        "must have modality_config=.*Received: modality_config=",
    ),
    "arguments of the model": (
        with_content("0_Transformer/sentence_bert_config.json", {"model_args": {"attn": "eager"}}),
        "Received: model_args=",
    ),
    "no maximum length": (
        with_content("0_Transformer/sentence_bert_config.json", {"max_seq_length": "ten"}),
        "must have an integer of at least 2 as max_seq_length. Received: max_seq_length='ten'",
    ),
    "an adapter": (
        with_content("0_Transformer/adapter_config.json", {}),
        "must hold the weights of a model without an adapter; merge the adapter first",
    ),
    "another architecture": (
        with_content("0_Transformer/config.json", {"model_type": "mpnet"}),
        "must have a model_type among .*Received: model_type='mpnet'",
    ),
    "no settings of the pooling": (without_file("1_Pooling/config.json"), "1_Pooling/config.json"),
    "no list of modules": (without_file("modules.json"), "No such file.*modules.json"),
    "no weights": (without_file("0_Transformer/model.safetensors"), "must hold model.safetensors"),
}


@pytest.mark.parametrize("name", INVALID)
def test_unsupported_folders_are_rejected_by_name(transformer, name, tmp_path):
    change, message = INVALID[name]
    change(write(transformer, tmp_path / "it"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pipelines.from_hugging_face(tmp_path / "it")


def test_decoder_models_are_rejected(tmp_path):
    folder = interop.to_hugging_face(
        GPT(20, **SIZES, max_length=16, pad_id=None, end_id=0), tmp_path / "gpt2"
    )
    write(folder, tmp_path / "it")
    with pytest.raises(ValueError, match=r"of a class among .'BERT', 'ModernBERT'.. Received: a gpt2"):
        pipelines.from_hugging_face(tmp_path / "it")


FOLDERS = pathlib.Path(__file__).parents[1] / "interop" / "folders"
MEAN_OF_12 = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["RobertaModel", "DistilBertModel", "AlbertModel", "ModernBertModel"])
def test_other_encoders_equal_the_mean_of_the_states_of_transformers(name, tmp_path):
    write(FOLDERS / name, tmp_path / "it", MEAN_OF_12, [("Normalize", {}, {})])
    loaded = from_sentence_transformers(tmp_path / "it")
    expected = arrays.load(FOLDERS / name / "expected.npz")
    assert loaded.settings["normalize"]
    ids, real = expected["ids"], expected["ids"] != loaded.model.encoder.pad_id
    means = [states[mask].mean(0) for states, mask in zip(expected["outputs"], real, strict=True)]
    np.testing.assert_allclose(loaded.model(ids[:, None])[:, 0], means, **CLOSE)


ROLES = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
LINES = ["la casa azul", "the blue house"] * 4


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    """Return the folder of a RoBERTa and its tokenizer."""
    tokenizer = text.BytePairTokenizer.train(LINES, 280, special_tokens=ROLES)
    model = BERT(
        tokenizer.vocabulary_size,
        **SIZES,
        max_length=16,
        num_segments=1,
        pad_id=1,
        epsilon=1e-5,
        pooler=False,
    )
    folder = interop.to_hugging_face(randomised(model), tmp_path_factory.mktemp("it") / "it", "roberta")
    write_json(folder / "vocab.json", {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)})
    names = {"start": "bos", "pad": "pad", "end": "eos", "unknown": "unk", "mask": "mask"}
    write_json(
        folder / "tokenizer_config.json", {f"{name}_token": ROLES[role] for role, name in names.items()}
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, tokenizer.merges)]))
    return folder


def test_the_tokenizer_of_the_encoder_is_read(roberta, tmp_path):
    embed = pipelines.from_hugging_face(write(roberta, tmp_path / "it"))
    tokenizer = embed.tokenizer
    assert type(tokenizer) is text.BytePairTokenizer
    ids = token_ids(embed, "la</s>casa")
    la, casa = (tokenizer.tokenize(each).numpy().tolist() for each in ("la", "casa"))
    assert ids == [tokenizer.start_id, *la, tokenizer.end_id, *casa, tokenizer.end_id]  # a special token
    np.testing.assert_allclose(embed("la</s>casa"), states(embed.encoder, ids).mean(0), **CLOSE)


def test_lowercasing_needs_a_tokenizer_that_has_it(roberta, tmp_path):
    folder = write(roberta, tmp_path / "it", of_transformer={"do_lower_case": True})
    with pytest.raises(ValueError, match="must have do_lower_case=False .* for a BytePairTokenizer"):
        pipelines.from_hugging_face(folder)
    tokenizer = pipelines.from_hugging_face(write(roberta, tmp_path / "cased")).tokenizer
    assert pipelines.from_hugging_face(folder, tokenizer=tokenizer).tokenizer is tokenizer


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "name", ["PreTrainedTokenizerFast", "XLMRobertaTokenizer"]
)  # of paraphrase-multilingual, e5
def test_a_bert_with_the_tokenizer_of_xlm_roberta_has_its_padding(name, tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentence_piece(LINES, 30))
    size = text.MarianT5Tokenizer.from_files(tmp_path).vocabulary_size
    model = randomised(BERT(size, **SIZES, max_length=16, pad_id=0))  # as config.json has it
    transformer = interop.to_hugging_face(model, tmp_path / "bert")
    shutil.copy(tmp_path / "sentencepiece.bpe.model", transformer)
    folder = write(transformer, tmp_path / "e5")
    write_json(folder / "0_Transformer" / "tokenizer_config.json", {"tokenizer_class": name})
    embed = pipelines.from_hugging_face(folder)
    assert (embed.encoder.pad_id, embed.tokenizer.pad_id, embed.tokenizer.start_id) == (1, 1, 0)
    ids = [token_ids(embed, each) for each in LINES[:2]]
    expected = [states(embed.encoder, each).mean(0) for each in ids]
    np.testing.assert_allclose(embed(LINES[:2]), expected, **CLOSE)
