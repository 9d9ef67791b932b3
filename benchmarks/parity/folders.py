"""Compare folders with random settings with `transformers`: each is read equally, or refused by name.

`random_folders.py` writes a folder for each seed: a family, and random settings of its tokenizer, configuration, labels
and generation. Compared are the ids of hard lines, with special tokens in texts and without, in TensorFlow and without
it; decoded texts; rows and pairs as the pipeline encodes them, also truncated; logits; and the answers of the pipeline.
A folder is

- equal, if nothing differs;
- refused, if an error or a warning of this package names what is not supported, and what is read is equal;
- different, if something differs in silence, or another error, such as a KeyError, is raised.

    .venv-bench/bin/python benchmarks/parity/folders.py --count 500          # --help lists the options
    .venv-bench/bin/python benchmarks/parity/folders.py --seed 17 --shrink   # one folder, and the settings that matter
"""

import argparse
import collections
import contextlib
import dataclasses
import gc
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import traceback
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_TRANSFORMER_XLA"] = "0"  # each loop runs once
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import numpy as np
import sentencepiece
import tensorflow as tf
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import keras
import measuring
import published_tokenizers
from random_folders import FAMILIES, Chance, read_json, write
from tokenizers_of_folders import are_equally_probable
from words import words_of

import keras_transformer as kt
import keras_transformer_serving as serving

LINES = 24
GENERATES = 3  # of which folders one generates: each compiles a loop
LIMIT = 1e-4  # of logits, relative to the largest or to 1
ROUNDED_LIMIT = 3e-3
TEXTS = (
    "said Ada Lovelace in London, to the dog",
    "la casa es azul, and the house is blue",
    "the dog eats bread (10,000 of them)! don't",
)
QUESTION = "Who said it?"
NEW_TOKENS = 6
STRIPPING = ("M2M100Tokenizer", "MarianTokenizer")  # classes that strip texts, which SentencePiece does not
# An error of this package names what it expects and what it received.
IS_NAMED = re.compile(r"Received|\bmust (not )?(be|have|hold|match)\b|not supported")


@dataclasses.dataclass
class Findings:
    """The differences and refusals of a folder.

    Attributes:
        differences: what differs.
        refusals: the messages of refusals.
        compared: the names of what was compared.
    """

    differences: list[str] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)
    compared: list[str] = dataclasses.field(default_factory=list)

    @property
    def status(self) -> str:
        """The word for the result: equal, refused or different."""
        return "different" if self.differences else "refused" if self.refusals else "equal"

    def equal(self, name: str, found: Any, expected: Any, example: Any = "") -> bool:
        """Note whether two values are equal."""
        self.compared.append(name)
        if found == expected:
            return True
        self.differences.append(f"{name}: {example!r} gives {_short(found)} in place of {_short(expected)}")
        return False

    def rows(self, name: str, found: Sequence[Any], expected: Sequence[Any], examples: Sequence[Any]) -> None:
        """Note the first of the rows that differ."""
        self.compared.append(name)
        differing = [row for row in zip(examples, found, expected, strict=True) if row[1] != row[2]]
        if differing:
            example, ours, theirs = min(differing, key=lambda row: len(str(row[0])))
            self.differences.append(
                f"{name}: {len(differing)} of {len(examples)} differ; "
                f"{example!r} gives {_short(ours)} in place of {_short(theirs)}"
            )

    def close(self, name: str, found: Any, expected: Any, limit: float = LIMIT) -> None:
        """Note whether two arrays are close."""
        self.compared.append(name)
        found, expected = np.asarray(found, "float32"), np.asarray(expected, "float32")
        if found.shape != expected.shape:
            self.differences.append(f"{name}: shape {found.shape} in place of {expected.shape}")
            return
        difference = float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))
        if not difference <= limit:
            self.differences.append(f"{name}: relative difference {difference:.1e}")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note the errors and warnings of this package; other errors are differences."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                frames = traceback.extract_tb(error.__traceback__)
                in_package = any("/keras_transformer" in frame.filename for frame in frames)
                if not in_package and any("/transformers/" in frame.filename for frame in frames):
                    return  # `transformers` does not run this folder
                named_types = (ValueError, TypeError, FileNotFoundError)
                named = in_package and isinstance(error, named_types) and IS_NAMED.search(message)
                if isinstance(error, TypeError) and "Received" not in message:
                    named = None
                if named:
                    self.refusals.append(str(error))
                else:
                    place = f"{pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno}"
                    self.differences.append(f"{name} raises {message[:200]} at {place}")
        for warning in caught:
            text = str(warning.message)
            if "keras_transformer" in warning.filename or re.search("not (fully supported|applied)", text):
                self.refusals.append(f"warning: {text}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:157]}…"


def lines_of(folder: pathlib.Path, reference: Any, seed: int) -> list[str]:
    """Return hard lines, some with the tokens of the folder."""
    tokens = [token for token in reference.get_added_vocab() if token.strip()][:6]
    lines = [line for line in published_tokenizers.hard_lines(600, tokens, seed) if len(line) < 120]
    is_unigram = not hasattr(reference, "backend_tokenizer") or (
        json.loads(reference.backend_tokenizer.to_str())["model"]["type"] == "Unigram"
    )
    if is_unigram:  # `tokenizers` normalises by grapheme, SentencePiece as this package does; see docs
        lines = [line for line in lines if not any(map(_joins, line))]
    start = seed * 7 % max(1, len(lines) - LINES)
    lines = ["", "a", *TEXTS, *lines[start : start + LINES]]
    if type(reference).__name__ in (
        "MBart50Tokenizer",
        "NllbTokenizer",
        "PegasusTokenizer",
    ):  # it has a token for white space at the end
        lines = [re.sub(r"\s+(?=<)", "", line.strip()) for line in lines]
    if (folder / "tokenizer.model").is_file() and not (folder / "tokenizer.json").is_file():
        # `transformers` merges in another order, and has no space before one; this package is as SentencePiece.
        model = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        parts = {line: re.split(r"<[^<>]*>", line) for line in lines}  # also between special tokens
        options = {"add_special_tokens": False, "split_special_tokens": True}
        lines = [
            line
            for line in lines
            if all(
                reference(part, **options)["input_ids"] == model.encode(part) for part in (line, *parts[line])
            )
        ]
    return lines


def _joins(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf", "Sk", "Lo") or character in "\x85\0\u2581"
    )


def compare_tokenizer(
    found: Findings, tokenizer: Any, reference: Any, lines: Sequence[str], name: str
) -> None:
    """Compare ids and decoded texts."""
    added = _added(reference)
    special = [*tokenizer.special_token_ids, *reference.all_special_tokens]
    special += [token for token, each in added.items() if each.special]
    # The end and padding tokens that `config.json` alone names are special in this package only, and `transformers` may
    # give a token the id of another.
    left_out = [
        token for token in tokenizer.special_token_ids if token not in {*added, *reference.all_special_tokens}
    ]
    left_out += [
        token
        for token in added
        if reference.convert_ids_to_tokens(reference.convert_tokens_to_ids(token)) != token
    ]
    lines = [line for line in lines if not any(token in line for token in left_out)]
    class_name = type(reference).__name__
    if class_name == "ByT5Tokenizer":
        # The class is written in Python, whose white space has the separators of files.
        lines = [re.sub("[\x1c-\x1f]", "", line) for line in lines]
    plain = [line for line in lines if not any(token in line for token in special)]
    if class_name == "LlamaTokenizer":
        # The class begins a text with a space, but not what follows a special token.
        lines = plain
    served = None
    with contextlib.suppress(NotImplementedError):
        served = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": type(tokenizer).__name__})
    for kind, texts, is_special in (("ids", plain, False), ("ids with special tokens", lines, True)):
        options = {"add_special_tokens": False}
        if is_special:
            options["split_special_tokens"] = False
        expected = [reference(text, **options)["input_ids"] for text in texts]
        ids = tokenizer.tokenize(texts, special_tokens=is_special).to_list()
        same = [
            theirs if are_equivalent(reference, ours, theirs) else ours
            for ours, theirs in zip(ids, expected, strict=True)
        ]
        found.rows(f"{name}: {kind}", same, expected, texts)
        if served is not None:
            without = [served.tokenize(text, is_special) for text in texts]
            found.rows(f"{name}: {kind} without TensorFlow", without, ids, texts)
        if not is_special:
            ids_of_special = {
                *reference.all_special_ids,
                tokenizer.unknown_id,
                *tokenizer.special_token_ids.values(),
                *_decoded_in_normal_form(reference),
            }
            rows = [row for row in expected if row and not ids_of_special.intersection(row)]
            rows = rows[: LINES // 2]
            texts_of = [reference.decode(row, skip_special_tokens=True) for row in rows]
            ours = [each.decode() for each in tokenizer.detokenize(rows).numpy()] if rows else []
            if class_name in STRIPPING:
                texts_of = [
                    text if text != other.strip() else other
                    for text, other in zip(texts_of, ours, strict=True)
                ]
            found.rows(f"{name}: decoded", ours, texts_of, rows)
            if served is not None:
                found.rows(
                    f"{name}: decoded without TensorFlow",
                    [served.detokenize(row) for row in rows],
                    ours,
                    rows,
                )


def are_equivalent(reference: Any, found: list[int], expected: list[int]) -> bool:
    """Return whether two segmentations are equally probable, so that rounding decides."""
    if hasattr(reference, "backend_tokenizer"):
        return are_equally_probable(reference, found, expected)
    return sorted(found) == sorted(expected)  # SentencePiece, whose scores are not at hand


def _added(reference: Any) -> dict[str, Any]:
    return {str(token): token for token in reference.added_tokens_decoder.values()}


def _decoded_in_normal_form(reference: Any) -> list[int]:
    """Return the ids of added tokens that `tokenizers` decodes to their normal form, and this package as written."""
    library = getattr(reference, "backend_tokenizer", None)
    added = reference.added_tokens_decoder.items() if library else ()
    return [id_ for id_, token in added if library.id_to_token(id_) != token.content]


def unpadded(ids: Any, pad: int | None) -> list[list[int]]:
    """Return rows without padding at their ends."""
    rows = []
    for row in np.asarray(ids).tolist():
        while row and row[-1] == pad:
            row.pop()
        rows.append(row)
    return rows


def compare_rows(found: Findings, pipeline: Any, reference: Any, lines: Sequence[str]) -> None:
    """Compare rows as the pipeline encodes them: of texts, of pairs, truncated."""
    special = [*pipeline.tokenizer.special_token_ids, *reference.all_special_tokens]
    plain = [line for line in lines if line.strip() and not any(token in line for token in special)]
    if isinstance(pipeline, kt.pipelines.FillMask):
        plain = [f"{line} {reference.mask_token}" for line in plain]
    if isinstance(pipeline, kt.pipelines.QuestionAnswering | kt.pipelines.TokenClassification):
        return  # `compare_answers` compares them
    name = "source_ids" if pipeline.generates else "token_ids"
    pad = pipeline.tokenizer.padding_value
    if getattr(pipeline, "languages", {}):
        return
    for truncate in (False, True):
        if truncate and isinstance(
            pipeline, kt.pipelines.TextGeneration
        ):  # it keeps the last tokens of prompts
            continue
        batch = pipeline.preprocess(tf.constant(plain), truncate=truncate)
        ours = unpadded(batch.inputs[name], pad)
        if "padding_mask" in batch.inputs:
            lengths = batch.inputs["padding_mask"].numpy().sum(1)
            ours = [
                row[:length] for row, length in zip(batch.inputs[name].numpy().tolist(), lengths, strict=True)
            ]
        valid = [not error for error in batch.error.numpy()]
        options: dict[str, Any] = {}
        if truncate:
            limit = pipeline.max_source_tokens if pipeline.generates else pipeline.max_length
            limit = min(limit or reference.model_max_length, reference.model_max_length)
            options = {"truncation": True, "max_length": limit}
        expected = [reference(text, **options)["input_ids"] for text in plain]
        rows = [row for row in zip(ours, expected, plain, valid, strict=True) if row[3] and len(row[0])]
        rows = [
            (theirs if are_equivalent(reference, a, theirs) else a, theirs, text)
            for a, theirs, text, _ in rows
        ]
        if "padding_mask" not in batch.inputs:
            rows = [(a, unpadded([b], pad)[0], text) for a, b, text in rows]
        kind = "truncated rows" if truncate else "rows"
        found.rows(kind, [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
    if isinstance(pipeline, kt.pipelines.TextClassification):
        batch = pipeline.preprocess(tf.constant(plain), tf.constant(plain[::-1]))
        ours = unpadded(batch.inputs[name], pad)
        expected = [reference(*pair)["input_ids"] for pair in zip(plain, plain[::-1], strict=True)]
        rows = [
            row
            for row in zip(ours, expected, plain, batch.error.numpy(), strict=True)
            if not row[3] and not are_equivalent(reference, row[0], row[1])
        ]
        found.rows("pairs", [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
        segments = batch.inputs.get("segment_ids")
        if segments is not None and "token_type_ids" in reference.model_input_names:
            theirs = [reference(*pair)["token_type_ids"] for pair in zip(plain, plain[::-1], strict=True)]
            ours = [row[: len(other)] for row, other in zip(segments.numpy().tolist(), theirs, strict=True)]
            rows = [row for row in zip(ours, theirs, plain, batch.error.numpy(), strict=True) if not row[3]]
            found.rows(
                "segments", [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
            )


def random_ids(config: Any, length: int, seed: int) -> np.ndarray:
    """Return random ids without special ones (1, length)."""
    special = {getattr(config, f"{role}_token_id", None) for role in ("pad", "bos", "eos")}
    ids = [id_ for id_ in range(config.vocab_size) if id_ not in special]
    return np.random.default_rng(seed).choice(ids, (1, length))


def compare_logits(found: Findings, model: Any, reference: Any, seed: int, limit: float = LIMIT) -> None:
    """Compare the outputs of the models."""
    config = reference.config
    if config.model_type == "vit":
        size = model.image_size
        images = np.random.default_rng(seed).random((2, *size, config.num_channels)).astype("float32")
        expected = reference(torch.tensor(images).permute(0, 3, 1, 2)).logits
        found.close("logits", model((images + 1) * 127.5), expected.detach())  # it scales values to [−1, 1]
        return
    ids = random_ids(config, 11, seed)
    if config.is_encoder_decoder and not hasattr(reference, "classification_head"):
        start = getattr(config, "decoder_start_token_id", None) or 0
        target = np.concatenate([[[start]], random_ids(config, 5, seed + 1)], 1)
        inputs: dict[str, Any] = {"decoder_input_ids": torch.tensor(target)}
        if config.model_type == "whisper":
            shape = (1, 2 * config.max_source_positions, config.num_mel_bins)
            frames = np.random.default_rng(seed).normal(size=shape).astype("float32")
            expected = reference(input_features=torch.tensor(frames).transpose(1, 2), **inputs).logits
            found.close("logits", model({"frames": frames, "target_ids": target}), expected.detach())
            return
        expected = reference(input_ids=torch.tensor(ids), **inputs).logits
        found.close("logits", model({"source_ids": ids, "target_ids": target}), expected.detach(), limit)
        return
    if hasattr(reference, "classification_head"):
        ids[:, -1] = config.eos_token_id
    result = reference(input_ids=torch.tensor(ids))
    ours = model(ids)
    ours = next(iter(ours.values())) if isinstance(ours, dict) else ours
    if hasattr(result, "start_logits"):
        expected = torch.stack([result.start_logits, result.end_logits], 1)
        ours = np.where(np.asarray(ours) < -1e8, expected.detach(), ours)
    else:
        expected = result[0]
    found.close("logits", ours, expected.detach())


def compare_answers(found: Findings, pipeline: Any, reference: Any, tokenizer: Any, seed: int) -> None:
    """Compare the answers of pipelines."""
    if pipeline.generates:
        if seed % GENERATES == 0:
            compare_generation(found, pipeline, reference, tokenizer)
        return
    texts = [text for text in TEXTS if len(tokenizer(text)["input_ids"]) <= (pipeline.max_length or 10**6)]
    if not texts:
        return
    match pipeline:
        case kt.pipelines.TextClassification():
            theirs = transformers.pipeline(
                "text-classification", model=reference, tokenizer=tokenizer, device="cpu", top_k=None
            )
            # A model with one label is a regression, of which `transformers` returns the sigmoid; see docs.
            is_number = len(pipeline.labels) == 1 and reference.config.problem_type is None
            options = {"function_to_apply": "none"} if is_number else {}
            expected = [
                sorted((_label(row["label"]), row["score"]) for row in theirs([text], **options)[0])
                for text in texts
            ]
            scores = np.reshape(pipeline.scores(texts), (len(texts), -1))
            ours = [sorted(zip(map(_label, pipeline.labels), map(float, row), strict=True)) for row in scores]
            names = [[label for label, _ in row] for row in expected]
            if found.equal("labels", [[label for label, _ in row] for row in ours], names):
                found.close(
                    "scores", [[s for _, s in row] for row in ours], [[s for _, s in row] for row in expected]
                )
        case kt.pipelines.FillMask() if reference.config.architectures[0].endswith("ForMaskedLM"):
            theirs = transformers.pipeline("fill-mask", model=reference, tokenizer=tokenizer, device="cpu")
            masked = [f"{text} {tokenizer.mask_token}" for text in texts]
            masked = [
                text for text in masked if len(tokenizer(text)["input_ids"]) <= (pipeline.max_length or 10**6)
            ]
            if not masked:
                return
            rows = [theirs(text) for text in masked]
            answers = [answer[0] for answer in pipeline(masked)]
            pieces = [[tokenizer.convert_ids_to_tokens(each["token"]) for each in row] for row in rows]
            found.rows("predictions", [[each.piece for each in row] for row in answers], pieces, masked)
        case kt.pipelines.TokenClassification():
            compare_tags(found, pipeline, reference, tokenizer, texts)
        case kt.pipelines.QuestionAnswering():
            compare_spans(found, pipeline, reference, tokenizer, texts)
        case _:
            pass


def _label(name: Any) -> str:
    """Return a label; without names of classes, this package has their indices and `transformers` LABEL_0 and so on."""
    return re.sub(r"^LABEL_(\d+)$", r"\1", str(name))


def compare_tags(
    found: Findings, pipeline: Any, reference: Any, tokenizer: Any, texts: Sequence[str]
) -> None:
    """Compare the class of each word with that of its first token in the text as `transformers` reads it.

    Words are those of the tokenizer, of SentencePiece split around punctuation.
    """
    names = reference.config.id2label
    for text in texts:
        encoding = tokenizer(text).encodings[0]
        logits = reference(**{name: torch.tensor([row]) for name, row in tokenizer(text).items()}).logits[0]
        probabilities = torch.softmax(logits, -1).detach().numpy()
        groups = words_of(encoding, text)
        expected = []
        for word in pipeline(text):
            first = next(
                (tokens[0] for start, end, tokens in groups if start < word.end and end > word.start), None
            )
            if first is not None:
                row = probabilities[first]
                expected.append((word, names[int(row.argmax())], float(row.max())))
        ours = [(word.word, _label(word.label), round(word.probability, 4)) for word, *_ in expected]
        theirs = [(word.word, _label(label), round(p, 4)) for word, label, p in expected]
        same = len(ours) == len(theirs) and all(
            a[:2] == b[:2] and abs(a[2] - b[2]) < 1e-3 for a, b in zip(ours, theirs, strict=True)
        )
        found.equal("tags", ours if not same else theirs, theirs, text)


def compare_spans(
    found: Findings, pipeline: Any, reference: Any, tokenizer: Any, texts: Sequence[str]
) -> None:
    """Compare the answers to a question: the best span of tokens of the context, to whole words."""
    for text in texts:
        # ALBERT's tokenizer of version 5 gives no types, with which its models were trained.
        inputs = tokenizer(
            QUESTION,
            text,
            return_offsets_mapping=True,
            return_token_type_ids="token_type_ids" in tokenizer.model_input_names
            or reference.config.model_type == "albert",
        )
        if len(inputs["input_ids"]) > (pipeline.max_length or 10**6):
            continue
        places, sides = inputs.pop("offset_mapping"), inputs.sequence_ids()
        result = reference(**{name: torch.tensor([row]) for name, row in inputs.items()})
        inside = [i for i, side in enumerate(sides) if side == 1]
        start, end = (logits[0].detach().numpy() for logits in (result.start_logits, result.end_logits))
        spans = [
            (start[i] + end[j], i, j)
            for i in inside
            for j in inside
            if 0 <= j - i < pipeline.max_answer_tokens
        ]
        _, i, j = max(spans)
        first, last = places[i][0], places[j][1]
        first += len(text[first:last]) - len(text[first:last].lstrip())
        answer = pipeline(QUESTION, text)
        around = text[answer.start : first] + text[last : answer.end]
        same = answer.start <= first and last <= answer.end and not any(map(str.isspace, around))
        found.equal("answer", text[first:last] if same else answer.text, text[first:last], text)


def compare_generation(found: Findings, pipeline: Any, reference: Any, tokenizer: Any) -> None:
    """Compare generated ids and texts."""
    is_causal = isinstance(pipeline, kt.pipelines.TextGeneration)
    if isinstance(pipeline.sampler, kt.generation.Sample):
        return
    limit = min(pipeline.max_new_tokens, NEW_TOKENS)
    pipeline = pipeline.with_settings(max_new_tokens=limit)
    texts = list(TEXTS[:2])
    options: dict[str, Any] = {"max_new_tokens": limit, "do_sample": False}
    if getattr(pipeline, "languages", {}):
        codes = [*pipeline.languages]
        pipeline = pipeline.with_settings(source_language=codes[0], target_language=codes[-1])
        tokenizer.src_lang = codes[0]
        is_start = pipeline.tokenizer.language_is_start
        key = "decoder_start_token_id" if is_start else "forced_bos_token_id"
        options[key] = pipeline.languages[codes[-1]]
        options["max_new_tokens"] += not is_start  # it counts the token of the language
    answers = pipeline.answers(texts)
    never = {pipeline.model.pad_id, getattr(pipeline.model, "start_id", None)} - {pipeline.model.end_id, None}
    suppressed = reference.generation_config.suppress_tokens or []
    ends = {pipeline.model.end_id}
    ends |= {id_ for each in pipeline.constraints for id_ in getattr(each, "end_ids", ())}
    options["suppress_tokens"] = sorted({*suppressed, *never} - ends) or None
    for text, (answer, *_) in zip(texts, answers, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        rows = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        ids = reference.generate(**rows, **options)[0].tolist()
        first = inputs["input_ids"].shape[1] if is_causal else 1 + ("forced_bos_token_id" in options)
        ids, ours = (_to_end(each, ends) for each in (ids[first:], list(answer.ids)))
        languages = {*getattr(pipeline, "languages", {}).values()}  # M2M-100's tokenizer shows them
        if (
            found.equal("generated ids", ours, ids, text)
            and not is_causal
            and not languages.intersection(ids)
        ):
            expected = tokenizer.decode(ids, skip_special_tokens=True)
            found_text = answer.text.strip() if type(tokenizer).__name__ in STRIPPING else answer.text
            found.equal("generated text", found_text, expected, ids)


def _to_end(ids: list[int], ends: set[int]) -> list[int]:
    return ids[: next((i for i, id_ in enumerate(ids) if id_ in ends), len(ids)) + 1]


def compare_images(found: Findings, pipeline: Any, folder: pathlib.Path, reference: Any) -> None:
    """Compare the logits of images."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    size = pipeline.model.image_size
    images = (
        np.random.default_rng(0).integers(0, 256, (2, *size, reference.config.num_channels)).astype("uint8")
    )
    pixels = processor(list(images), return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    if tuple(pixels.shape[2:]) != tuple(size):
        return
    found.close("images", pipeline.model(images.astype("float32")), reference(pixels).logits.detach(), 1e-3)


def compare(folder: pathlib.Path, kind: Any, seed: int) -> Findings:
    """Compare a folder."""
    found = Findings()
    is_vit = kind.config_class.model_type == "vit"
    tokenizer = None if is_vit else transformers.AutoTokenizer.from_pretrained(folder)
    lines = [] if is_vit else lines_of(folder, tokenizer, seed)
    pipeline, ours = None, None
    if not is_vit:
        with found.stage("tokenizer"):
            ours = kt.text.from_hugging_face(folder)
            compare_tokenizer(found, ours, tokenizer, lines, "text")
    with found.stage("pipeline"):
        pipeline = kt.pipelines.from_hugging_face(folder)
    if pipeline is not None and "quantization_config" in read_json(folder / "config.json"):
        found.differences.append("quantization_config is ignored")
        return found
    model = None
    if pipeline is None:
        with found.stage("model"):
            model = kt.interop.from_hugging_face(folder)
    else:
        model = pipeline.model
    if model is None:
        return found
    if "quantization_config" in read_json(folder / "config.json"):
        return found
    try:
        reference = kind.from_pretrained(folder, dtype=torch.float32).eval()
    except Exception as error:
        found.refusals.append(f"(transformers) {error}")
        return found
    with torch.no_grad():
        with found.stage("logits"):
            if not (is_vit and pipeline is not None):  # its weights have the mean of images
                # Positions of Pegasus are in its files, rounded to their precision; here they are computed.
                dtype = read_json(folder / "config.json").get("dtype", "float32")
                is_rounded = reference.config.model_type == "pegasus" and dtype != "float32"
                compare_logits(found, model, reference, seed, ROUNDED_LIMIT if is_rounded else LIMIT)
        if pipeline is None:
            return found
        if is_vit:
            with found.stage("images"):
                compare_images(found, pipeline, folder, reference)
            return found
        if isinstance(pipeline, kt.pipelines.SpeechToText):
            return found
        if ours is None or pipeline.tokenizer.model_bytes != ours.model_bytes:
            with found.stage("tokenizer of the pipeline"):
                compare_tokenizer(found, pipeline.tokenizer, tokenizer, lines[:12], "pipeline")
        if any("not applied to prompts" in text for text in found.refusals):
            return found  # a warning names it
        with found.stage("rows"):
            compare_rows(found, pipeline, tokenizer, lines)
        if any("generation settings" in text for text in found.refusals):
            return found  # a warning names what is not applied
        with found.stage("answers"):
            compare_answers(found, pipeline, reference, tokenizer, seed)
    return found


def run(
    seed: int, names: Sequence[str], kept: Sequence[str] = (), keep: pathlib.Path | None = None
) -> dict[str, Any]:
    """Write and compare the folder of a seed."""
    family = names[seed % len(names)]
    chance = Chance(seed, kept)
    result: dict[str, Any] = {"seed": seed, "family": family}
    base = pathlib.Path(tempfile.mkdtemp())
    folder = base / "folder"
    keras.utils.clear_session()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind = write(folder, family, chance)
            if (folder / "config.json").is_file() and family != "ViT":
                transformers.AutoTokenizer.from_pretrained(folder)("a")
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
        result |= {
            "status": "invalid",
            "settings": chance.changed,
            "error": f"{type(error).__name__}: {error} {place}",
        }
        shutil.rmtree(base)
        return result
    found = compare(folder, kind, seed)
    if keep is not None:
        shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
    shutil.rmtree(base)
    normalised = [message.replace(str(folder), "FOLDER") for message in found.refusals]
    return {
        **result,
        "class": kind.__name__,
        "status": found.status,
        "settings": chance.changed,
        "differences": [text.replace(str(folder), "FOLDER") for text in found.differences],
        "refusals": list(dict.fromkeys(normalised)),
        "compared": found.compared,
    }


def shrink(seed: int, names: Sequence[str], result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with as few changed settings as differ in the same way."""
    kept: list[str] = []
    first = result["differences"][0].split(":")[0]
    for name in list(result["settings"]):
        smaller = run(seed, names, [*kept, name])
        if any(text.split(":")[0] == first for text in smaller.get("differences", ())):
            kept.append(name)
            result = smaller
    return result


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table by family."""
    rows = []
    for family in FAMILIES:
        own = [each for each in results if each["family"] == family and each["status"] != "invalid"]
        counts = collections.Counter(each["status"] for each in own)
        if own:
            rows.append(
                {
                    "family": family,
                    "folders": len(own),
                    **{s: counts[s] for s in ("equal", "refused", "different")},
                }
            )
    totals = {key: sum(row[key] for row in rows) for key in ("folders", "equal", "refused", "different")}
    return measuring.table([*rows, {"family": "all", **totals}])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare folders, print a table and what differs; return 1 if something does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--count", type=int, default=500, help="the number of valid folders (default: %(default)s)"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seed", type=int, action="append", help="only this seed; may be repeated")
    parser.add_argument(
        "--only", default="", help="only families whose names have this, with seeds of their own"
    )
    parser.add_argument("--shrink", action="store_true", help="reduce the settings of folders that differ")
    parser.add_argument("--keep", type=pathlib.Path, help="copy the folders here")
    parser.add_argument(
        "--log",
        type=pathlib.Path,
        help="append results to this file, as JSON lines, and keep those that it has",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=measuring.RESULTS, help="the folder of the results"
    )
    options = parser.parse_args(arguments)
    tf.config.run_functions_eagerly(True)
    gc.freeze()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity(50)
    names = [name for name in FAMILIES if options.only.lower() in name.lower()]
    results: list[dict[str, Any]] = []
    seeds: Any = iter(options.seed) if options.seed else iter(range(options.first, 10**9))
    start = time.process_time()
    logged = options.log.read_text().splitlines() if options.log and options.log.is_file() else []
    known = {result["seed"]: result for result in map(json.loads, logged)}
    for seed in seeds:
        result = known.get(seed) or run(seed, names, keep=options.keep)
        if options.shrink and result["status"] == "different":
            result = shrink(seed, names, result)
        results.append(result)
        if options.log and seed not in known:
            with options.log.open("a") as file:
                file.write(json.dumps(result, ensure_ascii=False, default=str) + "\n")
        if result["status"] in ("different", "invalid") or options.seed:
            print(json.dumps(result, ensure_ascii=False, indent=1, default=str), flush=True)
        if len(results) % 20 == 0:
            gc.collect()
        if sum(each["status"] != "invalid" for each in results) >= options.count:
            break
    valid = [each for each in results if each["status"] != "invalid"]
    print(table(results))
    reasons = collections.Counter(
        re.sub(r"\d+", "N", text)[:150] for each in valid for text in each["refusals"]
    )
    print("\n".join(f"{count:4} {reason}" for reason, count in reasons.most_common(60)))
    seconds = time.process_time() - start
    print(
        f"{len(valid)} folders, {len(results) - len(valid)} more that transformers does not load, {seconds:.0f} s"
    )
    if not options.seed and not options.only:
        content = {
            "machine": measuring.machine(),
            "folders": len(valid),
            "first_seed": options.first,
            "seconds_of_processor_time": None if known else round(seconds),  # not of the results in the log
            "by_family": {
                family: dict(
                    collections.Counter(each["status"] for each in valid if each["family"] == family)
                )
                for family in FAMILIES
            },
            "refusals": dict(reasons.most_common()),
            "different": [each for each in valid if each["status"] == "different"],
        }
        measuring.write_result("parity_folders", content, options.output)
    return int(any(each["status"] == "different" for each in valid))


if __name__ == "__main__":
    sys.exit(main())
