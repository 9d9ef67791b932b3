"""Record the outputs of every pipeline and sampler, and compare two versions of the code.

Models have random weights that NumPy draws from a seed, and tokenizers are trained on the phrasebook, so that two
checkouts on one machine must have equal outputs.

    .venv/bin/python benchmarks/record_outputs.py record /tmp/before.json             # --help lists the options
    .venv/bin/python benchmarks/record_outputs.py compare /tmp/before.json /tmp/after.json
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # sums of float32 in another order
NEW_TOKENS = 12


def randomised(model: Any, seed: int = 0) -> Any:
    """Set random weights for which outputs depend on the inputs."""
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if "gamma" in weight.path:
            continue
        vector = len(weight.shape) == 1
        weight.assign(random.normal(size=weight.shape) * (0.3 if vector else 2 / np.sqrt(weight.shape[0])))
    return model


class Cases:
    """The pipelines, created on first use."""

    def __init__(self, count: int) -> None:
        from keras_transformer import models, text
        from keras_transformer.datasets import phrasebook

        self.pairs = phrasebook.load_data()[0][:count]
        self.spanish, self.english = (list(column) for column in zip(*self.pairs, strict=True))
        self.pieces = text.SentencePieceTokenizer.train(
            [*self.spanish, *self.english], 600, byte_fallback=False
        )
        self.byte_pairs = text.BytePairTokenizer.train(self.english, 600)
        self.words = text.WordPieceTokenizer.train(self.english, 400, special_tokens_in_text=True)
        small = {"num_layers": 2, "num_heads": 2, "model_dim": 32, "dropout": 0.0}
        ids = {name: getattr(self.pieces, name) for name in ("pad_id", "start_id", "end_id")}
        self.transformer = randomised(
            models.Transformer(self.pieces.vocabulary_size, **small, hidden_dim=64, **ids), 1
        )
        self.t5 = randomised(models.T5(self.pieces.vocabulary_size, **small, hidden_dim=64, **ids), 2)
        self.gpt = randomised(
            models.GPT(
                self.byte_pairs.vocabulary_size,
                **small,
                max_length=96,
                pad_id=self.byte_pairs.pad_id,
                end_id=self.byte_pairs.end_id,
            ),
            3,
        )
        self.bert = randomised(
            models.BERT(self.words.vocabulary_size, **small, hidden_dim=64, max_length=96), 4
        )

    def answers(self) -> dict[str, Callable[[], Any]]:
        """Return a function for each case that computes its outputs."""
        return {**self._searches(), **self._decoders(), **self._encoders(), **self._others()}

    def _searches(self) -> dict[str, Callable[[], Any]]:
        from keras_transformer import generation as g
        from keras_transformer.pipelines import TextToText

        draft = randomised(type(self.transformer).from_config(self.transformer.get_config()), 5)
        settings = {
            "greedy": ("greedy", ()),
            "beam": (g.Beam(4, num_return=2, length_penalty=0.6), ()),
            "sample": (g.Sample(0.9, top_k=40, top_p=0.95, seed=7, num_return=2), ()),
            "contrastive": (g.Contrastive(), ()),
            "speculative": (g.Speculative(draft, num_tokens=3), ()),
            "constraints": ("beam", (g.NoRepeatNGram(2), g.BannedWords([[17], [18, 19]]), g.MinNewTokens(4))),
            "repetition": ("greedy", (g.RepetitionPenalty(1.5),)),
            "forced": (g.Beam(3), (g.ForcedWords([[40, 41]]), g.ForcedPrefix([30]))),
        }
        results: dict[str, Callable[[], Any]] = {}
        for name, (sampler, constraints) in settings.items():
            pipeline = TextToText(
                self.transformer, self.pieces, sampler, constraints=constraints, max_new_tokens=NEW_TOKENS
            )
            results[f"TextToText, {name}"] = lambda pipeline=pipeline: _generation(
                pipeline.generate(self.spanish)
            )
        plain = TextToText(self.transformer, self.pieces, max_new_tokens=NEW_TOKENS)
        ensemble = plain.with_settings(model=g.Ensemble([self.transformer, draft]))
        limits = [1 + i % NEW_TOKENS for i in range(len(self.spanish))]
        return results | {
            "TextToText, texts": lambda: plain(self.spanish),
            "TextToText, T5": lambda: TextToText(self.t5, self.pieces, "beam", max_new_tokens=NEW_TOKENS)(
                self.spanish
            ),
            "TextToText, prefixes and limits": lambda: plain(
                self.spanish, prefixes=[text[:5] for text in self.english], max_new_tokens=limits
            ),
            "TextToText, ensemble": lambda: ensemble(self.spanish),
            "TextToText, score": lambda: plain.score(self.spanish, self.english),
            "TextToText, align": lambda: [plain.align(*pair).weights.tolist() for pair in self.pairs[:50]],
            "TextToText, stream": lambda: [list(plain.stream(text)) for text in self.spanish[:50]],
        }

    def _decoders(self) -> dict[str, Callable[[], Any]]:
        from keras_transformer import generation as g
        from keras_transformer.pipelines import TextGeneration

        results: dict[str, Callable[[], Any]] = {}
        for name, sampler in {
            "greedy": "greedy",
            "beam": g.Beam(3),
            "sample": g.Sample(0.8, min_p=0.05, seed=3),
            "contrastive": g.Contrastive(),
        }.items():
            pipeline = TextGeneration(self.gpt, self.byte_pairs, sampler, max_new_tokens=NEW_TOKENS)
            results[f"TextGeneration, {name}"] = lambda pipeline=pipeline: _generation(
                pipeline.generate(self.english)
            )
        plain = TextGeneration(self.gpt, self.byte_pairs, max_new_tokens=NEW_TOKENS)
        return results | {
            "TextGeneration, texts": lambda: plain(self.english),
            "TextGeneration, score": lambda: plain.score(self.english, [f" {text}" for text in self.english]),
        }

    def _encoders(self) -> dict[str, Callable[[], Any]]:
        from keras_transformer import models, pipelines

        made = {
            "TextClassification": pipelines.TextClassification(
                randomised(models.SequenceClassifier(self.bert, 3), 6), self.words, long_texts="window"
            ),
            "TokenClassification": pipelines.TokenClassification(
                randomised(models.TokenClassifier(self.bert, 3), 7), self.words, long_texts="window"
            ),
            "QuestionAnswering": pipelines.QuestionAnswering(
                randomised(models.SpanClassifier(self.bert), 8), self.words, long_texts="window"
            ),
            "FillMask": pipelines.FillMask(randomised(models.MaskedLanguageModel(self.bert), 9), self.words),
            "Embedding": pipelines.Embedding(self.bert, self.words),
            "TextClassification, GPT": pipelines.TextClassification(
                randomised(
                    models.GPTClassifier(self.gpt.resize_token_embeddings(self.gpt.vocabulary_size + 3), 2),
                    10,
                ),
                self.byte_pairs,
            ),
        }
        reversed_ = self.english[::-1]
        answer = made["QuestionAnswering"]
        long = [" ".join(self.english[i : i + 30]) for i in range(100)]
        masked = [f"{text} [MASK] {other}" for text, other in zip(self.english, reversed_, strict=True)]
        return {
            "TextClassification": lambda: made["TextClassification"](self.english),
            "TextClassification, probabilities": lambda: _lists(
                made["TextClassification"].probabilities(self.english)
            ),
            "TextClassification, pairs": lambda: made["TextClassification"](self.english, reversed_),
            "TextClassification, windows": lambda: made["TextClassification"](long),
            "TextClassification, GPT": lambda: made["TextClassification, GPT"](self.english),
            "TokenClassification": lambda: made["TokenClassification"](self.english),
            "TokenClassification, windows": lambda: made["TokenClassification"](long),
            "QuestionAnswering": lambda: list(map(answer, self.english, reversed_)),
            "QuestionAnswering, windows": lambda: list(map(answer, self.english[:20], long)),
            "FillMask": lambda: made["FillMask"](masked),
            "Embedding": lambda: _lists(made["Embedding"](self.english)),
        }

    def _others(self) -> dict[str, Callable[[], Any]]:
        from keras_transformer import models, pipelines

        random = np.random.default_rng(0)
        vit = randomised(
            models.ViT(
                image_size=(12, 12),
                patch_size=4,
                num_channels=1,
                num_classes=5,
                num_layers=1,
                num_heads=2,
                model_dim=16,
            ),
            11,
        )
        images = random.uniform(0, 255, (len(self.english), 12, 12, 1)).astype("float32")
        gat = randomised(models.GAT(6, 3), 12)
        graphs = [
            (random.normal(size=(n, 6)).astype("float32"), random.integers(0, n, (2 * n, 2)))
            for n in random.integers(2, 12, 100)
        ]
        nodes = pipelines.NodeClassification(gat)
        return {
            "ImageClassification": lambda: _lists(pipelines.ImageClassification(vit)(images)),
            "NodeClassification": lambda: [_lists(nodes(*graph)) for graph in graphs],
        }


def _generation(out: Any) -> dict[str, Any]:
    return {field.name: _lists(getattr(out, field.name)) for field in dataclasses.fields(out)}


def _lists(values: Any) -> Any:
    """Convert arrays, tuples and outputs to lists and dictionaries."""
    if dataclasses.is_dataclass(values):
        return _generation(values)
    if isinstance(values, list | tuple):
        return [_lists(value) for value in values]
    return values.tolist() if isinstance(values, np.ndarray | np.generic) else values


def record(path: pathlib.Path, count: int, only: list[str] | None) -> None:
    """Write all outputs."""
    results = {}
    for name, answer in Cases(count).answers().items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        results[name] = _lists(answer())
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    path.write_text(json.dumps(results))


def differences(one: Any, other: Any) -> int:
    """Return the number of differing values."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return sum(differences(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return sum(map(differences, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return int(not (one == other or math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)))
    return int(one != other)


def compare(paths: list[pathlib.Path]) -> bool:
    """Print differences; return whether there are none."""
    before, after = (json.loads(path.read_text()) for path in paths)
    good = True
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            print(f"{name}: only {'after' if name in after else 'before'}")
            good = False
            continue
        rows = [differences(*pair) for pair in zip(_rows(before[name]), _rows(after[name]), strict=True)]
        wrong = sum(map(bool, rows))
        good &= not wrong
        print(f"{name}: {len(rows) - wrong} of {len(rows)} rows equal")
    return good


def _rows(answers: Any) -> list[Any]:
    """Return the outputs of each text; a generation has columns of outputs."""
    if isinstance(answers, dict):
        return [list(row) for row in zip(*(answers[name] for name in sorted(answers)), strict=True)]
    return answers


def main() -> None:
    """Record or compare outputs; return status 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="write the answers of this checkout")
    recorder.add_argument("path", type=pathlib.Path)
    recorder.add_argument("--texts", type=int, default=2000)
    recorder.add_argument("--only", nargs="*", help="names of cases")
    comparer = commands.add_parser("compare", help="compare two files of answers")
    comparer.add_argument("paths", type=pathlib.Path, nargs=2)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.path, arguments.texts, arguments.only)
    else:
        sys.exit(0 if compare(arguments.paths) else 1)


if __name__ == "__main__":
    main()
