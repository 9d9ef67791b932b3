import hashlib
import json
import re
import unicodedata

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_transformer_serving as serving
from keras_transformer import text
from keras_transformer.text import SentencePieceTokenizer

CHARACTERS = "abcdeéñß¿ \n\r€😀\u00a0\u200b\ufeff"
if tuple(map(int, sentencepiece.__version__.split(".")[:3])) >= (0, 2, 3):
    CHARACTERS += "\t"  # earlier versions leave tabs out of their vocabularies
TEXTS = [
    "  abc dé ",
    "a b\tñ¿c\n",
    "ßé a\u00a0b",
    "€😀 e  cab",
    "\u200bbad\ufeff",
    "bead cab",
    "ab\r",
] * 3
WORDS = ["abc", "dé", "", "ñ¿c", "bead"]
MODELS = ("unigram", "bpe", "char", "word")


@pytest.fixture(scope="module")
def tokenizers():
    word_texts = [" ".join(WORDS), "  ".join(WORDS), " abc", "dé "]
    return {
        model: SentencePieceTokenizer.train(
            word_texts if model == "word" else TEXTS, 100, model, byte_fallback=False
        )
        for model in MODELS
    }


@pytest.fixture(scope="module")
def tokenizer(tokenizers):
    return tokenizers["unigram"]


def decoded(tensor):
    return [each.decode() for each in np.ravel(tensor.numpy()).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unigram", "bpe", "char"])
@given(texts=st.lists(st.text(CHARACTERS, max_size=20), max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_round_trip_is_lossless_for_trained_characters(tokenizers, model, texts):
    tokenizer = tokenizers[model]
    ids = tokenizer.tokenize(texts)
    assert ids.dtype == tf.int32
    assert ids.shape.as_list() == [len(texts), None]
    assert tokenizer.unknown_id not in ids.values.numpy()
    assert decoded(tokenizer.detokenize(ids)) == texts
    assert decoded(tokenizer.detokenize(tokenizer.encode(texts, add_start=True, add_end=True))) == texts


@pytest.mark.slow
@given(words=st.lists(st.sampled_from(WORDS), max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_word_model_round_trip_is_lossless_for_known_words(tokenizers, words):
    tokenizer = tokenizers["word"]
    assert decoded(tokenizer.detokenize(tokenizer.tokenize([" ".join(words)]))) == [" ".join(words)]


@pytest.fixture(scope="module")
def byte_tokenizers():
    """Train tokenizers with default arguments for each model type."""
    return {model: SentencePieceTokenizer.train(TEXTS, 400, model) for model in MODELS}


@pytest.fixture(scope="module")
def byte_tokenizer(byte_tokenizers):
    return byte_tokenizers["unigram"]


@pytest.mark.slow_variants
@pytest.mark.parametrize("model", MODELS)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))
        | st.text("a é☃😀\0\u2585⁇\n"),
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_the_round_trip_of_every_text_is_lossless_by_default(byte_tokenizers, model, texts):
    tokenizer = byte_tokenizers[model]
    ids = tokenizer.tokenize(texts)
    assert tokenizer.unknown_id not in ids.values.numpy()
    assert decoded(tokenizer.detokenize(ids)) == texts


@pytest.mark.slow_variants
@pytest.mark.parametrize("model", MODELS)
def test_the_round_trip_of_bytes_is_lossless_in_a_graph_and_when_served(byte_tokenizers, model):
    tokenizer = byte_tokenizers[model]
    texts = ["", " ", "☃", " ☃  uno ☃ ", "ab\0c\u2585 ⁇", "日本語\n😀", "  x"]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def round_trip(strings):
        return tokenizer.detokenize(tokenizer.encode(strings, add_end=True))

    assert decoded(round_trip(texts)) == texts
    served = serving_tokenizer(tokenizer)
    rows = tokenizer.tokenize(texts).to_list()
    assert [served.detokenize(row) for row in rows] == texts
    assert [served.tokenize(text) for text in texts] == rows


@pytest.mark.parametrize("model", MODELS)
def test_served_text_of_invalid_utf8_equals_the_graph(byte_tokenizers, model):
    tokenizer = byte_tokenizers[model]
    random = np.random.default_rng(0)
    parts = [tokenizer.piece_to_id(f"<0x{byte:02X}>") for byte in (0xC3, 0xA9, 0xE2, 0x96, 0x81, 0xF0, 0x20)]
    ids = [tokenizer.unknown_id, *parts * 8, *range(4, tokenizer.vocabulary_size)]
    rows = [random.choice(ids, random.integers(0, 9)).tolist() for _ in range(500)]
    served = serving_tokenizer(tokenizer)
    expected = decoded(tokenizer.detokenize(tf.ragged.constant(rows, dtype=tf.int32)))
    assert [served.detokenize(row) for row in rows] == expected


def serving_tokenizer(tokenizer):
    return serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": type(tokenizer).__name__})


def test_a_model_without_byte_fallback_has_unknown_characters(tokenizer):
    (ids,) = tokenizer.tokenize(["abc ☃"]).to_list()
    assert ids[-1] == tokenizer.unknown_id
    assert decoded(tokenizer.detokenize([ids])) == ["abc  ⁇ "]


@pytest.mark.parametrize("model", MODELS)
def test_training_is_deterministic(model):
    first, second = (SentencePieceTokenizer.train(iter(TEXTS), 300, model).model_bytes for _ in range(2))
    assert first == second


def test_special_ids_come_first_and_pieces_round_trip(tokenizer):
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id) == (0, 1, 2, 3)
    assert tokenizer.vocabulary_size <= 100
    pieces = tokenizer.pieces("abc dé")
    assert "".join(pieces) == "▁abc▁dé"
    assert [tokenizer.piece_to_id(piece) for piece in pieces] == tokenizer.tokenize("abc dé").numpy().tolist()
    assert [tokenizer.id_to_piece(tokenizer.piece_to_id(piece)) for piece in pieces] == pieces
    assert tokenizer.piece_to_id("never seen") == tokenizer.unknown_id


def test_text_cannot_forge_special_ids():
    tokenizer = SentencePieceTokenizer.train(["< / > s p a d u n k"], 300, "char")
    ids = tokenizer.tokenize(["<s> </s> <pad> <unk>"]).values.numpy()
    assert not set(ids.tolist()) & {0, 1, 2, 3}


def test_eager_graph_and_string_inputs_agree(tokenizer):
    texts = ["abc", "", " dé  a"]
    eager = tokenizer.tokenize(texts)
    specification = [tf.TensorSpec([None], tf.string)]
    for same in (
        tokenizer.tokenize(tf.constant(texts)),
        tokenizer.tokenize(np.array(texts)),
        tokenizer.tokenize([each.encode() for each in texts]),
        tf.function(tokenizer.tokenize, specification)(tf.constant(texts)),
    ):
        assert same.to_list() == eager.to_list()
    encode = tf.function(lambda x: tokenizer.encode(x, add_start=True, add_end=True), specification)
    expected = tokenizer.encode(texts, add_start=True, add_end=True)
    np.testing.assert_array_equal(encode(tf.constant(texts)), expected)
    detokenize = tf.function(tokenizer.detokenize, [tf.TensorSpec([None, None], tf.int32)])
    assert decoded(detokenize(expected)) == decoded(tokenizer.detokenize(expected)) == texts


def test_a_single_str_has_no_batch_axis(tokenizer):
    ids = tokenizer.tokenize("abc")
    assert ids.numpy().tolist() == tokenizer.tokenize(["abc"]).to_list()[0]
    assert tokenizer.encode("abc", add_end=True).numpy().tolist() == [*ids.numpy().tolist(), 3]
    assert tokenizer.detokenize(ids).shape == ()
    assert tokenizer.detokenize(ids).numpy() == b"abc"


def test_encode_is_tokens_between_special_ids_and_padding(tokenizer):
    rows = tokenizer.tokenize(["abc dé", ""]).to_list()
    length = len(rows[0])
    encoded = tokenizer.encode(["abc dé", ""], add_start=True, add_end=True).numpy().tolist()
    assert encoded == [[2, *rows[0], 3], [2, 3] + [0] * length]
    assert tokenizer.encode(["abc dé", ""]).numpy().tolist() == [rows[0], [0] * length]
    assert tokenizer.encode([]).shape == (0, 0)
    assert tokenizer.detokenize([]).numpy() == b""


def test_detokenize_stops_at_the_first_end_and_skips_padding_and_start(tokenizer):
    a, b = tokenizer.tokenize(["abc", "dé"]).to_list()
    rows = [[0, 2, *a, 0, 2, 3, *b, 3], [3, *a], [0, 2], [*b, 0, 0]]
    expected = ["abc", "", "", "dé"]
    ragged = tf.ragged.constant(rows, dtype=tf.int32)
    assert decoded(tokenizer.detokenize(rows)) == expected
    assert decoded(tokenizer.detokenize(ragged)) == expected
    assert decoded(tokenizer.detokenize(ragged.to_tensor())) == expected
    assert decoded(tokenizer.detokenize(tf.cast(ragged, tf.int64))) == expected


def test_detokenize_keeps_the_axis_of_hypotheses(tokenizer):
    ids = tokenizer.encode(["abc", "dé", "", "bead"], add_end=True)
    by_two = tf.reshape(ids, [2, 2, -1])
    texts = tokenizer.detokenize(by_two)
    assert texts.shape == (2, 2)
    assert decoded(texts) == ["abc", "dé", "", "bead"]
    graph = tf.function(tokenizer.detokenize, [tf.TensorSpec([None, None, None], tf.int32)])
    assert graph.get_concrete_function().structured_outputs.shape.rank == 2
    np.testing.assert_array_equal(graph(by_two), texts)


def test_invalid_bytes_in_tensors_become_replacement_characters(byte_tokenizer):
    def round_trip(texts):
        return byte_tokenizer.detokenize(byte_tokenizer.tokenize(texts))

    broken = tf.constant([b"a\xffb", b"abc\xc3"])
    assert decoded(round_trip(broken)) == ["a\ufffdb", "abc\ufffd"]
    assert decoded(tf.function(round_trip)(broken)) == ["a\ufffdb", "abc\ufffd"]


def test_a_saved_model_contains_the_tokenizer(tokenizer, tmp_path):
    class Server(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            ids = self.tokenizer.encode(texts, add_end=True)
            return {"ids": ids, "texts": self.tokenizer.detokenize(ids)}

    tf.saved_model.save(Server(), tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    texts = ["abc dé", " a", ""]
    served = loaded.serve(tf.constant(texts))
    np.testing.assert_array_equal(served["ids"], tokenizer.encode(texts, add_end=True))
    assert decoded(served["texts"]) == texts


def test_a_tokenizer_can_be_created_inside_a_graph(tokenizer):
    made = []

    @tf.function
    def trace():
        made.append(SentencePieceTokenizer(tokenizer.model_bytes))
        return made[0].tokenize(["abc"]).values

    np.testing.assert_array_equal(trace(), made[0].tokenize("abc"))


def test_training_reads_files_line_by_line(tmp_path):
    texts = ["hola mundo", "adiós", "qué tal"]
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes("hola mundo\r\n\nadiós\n".encode())
    second.write_bytes("qué tal".encode())
    expected = SentencePieceTokenizer.train(texts, 300).model_bytes
    assert SentencePieceTokenizer.train([first, second], 300).model_bytes == expected
    assert SentencePieceTokenizer.train([first, "qué tal".encode()], 300).model_bytes == expected
    assert SentencePieceTokenizer.train(second, 300, "char").vocabulary_size == 260 + len(set("qué tal"))


@pytest.mark.parametrize(("byte_fallback", "smallest"), [(True, 4 + 256 + 8), (False, 4 + 8)])
def test_a_vocabulary_that_is_too_small_names_the_smallest(byte_fallback, smallest):
    texts, options = ["hola mundo"], {"byte_fallback": byte_fallback}
    expectation = r"`vocabulary_size` must be at least (\d+) for these texts.*Received: vocabulary_size=10"
    with pytest.raises(ValueError, match=expectation) as error:
        SentencePieceTokenizer.train(texts, 10, **options)
    assert "sentencepiece" not in str(error.value)
    smallest = int(re.search(expectation, str(error.value))[1])
    assert SentencePieceTokenizer.train(texts, smallest, **options).vocabulary_size == smallest


def test_training_uses_long_texts_and_reserved_characters():
    tokenizer = SentencePieceTokenizer.train(["a" * 50_000 + "b", "c\u2585d"], 300, "char")
    assert decoded(tokenizer.detokenize(tokenizer.tokenize(["abcd"]))) == ["abcd"]


SAME = (
    lambda line: unicodedata.normalize("NFD", line),
    lambda line: line.replace(" ", "\u00a0"),
    lambda line: line.replace(" ", "\t"),
    lambda line: line.replace(" ", "\n", 1),
    lambda line: line.replace(" ", " \r\n", 1),
    lambda line: "\ufeff" + line,
    lambda line: f" {line}  ",
    lambda line: line.replace(" ", "\u3000\u200b "),
)


@pytest.mark.parametrize("model", MODELS)
def test_texts_that_look_the_same_have_the_same_ids_with_nmt_nfkc(model):
    line = "¿Dónde está la estación?"
    variants = [line, *(variant(line) for variant in SAME)]
    tokenizer = SentencePieceTokenizer.train([line, "uno dos"], 400, model, normalization="nmt_nfkc")
    rows = tf.function(tokenizer.tokenize)(tf.constant(variants)).to_list()
    served = serving_tokenizer(tokenizer)
    assert rows == rows[:1] * len(rows) == [served.tokenize(variant) for variant in variants]
    assert decoded(tokenizer.detokenize(rows)) == [line] * len(rows)


def test_normalization_is_applied_on_request():
    tokenizer = SentencePieceTokenizer.train(["\uff46\uff55 full"], 300, "char", normalization="nfkc")
    assert decoded(tokenizer.detokenize(tokenizer.tokenize(["\uff46\uff55"]))) == ["fu"]


def test_models_trained_with_other_special_ids_are_supported(tmp_path):
    def trained(**ids):
        prefix = str(tmp_path / "other")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["abc abd"]), model_prefix=prefix, vocab_size=9, minloglevel=2, **ids
        )
        return (tmp_path / "other.model").read_bytes()

    with pytest.raises(ValueError, match="`model` must have a padding id"):
        SentencePieceTokenizer(trained())
    t5_ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    tokenizer = SentencePieceTokenizer(trained(**t5_ids))
    assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.unknown_id, tokenizer.start_id) == (0, 1, 2, -1)
    assert decoded(tokenizer.detokenize(tokenizer.encode(["abc", "ab"], add_end=True))) == ["abc", "ab"]
    with pytest.raises(ValueError, match=r"`add_start` must be False.*Received: add_start=True"):
        tokenizer.encode(["abc"], add_start=True)


@pytest.mark.parametrize("load", [SentencePieceTokenizer.load, text.load])
def test_a_loaded_tokenizer_equals_the_saved_one(tokenizer, tmp_path, load):
    folder = tmp_path / "deep" / "folder"
    tokenizer.save(folder)
    tokenizer.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["sentencepiece.model", "tokenizer.json"]
    description = json.loads((folder / "tokenizer.json").read_text())
    assert description["sha256"] == hashlib.sha256(tokenizer.model_bytes).hexdigest()
    assert description["class_name"] == "SentencePieceTokenizer"
    assert description["vocabulary_size"] == tokenizer.vocabulary_size
    loaded = load(folder)
    assert loaded.model_bytes == tokenizer.model_bytes
    assert loaded.tokenize(["abc dé"]).to_list() == tokenizer.tokenize(["abc dé"]).to_list()


@pytest.mark.parametrize("load", [SentencePieceTokenizer.load, text.load])
def test_load_rejects_missing_and_damaged_files(tokenizer, tmp_path, load):
    with pytest.raises(
        FileNotFoundError, match=r"`folder` must hold tokenizer.json.*Received: folder='.*missing'"
    ):
        load(tmp_path / "missing")
    tokenizer.save(tmp_path)
    file = tmp_path / "sentencepiece.model"
    file.write_bytes(tokenizer.model_bytes + b"x")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=rf"sentencepiece.model must have the sha256 \w+. Found: {found}"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"sentencepiece.model must exist"):
        load(tmp_path)
    description = tmp_path / "tokenizer.json"
    saved = json.loads(description.read_text())
    for content, message in (
        ({**saved, "class_name": "Other"}, "'Other'"),
        ({**saved, "format_version": 99}, "must be of format 1;.*Received: 99"),
        ({"class_name": "SentencePieceTokenizer"}, "Missing:.*sha256"),
        ([], "Missing"),
    ):
        description.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
    description.write_text("{")
    with pytest.raises(ValueError, match="must be JSON"):
        load(tmp_path)


def test_a_failed_save_keeps_the_old_files(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    other = SentencePieceTokenizer.train(["other"], 300, "char")
    with pytest.raises(OSError, match="disk full"):
        other.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentencepiece.model", "tokenizer.json"]
    assert SentencePieceTokenizer.load(tmp_path).model_bytes == tokenizer.model_bytes


def test_tokenizers_work_after_setting_the_seed():
    tokenizer = SentencePieceTokenizer.train(["hola mundo"], 300, "char")
    before = tokenizer.tokenize(["hola"]).to_list()
    keras.utils.set_random_seed(1)  # clears TensorFlow's cache of kernels
    assert tokenizer.tokenize(["hola"]).to_list() == before
