"""Each setting of a component is applied as in the `tokenizers` library, is without effect, or is rejected by name."""

import copy
import json
import pathlib

import pytest

import keras_transformer_serving as serving
from keras_transformer import text
from keras_transformer.export.tokenizer_examples import HARD_LINES

tokenizers = pytest.importorskip("tokenizers")
BASE = pathlib.Path(__file__).parent / "folders"
LINES = [*HARD_LINES, " a <s>b  c </s>", "x\u00a0y　z  1234 don't\n\n\tq"]
# The values that each setting gets, one after another.
VALUES = {
    "boolean": [True, False],
    "pattern": [{"String": " "}, {"String": "a"}, {"Regex": r"\s+"}, {"Regex": r"\p{N}{1,2}|[^\p{N}]+"}],
    "behavior": ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"],
    "prepend_scheme": ["always", "first", "never"],
    "content": ["", " ", "\u2581", "_"],
    "replacement": ["_"],
    "prepend": ["_", " "],
    "start": [0, 1, 2],
    "stop": [0, 1],
}
TYPES = {
    "normalizer": ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel", None],
    "pre_tokenizer": ["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts", None],
    "decoder": ["ByteFallback", "Fuse", "ByteLevel", "Metaspace", None],
}


def changes(component, path=()):
    """Yield the paths of settings of a component and other values for them."""
    for name, value in component.items():
        if isinstance(value, list) and name in ("normalizers", "pretokenizers", "decoders", "added_tokens"):
            for place, item in enumerate(value[:6]):
                yield from changes(item, (*path, name, place))
        elif name not in ("type", "id", "vocab", "merges", "special_tokens", "single", "pair"):
            values = VALUES["boolean"] if isinstance(value, bool) else VALUES.get(name, ())
            yield from (((*path, name), other) for other in values if other != value)


def with_setting(content, path, value):
    """Return the content of a file with another value."""
    content = copy.deepcopy(content)
    item = content
    for part in path[:-1]:
        item = item[part]
    item[path[-1]] = value
    return content


def other_files(name):
    """Yield contents of a file with one change, and a description of it."""
    content = json.loads((BASE / name / "tokenizer.json").read_text(encoding="utf-8"))
    for kind in ("normalizer", "pre_tokenizer", "decoder", "model"):
        for path, value in changes(content[kind] or {}, (kind,)):
            yield path, value, with_setting(content, path, value)
        for type_ in TYPES.get(kind, ()):
            value = None if type_ is None else {"type": type_}
            if type_ == "Metaspace":
                value |= {"replacement": "\u2581", "prepend_scheme": "always", "split": True}
            if type_ == "ByteLevel" and kind == "decoder":
                value |= {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
            yield (kind,), value, with_setting(content, (kind,), value)
    for path, value in changes({"added_tokens": content["added_tokens"]}):
        if path[-1] not in ("content", "special"):
            yield path, value, with_setting(content, path, value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Llama_3", "SmolLM_2", "ModernBERT", "Llama_2", "Mistral_0.3", "Gemma", "Phi-3"]
)
def test_each_setting_is_applied_or_rejected(name, tmp_path):
    config = (BASE / name / "tokenizer_config.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    different, messages = [], []
    for path, value, content in other_files(name):
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        try:
            reference = tokenizers.Tokenizer.from_file(str(file))
        except Exception:  # of any class of the library
            continue
        try:
            tokenizer = text.from_hugging_face(tmp_path)
        except ValueError as error:
            messages.append(str(error))
            continue
        expected = [each.ids for each in reference.encode_batch(LINES, add_special_tokens=False)]
        # Without TensorFlow, whose graph takes seconds; other tests compare the two.
        class_name = type(tokenizer).__name__
        tokenizer = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": class_name})
        found = [tokenizer.tokenize(line, True) for line in LINES]
        special = {*tokenizer.special_token_ids.values()}
        rows = [row for row in expected if not special.intersection(row)]
        texts = [tokenizer.detokenize(row) for row in rows]
        if found != expected:
            line = next(
                line for line, *both in zip(LINES, found, expected, strict=True) if both[0] != both[1]
            )
            different.append((path, value, "ids", line))
        elif texts != reference.decode_batch(rows, skip_special_tokens=False):
            different.append((path, value, "texts"))
    assert different == []
    assert messages
    assert [message for message in messages if "Received" not in message] == []
