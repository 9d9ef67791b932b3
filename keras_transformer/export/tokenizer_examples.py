"""Examples to compare the pipeline's tokenizer with one outside TensorFlow."""

from typing import Any

from keras_transformer.pipelines.example_texts import texts_from_vocabulary

# White space, control characters, line ends, marks in and out of order, joining and invisible characters, digits,
# contractions, several scripts, and words at the limits of WordPiece.
HARD_LINES = (
    "  a   b  ",
    " leading",
    "trailing \t\r\n",
    "a\tb\nc\r\nd\x0be\x0cf",
    "a\xa0b\u2003c\u3000d\u2028e\u202ff\x85g\x1ch",
    "a\0b\x01c\x7fd\x9fe",
    "zero\u200bwidth\u200cand\u200djoined\u2060\ufeff",
    "soft\xadhyphen \u200eleft\u200f right\u202e",
    "\ufffd \ufffe \ue000 \U0010fffd",
    "e\u0301 é n\u0303 a\u0327\u0301 \u0301alone \u0300\u0315\u0300",
    "ÀÉÎÕÜ Ñandú ÅNGSTRÖM ß ẞ İı ſ Σς ŉ ǅ",
    "ﬁ ﬂ ① ½ ² Ⅷ ３ ｶﾞ ㌔",
    "中文分词 日本語のテスト 한국어 각 \u1100\u1161\u11a8 𠀀",
    "العربية שָׁלוֹם हिन्दी ไทย ქართული Ελληνικά Привет",
    "٣٤ ४२ 1234567890 3.14 1,000 -5 10%",
    "👍🏽 🇪🇸 👨\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 ☃",
    "don't I'M we'll they've 's 't ' '' ' s can't've",
    '(a) [b] {c} <d> "e" «f» “g” ‘h’ –—… a_b a-b a/b a\\b a.b,c;d!?¿¡',
    "## ##a a## ▁ ▁a a▁b _ | Ġ Ċ </w> <0x41> ⁇",
    "http://example.com/a?b=c&d=%20#e user@example.com",
    "x" * 99,
    f"{'y' * 100} {'z' * 101}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 5,
)
_MAX_SPECIAL_TOKENS = 8


def tokenizer_examples(tokenizer: Any) -> dict[str, list[Any]]:
    """Return texts on which tokenizers easily disagree, their ids, and the decoded ids."""
    special = list(tokenizer.special_token_ids)[:_MAX_SPECIAL_TOKENS]
    texts = [*HARD_LINES, *(f"{token}a {token} b{token}{token[:-1]}" for token in special)]
    texts += texts_from_vocabulary(tokenizer)
    ids = tokenizer.tokenize(texts)
    decoded = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    return {"texts": texts, "ids": ids.to_list(), "decoded": decoded}
