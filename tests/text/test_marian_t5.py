import base64
import json

import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text import MarianT5Tokenizer, from_hugging_face
from keras_transformer.text.tokenizers.character_map import character_map
from keras_transformer.text.tokenizers.unigram_files import sentence_piece_model
from tests.sentence_pieces import T5_IDS, sentence_piece

TEXTS = ["to be or not to be", "la casa azul", "the blue house", "¿dónde está el perro?", "one two"] * 3
SENTINELS = [f"<extra_id_{number}>" for number in range(3)]


@pytest.fixture(scope="module")
def t5_model():
    return sentence_piece(TEXTS, 60, **T5_IDS)


@pytest.fixture(scope="module")
def marian_models():
    return sentence_piece(TEXTS[1::2], 40), sentence_piece(TEXTS[::2], 40)


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id_) for id_ in range(processor.vocab_size())]


def write_t5(folder, model, **config):
    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 3, **config}))
    return folder


def write_marian(folder, models, **config):
    """Write a folder with pieces of both languages in alphabetical order, one missing, then padding."""
    folder.mkdir(exist_ok=True)
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    both = sorted({piece for model in models for piece in pieces_of(model)[3:]} - {"z"})
    pieces = ["</s>", "<unk>", *both, ">>fra<<", ">>spa<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class TestT5:
    def test_sampled_segmentations_decode_to_the_same_texts_with_sentinels(self, t5_model, tmp_path):
        tokenizer = MarianT5Tokenizer.from_files(write_t5(tmp_path / "it", t5_model))
        texts = [*TEXTS, "to <extra_id_1> or"]
        usual = tokenizer.tokenize(texts)
        found = [tokenizer.sample(texts, 0.1, [0, 0]) for _ in range(2)]
        assert found[0].to_list() != found[1].to_list()
        for ids in found:
            assert (ids == tokenizer.piece_to_id("<extra_id_1>")).values.numpy().sum() == 1
            assert tokenizer.detokenize(ids).numpy().tolist() == tokenizer.detokenize(usual).numpy().tolist()

    def test_sentinels_follow_the_model_ids_in_reverse(self, t5_model, tmp_path):
        tokenizer = MarianT5Tokenizer.from_files(write_t5(tmp_path / "it", t5_model))
        processor = sentencepiece.SentencePieceProcessor(model_proto=t5_model)
        assert tokenizer.tokenize(TEXTS).to_list() == processor.encode(TEXTS)
        assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.unknown_id, tokenizer.start_id) == (0, 1, 2, 0)
        size = processor.vocab_size()
        assert [tokenizer.piece_to_id(sentinel) for sentinel in SENTINELS] == [size + 2, size + 1, size]
        assert tokenizer.vocabulary_size == size + 3

    @pytest.mark.slow
    def test_sentinels_in_texts_round_trip(self, t5_model, tmp_path):
        tokenizer = MarianT5Tokenizer.from_files(write_t5(tmp_path / "it", t5_model))
        first, second, third = (tokenizer.piece_to_id(sentinel) for sentinel in SENTINELS)
        to, be = tokenizer.tokenize(["to", "be or"]).to_list()
        text = "to <extra_id_0> be or<extra_id_2><extra_id_1>"
        expected = [*to, first, *be, third, second]
        assert tokenizer.tokenize(text).numpy().tolist() == expected
        assert tf.function(tokenizer.tokenize)(tf.constant([text])).to_list() == [expected]
        assert tokenizer.detokenize(expected).numpy() == b"to<extra_id_0> be or<extra_id_2><extra_id_1>"
        assert tokenizer.end_id not in tokenizer.tokenize("to</s>").numpy()

    def test_unused_ids_decode_to_nothing(self, t5_model, tmp_path):
        folder = write_t5(tmp_path / "it", t5_model)
        tokenizer = MarianT5Tokenizer.from_files(folder, vocabulary_size=100)
        known = len(tokenizer.vocabulary)
        assert tokenizer.vocabulary_size == 100 > known
        to = tokenizer.tokenize("to").numpy().tolist()
        assert tokenizer.detokenize([*to, 99, known]).numpy() == b"to"
        assert {99, known} < set(tokenizer.empty_ids)
        assert MarianT5Tokenizer.from_model_bytes(tokenizer.model_bytes).vocabulary_size == 100
        with pytest.raises(
            ValueError,
            match=f"`vocabulary_size` must be at least {known}.*Received: vocabulary_size={known - 1}",
        ):
            MarianT5Tokenizer.from_files(folder, vocabulary_size=known - 1)

    def test_texts_round_trip(self, t5_model, tmp_path):
        tokenizer = MarianT5Tokenizer.from_files(write_t5(tmp_path / "it", t5_model))
        assert [each.decode() for each in tokenizer.detokenize(tokenizer.tokenize(TEXTS)).numpy()] == TEXTS
        assert (
            tokenizer.tokenize("  to   be ").numpy().tolist() == tokenizer.tokenize("to be").numpy().tolist()
        )
        assert "\u2047" in tokenizer.detokenize(tokenizer.tokenize("to ☃ be")).numpy().decode()

    def test_a_json_model_gives_equal_ids(self, t5_model, tmp_path):
        expected = MarianT5Tokenizer.from_files(write_t5(tmp_path / "old", t5_model))
        processor = sentencepiece.SentencePieceProcessor(model_proto=t5_model)
        scores = [[piece, processor.get_score(id_)] for id_, piece in enumerate(pieces_of(t5_model))]
        added = [{"id": id_, "content": expected.vocabulary[id_]} for id_ in (0, 1, 2)]
        added += [{"id": expected.piece_to_id(sentinel), "content": sentinel} for sentinel in SENTINELS]
        added.sort(key=lambda token: token["id"])  # their ids follow their order
        spec = sentencepiece_model_pb2.ModelProto.FromString(t5_model).normalizer_spec
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        content = {
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "WhitespaceSplit"},
                    {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
                ],
            },
            "model": {"type": "Unigram", "unk_id": 2, "vocab": scores},
            "decoder": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
            "added_tokens": added,
        }
        folder = tmp_path / "new"
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps(content))
        found = MarianT5Tokenizer.from_files(folder)
        assert found.vocabulary == expected.vocabulary
        texts = [*TEXTS, "to <extra_id_1> be", "  to   be ", "to ☃ be", "</s>", ""]
        assert found.tokenize(texts).to_list() == expected.tokenize(texts).to_list()
        assert (found.pad_id, found.end_id, found.unknown_id) == (0, 1, 2)
        # A decoder of its own keeps the space that begins the first word.
        content["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}
        (folder / "tokenizer.json").write_text(json.dumps(content))
        with_space = MarianT5Tokenizer.from_files(folder)
        assert with_space.tokenize(texts).to_list() == expected.tokenize(texts).to_list()
        assert with_space.detokenize(expected.tokenize("to be")).numpy() == b" to be"
        # `tokenizers` finds this piece of the model inside words as well.
        added[0]["single_word"] = True
        (folder / "tokenizer.json").write_text(json.dumps(content))
        received = f"Received: '{expected.vocabulary[0]}' with single_word=True"
        with pytest.raises(ValueError, match=f"no pieces of its model, or single_word=False. {received}"):
            MarianT5Tokenizer.from_files(folder)

    def test_a_json_model_normalizes_equally(self, t5_model):
        parsed = sentencepiece_model_pb2.ModelProto.FromString(t5_model)
        vocabulary = [(piece.piece, piece.score) for piece in parsed.pieces]
        charsmap = base64.b64encode(parsed.normalizer_spec.precompiled_charsmap).decode()
        steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}]
        written = sentence_piece_model(vocabulary, 2, ("<pad>", "</s>"), character_map(steps, False))
        found, expected = (
            sentencepiece.SentencePieceProcessor(model_proto=model) for model in (written, t5_model)
        )
        assert found.normalize("ﬁ  ①") == expected.normalize("ﬁ  ①") == "\u2581fi\u25811"
        assert [found.is_control(id_) for id_ in range(4)] == [True, True, False, False]


class TestMarian:
    def test_ids_come_from_the_vocabulary_for_any_model(self, marian_models, tmp_path):
        folder = write_marian(tmp_path / "it", marian_models)
        vocabulary = json.loads((folder / "vocab.json").read_text())
        for target, model in zip((False, True), marian_models, strict=True):
            tokenizer = MarianT5Tokenizer.from_files(folder, target=target)
            cut = sentencepiece.SentencePieceProcessor(model_proto=model).encode(TEXTS, out_type=str)
            expected = [[vocabulary.get(piece, vocabulary["<unk>"]) for piece in row] for row in cut]
            assert tokenizer.tokenize(TEXTS).to_list() == expected
            assert tokenizer.pad_id == tokenizer.start_id == len(vocabulary) - 1 == vocabulary["<pad>"]
            assert (tokenizer.end_id, tokenizer.unknown_id) == (0, 1)

    def test_both_tokenizers_detokenize_equally(self, marian_models, tmp_path):
        folder = write_marian(tmp_path / "it", marian_models)
        source = MarianT5Tokenizer.from_files(folder)
        target = MarianT5Tokenizer.from_files(folder, target=True)
        ids = target.encode(["the blue house"], add_end=True)
        assert (
            source.detokenize(ids).numpy().tolist()
            == target.detokenize(ids).numpy().tolist()
            == [b"the blue house"]
        )

    def test_a_text_may_begin_with_a_language_code(self, marian_models, tmp_path):
        tokenizer = MarianT5Tokenizer.from_files(write_marian(tmp_path / "it", marian_models))
        code, plain = tokenizer.piece_to_id(">>spa<<"), tokenizer.tokenize("one two").numpy().tolist()
        assert tokenizer.tokenize(">>spa<< one two").numpy().tolist() == [code, *plain]
        assert tokenizer.tokenize(">>spa<<one two").numpy().tolist() == [code, *plain]
        assert code not in tokenizer.tokenize("one >>spa<< two").numpy()
        assert tokenizer.tokenize([">>spa<<>>fra<< one"]).to_list()[0][0] == code


def test_a_character_of_the_target_language_has_its_id_in_sources(tmp_path):
    """The source model lacks the piece "u", which the vocabulary has for the target language."""
    models = (
        sentence_piece(["la casa", "el gato"], 20, model_type="char"),
        sentence_piece(["blue house"], 14, model_type="char"),
    )
    tokenizer = MarianT5Tokenizer.from_files(write_marian(tmp_path / "it", models))
    assert tokenizer.pieces("la u☃") == ["\u2581", "l", "a", "\u2581", "<unk>"]
    assert tokenizer.pieces("la u") == ["\u2581", "l", "a", "\u2581", "u"]
    assert tokenizer.pad_id not in tokenizer.tokenize("la <pad>").numpy()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ({"content": "<x>", "single_word": True}, "single_word=False. Received: '<x>' with single_word=True"),
        ({"content": "<x>"}, "number the added token '<x>' with .* after the others. Received: 40"),
    ],
)
def test_added_tokens_that_transformers_reads_in_another_way_are_errors(token, message, tmp_path):
    folder = write_marian(tmp_path / "it", (sentence_piece(["la casa"], 16, model_type="char"),) * 2)
    config = {"tokenizer_class": "MarianTokenizer", "added_tokens_decoder": {"40": token}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        MarianT5Tokenizer.from_files(folder)


def test_the_sentence_piece_file_of_xlm_roberta_has_the_ids_of_fairseq(tmp_path):
    model = sentence_piece(TEXTS, 40)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    added = {"45": {"content": "<x>", "special": False, "lstrip": True}}
    config = {"tokenizer_class": "XLMRobertaTokenizer", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = from_hugging_face(tmp_path)
    assert tokenizer.vocabulary[:4] == ("<s>", "<pad>", "</s>", "<unk>")
    assert tokenizer.vocabulary[-2:] == ("<mask>", "<x>")
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for line in [*TEXTS[:5], "☃ to", " two  spaces "]:
        expected = [
            id_ + 1 if id_ else 3 for id_ in processor.encode(line)
        ]  # fairseq has a padding token besides
        assert tokenizer.tokenize(line).numpy().tolist() == expected
        assert tokenizer.tokenize(f"{line} <x>").numpy().tolist() == [
            *expected,
            len(tokenizer.vocabulary) - 1,
        ]
