"""The components of Hugging Face's `tokenizer.json`."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from keras_transformer.text.pretokenizers.patterns import DIGIT, GPT_2, translated
from keras_transformer.text.tokenizers.component_settings import ADDED_TOKEN, FILE, ComponentSettings, Table
from keras_transformer_serving import files

TOKENIZER_JSON = "tokenizer.json"
_SPACE = "\u2581"
_MOST_IDS = 2**24
# The lists of sequences of components.
_WHISPER_START = "<|startoftranscript|>"
_SEQUENCES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


class Template(NamedTuple):
    """The tokens around texts.

    Attributes:
        start: the token before a text, None if there is none.
        end: the token after it.
        pair_separators: the number of tokens between the texts of a pair.
    """

    start: str | None = None
    end: str | None = None
    pair_separators: int = 1

    @property
    def roles(self) -> dict[str, str]:
        """The tokens by role."""
        tokens = {"start": self.start, "end": self.end}
        return {role: token for role, token in tokens.items() if token is not None}


@dataclasses.dataclass(frozen=True)
class Components:
    """The components of a file.

    Attributes:
        path: the file.
        content: its content.
    """

    path: pathlib.Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Components":
        """Read a file."""
        return cls(path, read_object(path))

    @property
    def model_type(self) -> str:
        """The type of the model, "" if there is none."""
        model = self.content.get("model")
        if not isinstance(model, dict):
            return ""
        # Files written before 2020 have no type for BPE.
        return str(model.get("type", "BPE" if "merges" in model else "WordPiece"))

    def model(self, table: Table) -> dict[str, Any]:
        """Return the model, after a comparison of all components with a table.

        Args:
            table: the components and settings that are supported.

        Raises:
            ValueError: if the model is of another type, or a component or a setting is not supported.
        """
        model: dict[str, Any] = self.content.get("model") or {}
        types = table["model"]
        if self.model_type not in types:
            received = repr(self.model_type) if self.model_type else f"model={str(model)[:50]}"
            raise ValueError(
                f"{self.path} must hold a model of type {' or '.join(types)}. Received: {received}"
            )
        self._check("an object", self.content, FILE)
        for token in self.added_tokens:
            self._check(f"the added token {token.get('content')!r}", token, ADDED_TOKEN)
        self._check(f"a model `{self.model_type}`", model, types[self.model_type])
        for kind in _SEQUENCES:
            for step in self.steps(kind):
                if (settings := table[kind].get(step.get("type", ""))) is None:
                    self.unsupported(kind)
                self._check(f"a {kind} `{step['type']}`", step, settings)
        return model

    def _check(self, component: str, received: Mapping[str, Any], settings: ComponentSettings) -> None:
        """Raise an error if a component has a setting, or a value of it, that is not supported."""
        for name, values in settings.only.items():
            value = received.get(name)
            if value not in values:
                raise ValueError(
                    f"{self.path} must have {component} with {name}={values[0]!r}. Received: {name}={value!r}"
                )
        known = {"type", *settings.applied, *settings.without_effect, *settings.only}
        if unknown := sorted(received.keys() - known):
            raise ValueError(
                f"{self.path} must have {component} without settings other than {sorted(known)}. "
                f"Received: {unknown[0]}={received[unknown[0]]!r}"[:500]
            )

    def steps(self, kind: str) -> list[dict[str, Any]]:
        """Return the components of a kind, such as "normalizer", in the order in which they are applied."""

        def flat(component: Mapping[str, Any] | None) -> list[dict[str, Any]]:
            if component is None:
                return []
            if component.get("type") != "Sequence":
                return [dict(component)]
            return [step for item in component.get(_SEQUENCES[kind], ()) for step in flat(item)]

        return flat(self.content.get(kind))

    def only(self, kind: str, step_type: str, **settings: Any) -> dict[str, Any]:
        """Return the only component of a kind.

        Args:
            kind: the kind.
            step_type: its expected type.
            **settings: settings that it must have, None for one that may be missing.
        """
        steps = self.steps(kind)
        if [step.get("type") for step in steps] != [step_type] or any(
            steps[0].get(name) != value for name, value in settings.items()
        ):
            self.unsupported(kind)
        return steps[0]

    def unsupported(self, kind: str) -> NoReturn:
        """Raise an error that names the components of a kind."""
        names = " and ".join(
            f"`{step.get('type')}`"
            + "".join(f" {key}={value!r}"[:100] for key, value in step.items() if key != "type")
            for step in self.steps(kind)
        )
        raise ValueError(
            f"{self.path} must have a {kind} that is supported with model `{self.model_type}`. Received: {kind} "
            f"{names or 'null'}"
        )

    @property
    def template(self) -> Template:
        """The tokens around texts; those of `post_processor` that have no place in `Template` are errors."""
        steps = [
            step for step in self.steps("post_processor") if step["type"] != "ByteLevel"
        ]  # offsets alone
        if len(steps) > 1:
            self.unsupported("post_processor")
        for step in steps:
            match step["type"]:
                case "TemplateProcessing":
                    specials = step.get("special_tokens") or {}
                    if any(special.get("tokens", [token]) != [token] for token, special in specials.items()):
                        self.unsupported("post_processor")
                    single, pair = (self._tokens_of(step.get(name) or ()) for name in ("single", "pair"))
                    if single[0] == _WHISPER_START:  # a language and a task follow, the prefix of a pipeline
                        return Template(single[0], single[-1])
                    first, *rest = (place for place, token in enumerate(single) if token is None)
                    if rest or first > 1 or len(single) - first > 2:
                        self.unsupported("post_processor")
                    texts = [place for place, token in enumerate(pair) if token is None]
                    between = texts[1] - texts[0] - 1 if len(texts) == 2 else 0
                    return Template(
                        single[0], single[-1], between if between and single[-1] is not None else 1
                    )
                case "RobertaProcessing" | "BertProcessing":
                    separators = 2 if step["type"] == "RobertaProcessing" else 1
                    return Template(step["cls"][0], step["sep"][0], separators)
                case _:
                    self.unsupported("post_processor")
        return Template()

    def _tokens_of(self, template: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Return the tokens of a template, None in place of a text."""
        return [part["SpecialToken"]["id"] if "SpecialToken" in part else None for part in template]

    @property
    def added_tokens(self) -> Sequence[Mapping[str, Any]]:
        """The tokens that are recognised in texts."""
        return self.content.get("added_tokens") or ()

    def pieces(self, vocabulary: Any) -> list[str]:
        """Return the pieces of a vocabulary and the added tokens in the order of their ids, "" for one without a piece.

        As in the `tokenizers` library, added tokens without a piece are numbered from the number of pieces on, whatever
        their ids.
        """
        if not isinstance(vocabulary, dict) or not self.added_tokens:
            return in_order(self.path, vocabulary)
        added = dict.fromkeys(token["content"] for token in self.added_tokens)
        new = (content for content in added if content not in vocabulary)
        return in_order(
            self.path, {**vocabulary, **{content: id_ for id_, content in enumerate(new, len(vocabulary))}}
        )

    def text_settings(self, roles: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings "special_tokens" and those of tokens that are recognised in texts."""
        # A token of a role is special unless the file says that it is not.
        tokens = [{"special": token["content"] in roles.values(), **token} for token in self.added_tokens]

        def named(flag: str) -> list[str]:
            return [token["content"] for token in tokens if token.get(flag)]

        without_role = [token for token in named("special") if token not in roles.values()]
        specials = {**roles, **{token: token for token in without_role}}
        settings = {
            "tokens_in_text": [token["content"] for token in tokens if not token.get("special")],
            "lstrip_tokens": named("lstrip"),
            "rstrip_tokens": named("rstrip"),
            "single_word_tokens": named("single_word"),
            "normalized_tokens": named("normalized") if self.steps("normalizer") else [],
        }
        return {"special_tokens": specials, **{name: value for name, value in settings.items() if value}}


def byte_pair_words(components: Components) -> dict[str, Any]:
    """Return the settings of `BytePairTokenizer` for normaliser and pre-tokenizer."""
    settings: dict[str, Any] = {}
    match [step["type"] for step in components.steps("normalizer")]:
        case []:
            pass
        case ["NFC"]:
            settings["normalization"] = "NFC"
        case _:
            components.unsupported("normalizer")
    match components.steps("pre_tokenizer"):
        case [{"type": "ByteLevel", **rest}] if rest.get("use_regex", True):
            settings["add_prefix_space"] = rest.get("add_prefix_space", True)
        # A space would be added before each word of a pattern.
        case [*steps, {"type": "ByteLevel", "add_prefix_space": False, **rest}] if steps:
            patterns = [_pattern(components, step) for step in steps]
            if rest.get("use_regex", True):
                patterns.append(GPT_2)
            if patterns == [DIGIT, GPT_2]:
                settings["individual_digits"] = True
            else:
                settings["pattern"] = patterns[0] if len(patterns) == 1 else patterns
        case _:
            components.unsupported("pre_tokenizer")
    if [step["type"] for step in components.steps("decoder")] != ["ByteLevel"]:
        components.unsupported("decoder")
    return settings


def _pattern(components: Components, step: Mapping[str, Any]) -> str:
    """Return the regular expression of the words that a pre-tokenizer separates from other text."""
    if step["type"] == "Digits":
        return DIGIT if step.get("individual_digits") else f"{DIGIT}+"
    pattern = step.get("pattern", {})
    found = pattern.get("Regex") or re.escape(pattern.get("String", ""))
    if not found or step.get("behavior") != "Isolated" or step.get("invert"):
        components.unsupported("pre_tokenizer")
    try:
        translated(found)
    except ValueError as error:
        raise ValueError(f"{components.path} must have a pre_tokenizer that is supported: {error}") from None
    return str(found)


def prepend_scheme(components: Components) -> str:
    """Return where SentencePiece's BPE adds a space before a text, from normaliser, pre-tokenizer and decoder."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    normalizer, pre_tokenizer = components.steps("normalizer"), components.steps("pre_tokenizer")
    if normalizer not in ([], [replace], [{"type": "Prepend", "prepend": _SPACE}, replace]):
        components.unsupported("normalizer")
    match pre_tokenizer:
        case [] if normalizer:
            scheme = "legacy" if len(normalizer) == 2 else "never"
        case [{"type": "Split", "pattern": {"String": " "}}] if normalizer == [replace]:
            scheme = "never"  # there is no space left to split at
        case [
            {
                "type": "Metaspace",
                "replacement": "\u2581",
                "split": False,
                "prepend_scheme": str(scheme),
                **rest,
            }
        ] if not normalizer and rest.get("add_prefix_space") in (None, scheme != "never"):
            pass
        case _:
            components.unsupported("pre_tokenizer")
    decoder = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([] if scheme == "never" else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]),
    ]
    if components.steps("decoder") != decoder:
        components.unsupported("decoder")
    return scheme


def in_order(path: pathlib.Path, vocabulary: Any) -> list[str]:
    """Return the pieces in the order of their ids, "" for an id without a piece.

    Args:
        path: the file, for error messages.
        vocabulary: a mapping from pieces to ids.

    Raises:
        ValueError: if an id is no number, occurs twice or is far beyond the others, or there is no such mapping.
    """
    pieces: dict[int, str] = {}
    for piece, id_ in vocabulary.items() if isinstance(vocabulary, dict) else ():
        if not isinstance(id_, int) or not 0 <= id_ < _MOST_IDS:
            raise ValueError(
                f"{path} must number its pieces with integers from 0 to {_MOST_IDS - 1}. Received: {piece!r}: {id_!r}"
            )
        if id_ in pieces:
            raise ValueError(
                f"{path} must number its pieces with distinct ids. Received: {pieces[id_]!r} and {piece!r}: {id_}"
            )
        pieces[id_] = piece
    if not pieces:
        raise ValueError(f"{path} must map pieces to ids. Received: {str(vocabulary)[:50]}")
    return [pieces.get(id_, "") for id_ in range(max(pieces) + 1)]


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON object."""
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {str(content)[:50]}")
    return content
