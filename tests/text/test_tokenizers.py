"""Properties that every tokenizer has."""

import hashlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import text
from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    MarianT5Tokenizer,
    OpenAIGPTTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)

TEXTS = ["hello world, it's here", "¿qué hay? ¡Adiós!", "hello ünder the wörld", "don't  say\thello"] * 2
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
GPT2_ROLES = dict.fromkeys(("pad", "unknown", "start", "end"), "<|endoftext|>")


def with_vocabulary():
    """A tokenizer with pieces in another order than the model, then a sentinel and unused ids."""
    trained = SentencePieceTokenizer.train(TEXTS, 60, byte_fallback=False)
    pieces = [trained.id_to_piece(id_) for id_ in range(trained.vocabulary_size)]
    roles = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}
    return MarianT5Tokenizer(
        trained.model_bytes,
        [*pieces[:4], *pieces[:3:-1], "<extra_id_0>"],
        special_tokens=roles,
        tokens_in_text=["<extra_id_0>"],
        unused=3,
    )


@pytest.fixture(scope="module")
def tokenizers():
    return {
        "sentence_piece": SentencePieceTokenizer.train(TEXTS, 320),
        "word_piece": WordPieceTokenizer.train(TEXTS, 80),
        "byte_pair": BytePairTokenizer.train(TEXTS, 280),
        "byte": ByteTokenizer(),
        "character_pair": OpenAIGPTTokenizer.train(TEXTS, 100),
        "vocabulary": with_vocabulary(),
    }


@pytest.fixture(params=["sentence_piece", "word_piece", "byte_pair", "byte", "character_pair", "vocabulary"])
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


def decoded(tensor):
    return [each.decode() for each in np.ravel(tensor.numpy()).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byte_pair", "byte"])
@given(texts=st.lists(ANY_TEXT, max_size=4))
@settings(max_examples=60)
def test_bytes_cover_every_text(tokenizers, name, texts):
    tokenizer = tokenizers[name]
    ids = tokenizer.tokenize(texts)
    assert ids.dtype == tf.int32
    assert decoded(tokenizer.detokenize(ids)) == texts
    assert decoded(tokenizer.detokenize(tokenizer.encode(texts, add_start=True, add_end=True))) == texts


@pytest.mark.slow
@given(texts=st.lists(st.text(st.sampled_from("helo wrdítqu¿?!,' \t\n\0中"), max_size=20), max_size=4))
@settings(max_examples=60)
def test_round_trips_preserve_words(tokenizers, texts):
    tokenizer = tokenizers["word_piece"]
    ids = tokenizer.tokenize(texts)
    known = [text for text, row in zip(texts, ids.to_list(), strict=True) if tokenizer.unknown_id not in row]
    made = tokenizer.detokenize(tokenizer.tokenize(known))
    assert tokenizer.tokenize(made).to_list() == tokenizer.tokenize(known).to_list()


@pytest.mark.slow_variants
def test_eager_graph_and_saved_model_agree(tokenizer, tmp_path):
    class Server(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            ids = self.tokenizer.encode(texts, add_start=True, add_end=True)
            return {"ids": ids, "texts": self.tokenizer.detokenize(ids)}

    eager = tokenizer.encode([*TEXTS, ""], add_start=True, add_end=True)
    texts = tf.constant([*TEXTS, ""])
    server = Server()
    tf.saved_model.save(server, tmp_path)
    for module in (server, tf.saved_model.load(tmp_path)):
        served = module.serve(texts)
        np.testing.assert_array_equal(served["ids"], eager)
        np.testing.assert_array_equal(served["texts"], tokenizer.detokenize(eager))
        keras.utils.set_random_seed(1)  # clears TensorFlow's cache of kernels
    np.testing.assert_array_equal(tokenizer.encode(texts, add_start=True, add_end=True), eager)


@pytest.mark.slow_variants
def test_tokenizers_work_inside_tf_data(tokenizer):
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3).map(tokenizer.tokenize)
    assert [row for batch in data for row in batch.to_list()] == tokenizer.tokenize(TEXTS).to_list()


@pytest.mark.slow_variants
def test_rows_do_not_depend_on_each_other(tokenizer):
    single = [tokenizer.tokenize(each).numpy().tolist() for each in ["", *TEXTS, " ", ""]]
    assert tokenizer.tokenize(["", *TEXTS, " ", ""]).to_list() == single
    assert tokenizer.tokenize([]).to_list() == []
    assert tokenizer.encode([]).shape == (0, 0)
    assert tokenizer.detokenize([]).numpy() == b""


def test_encode_is_tokens_between_special_ids_and_padding(tokenizer):
    row = tokenizer.tokenize(["hello"]).to_list()[0]
    start, end, pad = tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id
    encoded = tokenizer.encode(["hello", ""], add_start=True, add_end=True).numpy().tolist()
    assert encoded == [[start, *row, end], [start, end] + [pad] * len(row)]
    assert tokenizer.encode("hello", add_end=True).numpy().tolist() == [*row, end]
    rows = [[pad, start, *row, pad, end, *row], [end, *row], [*row, pad]]
    assert decoded(tokenizer.detokenize(rows)) == ["hello", "", "hello"]
    hypotheses = tf.reshape(tokenizer.encode(["hello", "say", "the", "it"]), [2, 2, -1])
    assert decoded(tokenizer.detokenize(hypotheses)) == ["hello", "say", "the", "it"]


def test_special_ids_come_first_and_text_cannot_forge_them(tokenizer):
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id) == (0, 1, 2, 3)
    forged = [tokenizer.id_to_piece(id_) for id_ in range(4)]
    ids = tokenizer.tokenize(["x".join(forged)]).values.numpy().tolist()
    assert not {0, 2, 3} & set(ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["word_piece", "byte_pair", "byte", "character_pair"])
def test_special_tokens_in_texts_are_recognised_on_request(tokenizers, name):
    plain = tokenizers[name]
    content = json.loads(plain.model_bytes)
    content["settings"]["special_tokens_in_text"] = True
    special = type(plain).from_model_bytes(json.dumps(content).encode())
    pad, end = plain.id_to_piece(plain.pad_id), plain.id_to_piece(plain.end_id)
    hello, say = plain.tokenize(["hello", "say\0hello"]).to_list()
    texts = [f"hello{end}say\0hello{pad}{pad}", "", end, "hello"]
    expected = [[*hello, plain.end_id, *say, plain.pad_id, plain.pad_id], [], [plain.end_id], hello]
    assert special.tokenize(texts).to_list() == expected
    assert tf.function(special.tokenize)(tf.constant(texts)).to_list() == expected
    assert plain.end_id not in plain.tokenize(texts).values.numpy()


def test_pieces_correspond_to_ids(tokenizer):
    pieces = tokenizer.pieces("hello world")
    ids = [tokenizer.piece_to_id(piece) for piece in pieces]
    assert ids == tokenizer.tokenize("hello world").numpy().tolist()
    assert [tokenizer.id_to_piece(id_) for id_ in ids] == pieces
    assert tokenizer.piece_to_id("never seen") == tokenizer.unknown_id


def test_empty_ids_contain_the_ids_of_spaces(tokenizer):
    assert set(tokenizer.tokenize(["  ", " "]).values.numpy().tolist()) <= set(tokenizer.empty_ids)
    assert not set(tokenizer.tokenize("hello").numpy().tolist()) <= set(tokenizer.empty_ids)
    others = set(tokenizer.empty_ids) - {tokenizer.unknown_id}
    assert all(not tokenizer.detokenize([id_]).numpy().strip() for id_ in others)


def test_ids_outside_the_vocabulary_decode_to_unknown_in_a_graph(tokenizer):
    outside = [-1, 10_000, 2**40]
    graph = tf.function(tokenizer.detokenize)(tf.constant([[5, id_] for id_ in outside], "int64"))
    assert decoded(graph) == decoded(tokenizer.detokenize([[5, tokenizer.unknown_id]] * len(outside)))


def test_invalid_bytes_in_tensors_become_replacement_characters(tokenizer):
    broken, replaced = (tokenizer.tokenize(tf.constant([each])) for each in (b"a\xffb", "a\ufffdb"))
    assert broken.to_list() == replaced.to_list()


@pytest.mark.slow_variants
def test_a_loaded_tokenizer_equals_the_saved_one(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new")
    tokenizer.save(tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        [tokenizer.file_name, "tokenizer.json"]
    )
    description = json.loads((tmp_path / "new" / "tokenizer.json").read_text())
    assert description["class_name"] == type(tokenizer).__name__
    assert description["sha256"] == tokenizer.sha256 == hashlib.sha256(tokenizer.model_bytes).hexdigest()
    for load in (type(tokenizer).load, text.load):
        loaded = load(tmp_path / "new")
        assert type(loaded) is type(tokenizer)
        assert loaded.model_bytes == tokenizer.model_bytes
        assert loaded.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()
    other = ByteTokenizer if type(tokenizer) is WordPieceTokenizer else WordPieceTokenizer
    with pytest.raises(ValueError, match=f"must name the class '{other.__name__}'"):
        other.load(tmp_path / "new")
    (tmp_path / "new" / tokenizer.file_name).write_bytes(tokenizer.model_bytes[:-5])
    with pytest.raises(ValueError, match="must have the sha256"):
        text.load(tmp_path / "new")


@pytest.mark.slow_variants
def test_a_tokenizer_can_be_created_inside_a_graph(tokenizer):
    made = []

    @tf.function
    def trace():
        made.append(type(tokenizer).from_model_bytes(tokenizer.model_bytes))
        return made[0].tokenize(["hello"]).values

    np.testing.assert_array_equal(trace(), made[0].tokenize("hello"))


@pytest.mark.slow_variants
@pytest.mark.parametrize("cls", [WordPieceTokenizer, BytePairTokenizer, OpenAIGPTTokenizer])
def test_training_is_deterministic_and_reads_files(cls, tmp_path):
    (tmp_path / "a.txt").write_bytes("\r\n".join(TEXTS[:4]).encode())
    (tmp_path / "b.txt").write_bytes("\n".join(TEXTS[4:]).encode() + b"\n")
    expected = cls.train(TEXTS, 300).model_bytes
    assert cls.train(iter(TEXTS), 300).model_bytes == expected
    assert cls.train([tmp_path / "a.txt", *TEXTS[4:]], 300).model_bytes == expected
    assert cls.train([tmp_path / "b.txt", tmp_path / "a.txt"], 300).model_bytes == expected


def test_ids_outside_the_vocabulary_decode_to_nothing_without_an_unknown_id():
    tokenizer = ByteTokenizer({"pad": "<pad>"})
    assert (tokenizer.start_id, tokenizer.end_id, tokenizer.unknown_id) == (-1, -1, -1)
    assert decoded(tf.function(tokenizer.detokenize)(tf.constant([[98, 500, 99]]))) == ["ab"]


@pytest.mark.slow
def test_one_token_may_be_all_special_tokens():
    tokenizer = BytePairTokenizer.train(TEXTS, 280, special_tokens=GPT2_ROLES)
    ids = tokenizer.encode(["hello", ""], add_start=True, add_end=True)
    assert tokenizer.pad_id == tokenizer.start_id == tokenizer.end_id == 0
    assert decoded(tokenizer.detokenize(ids)) == ["hello", ""]
    assert decoded(tokenizer.detokenize(tokenizer.encode(["hello", "a"], add_end=True))) == ["hello", "a"]
