"""Generate keras_transformer/text/pretokenizers/unicode_tables.py from the behaviour of the `tokenizers` library.

The parts of the library have different versions of Unicode, none of them Python's, so it is called with all 1,112,064
code points. Needs `pip install tokenizers`; takes half a minute.
"""

import argparse
import itertools
import pathlib
import textwrap
import unicodedata
from collections.abc import Callable, Iterable

import tokenizers
from tokenizers import normalizers, pre_tokenizers

CODE_POINTS = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
TABLES = (
    pathlib.Path(__file__).parents[1] / "keras_transformer" / "text" / "pretokenizers" / "unicode_tables.py"
)

CATEGORIES = {
    "CATEGORY_LU": ("Lu", "Upper-case letters"),
    "CATEGORY_LL": ("Ll", "Lower-case letters"),
    "CATEGORY_LT": ("Lt", "Title-case letters"),
    "CATEGORY_LM": ("Lm", "Modifier letters"),
    "CATEGORY_M": ("M", "Marks"),
    "CATEGORY_P": ("P", "Punctuation"),
    "CATEGORY_S": ("S", "Symbols"),
}


def bert(**options: bool) -> Callable[[str], str]:
    """Return BERT's normaliser with only some options."""
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    return normalizers.BertNormalizer(**{name: options.get(name, False) for name in names}).normalize_str


def gpt2_class(code: int) -> str:
    """Return the class of characters with which a character forms one word: letters, numbers, others or none."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    return next((name for name in "a1!" if len(split(f"{name}{chr(code)}{name}")) == 1), " ")


def category(name: str) -> list[int]:
    """Return the code points of a general category in patterns of words."""
    drop = pre_tokenizers.Split(tokenizers.Regex(rf"\p{{{name}}}"), "removed").pre_tokenize_str
    starts = range(0, len(CODE_POINTS), 2048)
    chunks = ["".join(map(chr, CODE_POINTS[start : start + 2048])) for start in starts]
    kept = {character for chunk in chunks for piece, _ in drop(chunk) for character in piece}
    return [code for code in CODE_POINTS if chr(code) not in kept]


def probe() -> dict[str, list[int]]:
    """Return the sets of code points by name."""
    clean, isolate, strip = bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True)
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    decompose, compatible = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
    strip_accents = normalizers.StripAccents().normalize_str
    classes = {code: gpt2_class(code) for code in CODE_POINTS}
    counts = {code: len(words(f"a{chr(code)}a")) for code in CODE_POINTS}

    def moves(code: int) -> bool:
        # A character with a combining class is reordered before class 1 or after class 240.
        return any(decompose(pair) != pair for pair in (chr(code) + "\u0334", "\u0345" + chr(code)))

    marked = [code for code in CODE_POINTS if unicodedata.combining(chr(code))]
    return {
        "WHITESPACE": [code for code in CODE_POINTS if classes[code] == " "],
        "LETTERS": [code for code in CODE_POINTS if classes[code] == "a"],
        "NUMBERS": [code for code in CODE_POINTS if classes[code] == "1"],
        "PUNCTUATION": [code for code in CODE_POINTS if counts[code] == 3],
        "REMOVED": [code for code in CODE_POINTS if not clean(chr(code))],
        "IDEOGRAPHS": [code for code in CODE_POINTS if isolate(chr(code)) != chr(code)],
        "DECOMPOSED": [code for code in CODE_POINTS if decompose(chr(code)) != chr(code)],
        "COMPATIBLE": [code for code in CODE_POINTS if compatible(chr(code)) != chr(code)],
        "ACCENTS": [code for code in CODE_POINTS if not strip(chr(code))],
        "STRIPPED": [code for code in CODE_POINTS if not strip_accents(chr(code))],
        "COMBINING": [code for code in marked if moves(code)],
        **{name: category(short) for name, (short, _) in CATEGORIES.items()},
    }


def lower_case() -> list[tuple[int, int]]:
    """Return pairs of upper-case and lower-case letters, without the letter whose lower case has two characters."""
    lower = bert(lowercase=True)
    pairs = [(code, lower(chr(code))) for code in CODE_POINTS]
    return [(code, ord(small)) for code, small in pairs if small != chr(code) and len(small) == 1]


def base36(number: int) -> str:
    """Format a number in base 36."""
    digits = ""
    sign, number = "-" * (number < 0), abs(number)
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return sign + digits


def runs(codes: Iterable[int]) -> list[int]:
    """Return run lengths: the number of code points outside the set, then inside it, and so on."""
    numbers, end = [], 0
    for _, group in itertools.groupby(enumerate(codes), lambda item: item[1] - item[0]):
        members = [code for _, code in group]
        numbers += [members[0] - end, len(members)]
        end = members[-1] + 1
    return numbers


def lower_runs(pairs: list[tuple[int, int]]) -> list[int]:
    """Return start, count, step and offset of each run of upper-case letters."""
    numbers: list[int] = []
    while pairs:
        first, small = pairs[0]
        step = 2 if (first + 2, small + 2) in pairs and (first + 1, small + 1) not in pairs else 1
        count = next(n for n in itertools.count(1) if (first + n * step, small + n * step) not in pairs)
        numbers += [first, count, step, small - first]
        taken = {first + n * step for n in range(count)}
        pairs = [pair for pair in pairs if pair[0] not in taken]
    return numbers


def constant(name: str, comment: str, numbers: list[int]) -> str:
    """Return the source of a constant of the module."""
    lines = textwrap.wrap(" ".join(map(base36, numbers)), 110)
    return f'# {comment}\n{name} = """\n' + "\n".join(lines) + '\n"""\n'


def main() -> None:
    """Write the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=pathlib.Path, default=TABLES)
    comments = {
        "WHITESPACE": "White space, at which words end.",
        "LETTERS": "Letters of GPT-2's pattern.",
        "NUMBERS": "Numbers of GPT-2's pattern.",
        "PUNCTUATION": "Punctuation in BERT: each character is a word.",
        "REMOVED": "Characters that BERT removes: control and private characters, U+0000 and U+FFFD.",
        "IDEOGRAPHS": "Chinese characters in BERT: each is a word.",
        "DECOMPOSED": "Characters with a canonical decomposition.",
        "COMPATIBLE": "Characters with a canonical or compatibility decomposition.",
        "STRIPPED": "The marks that the normaliser StripAccents drops.",
        "ACCENTS": "The nonspacing marks that BERT strips after decomposition.",
        "COMBINING": "Characters with a combining class, which are reordered in a decomposition.",
        **{
            name: f"{comment}, `\\p{{{short}}}` in patterns of words."
            for name, (short, comment) in CATEGORIES.items()
        },
    }
    sets = probe()
    parts = [
        f'"""Sets of code points of the `tokenizers` library {tokenizers.__version__}.\n\n'
        "Generated by benchmarks/unicode_tables.py. A set is a list of run lengths in base 36: the number of code "
        'points outside\nthe set, then inside it, and so on.\n"""\n',
        *(constant(name, comment, runs(sets[name])) for name, comment in comments.items()),
        constant(
            "LOWER",
            "Start, count, step and offset of each run of upper-case letters.",
            lower_runs(lower_case()),
        ),
    ]
    parser.parse_args().to.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
