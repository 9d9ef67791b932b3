"""Compare a published model with `transformers`, or with `sentence-transformers`: one command for any id of the hub.

Compared are the token ids of hard lines, the model's outputs, or embeddings, and for models that generate the ids of
greedy and beam search. The table is printed; the exit status is 1 if a difference is too large or ids are not equal.
Ids of generation may differ where two tokens are almost equally probable. Only the cache of downloads is written.

    .venv-bench/bin/python benchmarks/parity/published.py Helsinki-NLP/opus-mt-es-en     # or a folder; --help

Translation models of many languages need `--source-language` and `--target-language`, such as eng_Latn and spa_Latn.
"""

import argparse
import os
import pathlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import tensorflow as tf
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import measuring
from tokenizers_parity import fuzzed_lines

from keras_transformer import generation
from keras_transformer.interop.sentence_transformers import has_modules
from keras_transformer.pipelines import ImageClassification, QuestionAnswering, TextGeneration, hugging_face

TEXTS = (
    "¿Dónde está la estación?",
    "The quick brown fox jumps over the lazy dog.",
    "A film that I'd watch again — twice!",
    "translate English to German: The house is blue.",
    "Je n'ai pas compris la question nº 3, désolé…",
    "In 1998, about 1,234.5 km² were burned.",
)
HARD = (
    "",
    " ",
    "\t\n",
    "a  b",
    "x" * 80,
    "don't WE'LL",
    "naïve É e\u0301 ﬁ ½ ²",
    "中文 日本語 ไทย",
    "👩\u200d👧 🇪🇸",
    "\u00a0\u3000a",
)
LIMIT = 1e-4  # relative to the largest output, or to 1
Row = dict[str, str]


def ids_of(pipeline: Any, text: str) -> list[int] | None:
    """Return the ids that a pipeline reads for a text, None if it refuses the text."""
    if isinstance(pipeline, TextGeneration):
        return pipeline.tokenizer.tokenize([text]).to_list()[0]
    inputs, error, _ = pipeline.preprocess(tf.constant([text]))
    if error.numpy()[0]:
        return None
    name = "source_ids" if pipeline.generates else "token_ids"
    return inputs[name].numpy()[0].tolist()


def compare_ids(pipeline: Any, tokenizer: Any, lines: Sequence[str]) -> Row:
    """Compare the ids of lines without special tokens, which pipelines read as text."""
    special = tokenizer.all_special_tokens
    plain = [line for line in lines if not any(token in line for token in special)]
    if (
        pipeline.generates and pipeline.languages
    ):  # version 5 of transformers reads a token for white space at the end
        plain = [line.rstrip() for line in plain]
    options = {"add_special_tokens": not isinstance(pipeline, TextGeneration)}
    found = [(line, ids_of(pipeline, line), tokenizer(line, **options)["input_ids"]) for line in plain]
    # A text of spaces or unknown characters has no ids in an encoder–decoder, which answers nothing.
    known = [
        each
        for each in found
        if each[1] is not None and not (pipeline.generates and is_empty(pipeline, each[1]))
    ]
    differing = [line for line, ids, expected in known if ids != expected]
    shown = f"; the first: {differing[0]!r}" if differing else ""
    return row(
        "token ids", f"{len(known) - len(differing)} of {len(known)} lines equal{shown}", not differing
    )


def is_empty(pipeline: Any, ids: Sequence[int]) -> bool:
    """Return whether ids are padding only."""
    return not set(ids) - {pipeline.model.pad_id}


def outputs(model: Any, reference: Any, ids: list[int], target: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of both models for the ids of a text."""
    batch = np.array([ids])
    if reference.config.is_encoder_decoder:
        start = reference.config.decoder_start_token_id
        decoder = np.array([[start, *target]])
        expected = reference(input_ids=torch.tensor(batch), decoder_input_ids=torch.tensor(decoder)).logits
        return np.asarray(model({"source_ids": batch, "target_ids": decoder})), expected.numpy()
    found = reference(input_ids=torch.tensor(batch))
    if hasattr(found, "start_logits"):
        return np.asarray(model(batch)), torch.stack([found.start_logits, found.end_logits], 1).numpy()
    ours = model(batch)
    ours = next(iter(ours.values())) if isinstance(ours, dict) else ours
    return np.asarray(ours), found[0].numpy()


def compare_outputs(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Row:
    """Compare arrays; logits of spans never begin at special tokens, where ours are very small."""
    difference = 0.0
    for ours, expected in pairs:
        ours = np.where(ours < -1e8, expected, ours)
        scale = max(1.0, float(np.abs(expected).max()))
        difference = max(difference, float(np.abs(ours - expected).max()) / scale)
    return row(name, f"relative difference {difference:.1e} (limit {LIMIT:.0e})", difference <= LIMIT)


def compare_generation(
    pipeline: Any, reference: Any, tokenizer: Any, texts: Sequence[str], tokens: int
) -> Iterator[Row]:
    """Compare the ids of greedy and beam search with the settings of the folder."""
    forced: dict[str, int] = {}
    if pipeline.languages:
        is_start = pipeline.tokenizer.language_is_start
        name = "decoder_start_token_id" if is_start else "forced_bos_token_id"
        forced = {name: pipeline.languages[pipeline.target_language]}
    first = 1 + ("forced_bos_token_id" in forced)  # the index of the first token after those that are given
    searches = {
        "greedy ids": ("greedy", {"num_beams": 1}),
        "beam ids, 4 beams": (
            generation.Beam(4, 1.0, "length", early_stopping="heuristic"),
            {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
        ),
    }
    for name, (sampler, options) in searches.items():
        answers = pipeline.with_settings(sampler, max_new_tokens=tokens).answers(list(texts))
        equal = []
        for text, (answer, *_) in zip(texts, answers, strict=True):
            inputs = tokenizer(
                text, return_tensors="pt", add_special_tokens=not isinstance(pipeline, TextGeneration)
            )
            settings = {
                "max_new_tokens": tokens + first - 1,
                "do_sample": False,
                "num_return_sequences": 1,
                **options,
                **forced,
            }
            ids = reference.generate(**{n: inputs[n] for n in ("input_ids", "attention_mask")}, **settings)[
                0
            ].tolist()
            ids = ids[first if reference.config.is_encoder_decoder else inputs["input_ids"].shape[1] :]
            end = ids.index(pipeline.model.end_id) + 1 if pipeline.model.end_id in ids else len(ids)
            equal.append(answer.ids[:end] == ids[:end])
        yield row(name, f"{sum(equal)} of {len(equal)} texts equal", all(equal))


def row(name: str, result: str, is_equal: bool) -> Row:
    """Return a row of the table."""
    return {"compared": name, "result": result, "": "equal" if is_equal else "DIFFERENT"}


def compare(folder: pathlib.Path, pipeline: Any, lines: int, tokens: int) -> Iterator[Row]:
    """Yield the rows of the table."""
    if has_modules(folder):
        from sentence_transformers import SentenceTransformer

        library = SentenceTransformer(str(folder), device="cpu")
        texts = [*TEXTS, *HARD[:2], *HARD[3:]]
        prompt = library.default_prompt_name
        expected = library.encode(texts, **({} if prompt is None else {"prompt_name": prompt}))
        yield compare_outputs("embeddings", [(np.asarray(pipeline(texts)), expected)])
        return
    architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    reference = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    if isinstance(pipeline, ImageClassification):
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        size, channels = pipeline.model.image_size, pipeline.model.num_channels
        images = np.random.default_rng(0).integers(0, 256, (2, *size, channels)).astype("uint8")
        pixels = processor(list(images), return_tensors="pt")["pixel_values"]
        ours = np.asarray(pipeline.model(images.astype("float32")))
        yield compare_outputs("logits", [(ours, reference(pixels).logits.numpy())])
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if pipeline.generates and pipeline.languages:
        tokenizer.src_lang = pipeline.source_language
    if not isinstance(pipeline, QuestionAnswering):
        yield compare_ids(pipeline, tokenizer, [*TEXTS, *HARD, *fuzzed_lines(lines)])
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    ids = [each for each in ids if each]
    inputs = [(each, other[:5]) for each, other in zip(ids, ids[1:] + ids[:1], strict=True)]
    yield compare_outputs("outputs", [outputs(pipeline.model, reference, *each) for each in inputs])
    if pipeline.generates:
        yield from compare_generation(pipeline, reference, tokenizer, TEXTS, tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare a model, print the table, and return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", help="the id of a model of the Hugging Face Hub, or a folder")
    parser.add_argument("--revision", help="a branch, a tag or a commit; default: the main branch")
    parser.add_argument(
        "--lines", type=int, default=300, help="the number of random lines (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=24, help="the number of generated tokens (default: %(default)s)"
    )
    languages = ("source_language", "target_language")
    for name in languages:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, metavar="CODE", help="for a translation model of many languages")
    options = parser.parse_args(arguments)
    chosen = {name: language for name in languages if (language := getattr(options, name)) is not None}
    transformers.utils.logging.disable_progress_bar()
    folder = hugging_face.download(options.source, options.revision)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # settings of generation that both sides are given here
        pipeline = hugging_face.read(folder, options.revision, chosen)
        rows = list(compare(folder, pipeline, options.lines, options.tokens))
    source = pipeline.source
    commit = "" if source.commit is None else f" at {source.commit}"
    print(
        f"{source.name}{commit}: a {type(pipeline).__name__}, beside transformers {transformers.__version__}\n"
    )
    print(measuring.table(rows))
    return int(any(each[""] != "equal" for each in rows))


if __name__ == "__main__":
    sys.exit(main())
