"""Ids and decoded texts equal the `tokenizers` library on arbitrary Unicode."""

import random

import pytest
import tensorflow as tf

from keras_transformer.text import BytePairTokenizer, OpenAIGPTTokenizer, WordPieceTokenizer
from keras_transformer.text.pretokenizers.bert import BertWords
from keras_transformer.text.pretokenizers.patterns import GPT_2, Words
from keras_transformer.text.tokenizers import byte_pair, openai_gpt, word_piece
from keras_transformer.text.training import pair_merges

tokenizers = pytest.importorskip("tokenizers")

WORDS = """
's 't 're 've 'm 'll 'd 'S ' '' 'r 'l don't ## ##a [ [UNK [SEP] [MASK] <s> </s> 3.14 é ñ İ ß Σ ﬁ 각 中文 日本語 ไทย
العربية שלום ٣٤ ४२ ½ ² Ⅷ １２ 👍🏽 🇪🇸
"""
TRICKS = [
    *WORDS.split(),
    *[
        " ",
        "  ",
        "   ",
        " '",
        "\t",
        "\n",
        "\r\n",
        "\xa0",
        "\u3000",
        "\u2028",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\x85",
    ],
    *["\x1c", "\0", "\u200f", "\u202e", "\u0301", "\u0327", "\u0345", "\u302e", "\ufffd", "\U0001e944\u0334"],
    *["👨\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "\u0300\u0315\u0300", "a" * 99, "b" * 101],
]


def fuzzed(number, seed):
    chance = random.Random(seed)

    def part():
        kind = chance.random()
        if kind < 0.3:
            return chance.choice(TRICKS)
        if kind < 0.6:
            return chance.choice("abcdefghijklmnopqrstuvwxyzABC0123456789 .,!?-_") * chance.choice(
                [1, 1, 2, 5]
            )
        start = chance.choice(
            [0, 0x80, 0x300, 0x600, 0xE00, 0x1100, 0x2000, 0x3000, 0xAC00, 0xFE00, 0x1D100, 0x1F300]
        )
        codes = [chance.randrange(start, start + 300) for _ in range(4)] + [chance.randrange(0x110000)]
        return "".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF)

    return ["".join(part() for _ in range(chance.randint(0, 12))) for _ in range(number)]


def every_character():
    return [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


@pytest.fixture(scope="module")
def lines(sentence_pairs):
    return [*(side for pair in sentence_pairs for side in pair), *fuzzed(1500, 1)]


def differing(tokenizer, reference, lines):
    ids = tokenizer.tokenize(lines).to_list()
    encoded = reference.encode_batch(lines)
    return [(line, a, b.ids) for line, a, b in zip(lines, ids, encoded, strict=True) if a != b.ids]


@pytest.mark.slow_variants
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_word_piece_tokenizer_equals_the_library(lines, lowercase, special):
    settings = {"lowercase": lowercase, "special_tokens_in_text": special, "clean_up": True}
    trained = WordPieceTokenizer.train(lines[:400], 3000, **settings)
    # A piece for every character, as unknown ids would hide differences.
    words = pair_merges.count_words(lines, trained._words)
    more = sorted({piece for word in words for each in word for piece in (each, f"##{each}")})
    tokenizer = WordPieceTokenizer(list(dict.fromkeys([*trained.vocabulary, *more])), **settings)
    vocabulary = {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)}
    reference = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    reference.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    reference.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    reference.decoder = tokenizers.decoders.WordPiece()
    if special:
        reference.add_special_tokens(list(word_piece.SPECIAL_TOKENS.values()))
    assert differing(tokenizer, reference, lines) == []
    chance = random.Random(2)
    ids = [[chance.randrange(5, tokenizer.vocabulary_size) for _ in range(9)] for _ in range(500)]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == reference.decode_batch(ids)


@pytest.mark.slow_variants
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_byte_pair_tokenizer_equals_the_library(lines, prefix, special):
    tokenizer = BytePairTokenizer.train(lines, 600, add_prefix_space=prefix, special_tokens_in_text=special)
    vocabulary = {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)}
    reference = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, list(tokenizer.merges)))
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    reference.decoder = tokenizers.decoders.ByteLevel()
    if special:
        reference.add_special_tokens(list(byte_pair.SPECIAL_TOKENS.values()))
    assert differing(tokenizer, reference, lines) == []
    chance = random.Random(3)
    ids = [[chance.randrange(4, tokenizer.vocabulary_size) for _ in range(9)] for _ in range(500)]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == reference.decode_batch(ids)


@pytest.mark.slow
@pytest.mark.parametrize(("lowercase", "special"), [(True, False), (False, True)])
def test_openai_gpt_tokenizer_equals_the_library(lines, lowercase, special):
    tokenizer = OpenAIGPTTokenizer.train(
        lines[:400], 4000, lowercase=lowercase, special_tokens_in_text=special
    )
    vocabulary = {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)}
    reference = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocabulary, list(tokenizer.merges), unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False
        )
    )
    reference.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    reference.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    reference.decoder = tokenizers.decoders.BPEDecoder(suffix="</w>")
    if special:
        reference.add_special_tokens(list(openai_gpt.SPECIAL_TOKENS.values()))
    assert differing(tokenizer, reference, lines) == []
    unknown = (tokenizer.tokenize(lines).values.numpy() == tokenizer.unknown_id).mean()
    assert 0.01 < unknown < 0.9
    chance = random.Random(3)
    ids = [[chance.randrange(4, tokenizer.vocabulary_size) for _ in range(9)] for _ in range(500)]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == reference.decode_batch(ids)


@pytest.mark.slow
def test_merges_in_any_order_give_equal_ids():
    chance = random.Random(4)
    modes = set()
    for _ in range(30):
        pieces, merges = list("abc"), []
        for _ in range(chance.randint(3, 25)):
            pair = (chance.choice(pieces), chance.choice(pieces))
            if pair not in merges and len("".join(pair)) <= 8:
                merges.append(pair)
                pieces = list(dict.fromkeys([*pieces, "".join(pair)]))
        chance.shuffle(merges)
        vocabulary = list(dict.fromkeys(["<pad>", *byte_pair.BYTE_CHARACTERS, *pieces]))
        tokenizer = BytePairTokenizer(vocabulary, merges, special_tokens={"pad": "<pad>"})
        modes.add(tokenizer._merger._one_at_a_time)
        reference = tokenizers.models.BPE({piece: id_ for id_, piece in enumerate(vocabulary)}, merges)
        words = ["".join(chance.choices("abc", k=chance.randint(1, 30))) for _ in range(40)]
        expected = [[token.id for token in reference.tokenize(word)] for word in words]
        assert tokenizer._split(tf.constant(words)).to_list() == expected, merges
    assert modes == {False, True}


def test_training_learns_the_same_merges(lines):
    tokenizer = BytePairTokenizer.train(lines[:300], 500)
    reference = tokenizers.Tokenizer(tokenizers.models.BPE())
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        min_frequency=2,
        special_tokens=list(byte_pair.SPECIAL_TOKENS.values()),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    reference.train_from_iterator(lines[:300], trainer)
    assert sorted(reference.get_vocab(), key=reference.get_vocab().get) == list(tokenizer.vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_is_normalized_equally(lowercase):
    texts = [f"a{each}b" for each in every_character()]
    normalize = tokenizers.normalizers.BertNormalizer(lowercase=lowercase).normalize_str
    cut = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = BertWords(True, True, lowercase, lowercase)(tf.constant(texts)).to_list()
    wrong = [
        text
        for text, split in zip(texts, words, strict=True)
        if [word.decode() for word in split] != [word for word, _ in cut(normalize(text))]
    ]
    assert wrong == []


@pytest.mark.slow
def test_every_character_is_split_equally_by_the_pattern():
    texts = [f"a{each}1 {each}!{each}" for each in every_character()]
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = Words(GPT_2)(tf.constant(texts)).row_lengths().numpy().tolist()
    assert [text for text, split in zip(texts, words, strict=True) if split != len(cut(text))] == []
