"""List names and docstrings outside the field's vocabulary: identifiers, modules, test names, first words.

python tests/vocabulary.py                        # lists findings by term; exits with 1 if there are any
"""

import ast
import pathlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = (
    "keras_transformer",
    "keras_transformer_cli",
    "keras_transformer_options",
    "export",
    "benchmarks",
    "tests",
    "notebooks",
)

# Parts of names, each a word or words joined by "_", and the terms that stand in their place.
TERMS = {
    "problem": "attention inputs",
    "told": "auxiliary inputs",
    "turn": "scan step",
    "turns": "scan steps",
    "meet": "accumulate, satisfy",
    "meets": "accumulates, satisfies",
    "visit": "accumulate",
    "visits": "accumulates",
    "plan": "block schedule",
    "plans": "block schedules",
    "tile": "block",
    "tiles": "blocks",
    "tiling": "blocks",
    "kinds": "block classes, types",
    "by_query": "d_query",
    "by_key": "d_key",
    "reach": "window, bandwidth",
    "reaches": "window, bandwidth",
    "products": "matrix multiplications",
    "behind": "after",
    "in_front": "before",
    "filled": "padded",
    "filling": "padding",
    "filler": "padding value",
    "alone": "decoder-only, single",
    "longest": "max_new_tokens, max_length",
    "newest": "last_tokens",
    "blank": "empty",
    "alternatives": "candidates",
    "slot": "cache_index",
    "held": "valid_length",
    "rules": "logits processors",
    "independent": "sampling search, greedy search",
    "marks": "special tokens",
    "with_more_tokens": "resize_token_embeddings",
    "unseeded": "nondeterministic",
    "with_room": "max_length",
    "found_errors": "row_errors",
    "from_preset": "from_size",
    "none_is_lost": "the property",
    "obstacle": "unsupported, reason",
    "link_gradient": "transform_gradient",
    "stops_here": "should_stop",
    "refuses": "rejects, raises an error",
    "those_of": "the noun",
    "that_of": "the noun",
    "what": "the thing itself",
    "which": "the thing itself",
}
# The same for tests only.
TEST_TERMS = {
    "data_set": "dataset",
    "refuse": "reject, raise an error",
    "refused": "rejected, invalid",
    "refusal": "error",
    "refusals": "errors",
    "ours": "actual, model",
    "theirs": "expected, reference",
}
MODULES = {
    "answers": "postprocess",
    "expected": "outputs",
    "kinds": "dispatch",
    "parts": "bundle_writer",
    "handlers": "tf2onnx_handlers",
    "functions": "generation_graphs",
}
CLASSES = {
    "CharacterPairTokenizer": "OpenAIGPTTokenizer",
    "SentencePieceVocabularyTokenizer": "MarianT5Tokenizer",
}
# Names of the field that contain a term, with the reason.
ALLOWED = {
    "problem_type": "the name of `transformers` for what a classifier learns",
    "problem_types": "the module of problem_type",
    "held_out": "the field's word for data that a model is not trained on",
}
OPENINGS = re.compile(r"(What|Which|One that|Whether)\b")


def words(name: str) -> str:
    """Return a name's words in lower case, joined and enclosed by "_"."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return "_" + "_".join(word.lower() for word in found) + "_"


def findings(path: pathlib.Path) -> Iterator[tuple[str, int, str]]:
    """Yield (term, line, name) of every name and docstring of a file that should be replaced."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [(path.stem, 1)]
    if path.stem in MODULES:
        yield path.stem, 1, path.stem
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names.append((name, node.lineno))
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.append((name, node.lineno))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            opening = OPENINGS.match(ast.get_docstring(node) or "")
            if opening and "tests" not in path.parts:
                yield (
                    f'docstring "{opening[0]} …"',
                    getattr(node, "lineno", 1),
                    (ast.get_docstring(node) or "")[:60],
                )
    terms = TERMS | TEST_TERMS if "tests" in path.parts else TERMS
    for name, line in dict(reversed(names)).items():
        if name in CLASSES:
            yield name, line, name
        enclosed = words(name)
        for allowed in ALLOWED:
            enclosed = enclosed.replace(f"_{allowed}_", "_")
        for term in terms:
            if f"_{term}_" in enclosed:
                yield term, line, name


def main() -> int:
    """Print the findings by term; return 1 if there are any."""
    left = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == pathlib.Path(__file__).resolve():
                continue
            for term, line, name in findings(path):
                left[term].append(f"{path.relative_to(ROOT)}:{line}: {name}")
    instead = TERMS | TEST_TERMS | MODULES | CLASSES
    for term, places in sorted(left.items(), key=lambda item: -len(item[1])):
        print(f"{term} ({len(places)}): {instead.get(term, 'say what the thing is or does')}")
        print("".join(f"    {place}\n" for place in places), end="")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
