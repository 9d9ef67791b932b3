"""Words of published patterns equal those of the `tokenizers` library."""

import pytest
import tensorflow as tf

from keras_transformer.export.tokenizer_examples import HARD_LINES
from keras_transformer.text.pretokenizers.patterns import DIGIT, GPT_2, LLAMA_3, QWEN_2, Words

tokenizers = pytest.importorskip("tokenizers")
PATTERNS = {
    "GPT-2": [GPT_2],
    "SmolLM 2": [DIGIT, GPT_2],
    "Llama 3": [LLAMA_3],
    "Qwen 2": [QWEN_2],
    "Qwen 3.5": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "DeepSeek": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\s+$", DIGIT],
    "GPT-4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
LINES = [
    *HARD_LINES,
    "a  b   c \n\n  d\r\n \r\n\te  ",
    "x\n\n!\n\n y\u3000\u3000z",
    "it'S we'LL I'ſ 'ſa 'K 12345\u0663 ABcDe ǅa e\u0301\u0301 क्षि！？a/b//\n\n",
    "中文 한국어\r\n  １２ ⅷ ²³ \U0010ffff \ufdd0",
]


@pytest.mark.parametrize("name", PATTERNS)
def test_words_equal_the_tokenizers_library(name):
    split = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    )
    words = Words(*PATTERNS[name])(tf.constant(LINES)).to_list()
    expected = [[word.encode() for word, _ in split.pre_tokenize_str(line)] for line in LINES]
    assert words == expected


@pytest.mark.parametrize(
    ("pattern", "received"),
    [
        ("(?<=a)b", "(?<="),
        ("a(?=b)", "(?=b"),
        ("a(?!b)", "(?!b"),
        (r"\w+", r"\w"),
        ("a++", "a quantifier after a quantifier"),
        ("[a&&b]", "a class in a class"),
        ("a|^b", "^b"),
        ("(a", "no ')'"),
        (r"\p{Greek}", r"\p{Greek}"),
        ("a*", "match an empty string"),
    ],
)
def test_unsupported_patterns_raise_errors(pattern, received):
    with pytest.raises(ValueError, match="`pattern` must") as error:
        Words(pattern)
    assert received in str(error.value)
