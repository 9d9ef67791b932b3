"""Recipes of causal and masked language models."""

import itertools
import os
from collections.abc import Sequence
from typing import Any, ClassVar

from keras_transformer import data, generation, models, pipelines, training
from keras_transformer.recipes.pretrained import check_pipeline, encoder_of
from keras_transformer.recipes.recipe import SIZES, Recipe, read_rows
from keras_transformer_options.files import checked_paths, file_lines
from keras_transformer_options.malformed import Malformed
from keras_transformer_options.tasks import LanguageModelOptions, MaskedLanguageModelOptions, TextsOptions

BERT_ARGUMENTS = {
    name: {argument: size[argument] for argument in SIZES if argument in size}
    for name, size in models.BERT.sizes.items()
}


class _Texts(TextsOptions, Recipe):
    """Training on texts without labels."""

    def read(self, paths: Any) -> list[str]:
        """Read texts: each plain text file is one text, as is each row of other files."""
        texts: list[str] = []
        malformed = Malformed("paths", self.on_error, has_options=True)
        for path in checked_paths(paths):
            if self.is_one_text(path):
                texts.append(self._content(path, malformed))
            else:
                texts += [row[0] for row in read_rows(self, path)]
        malformed.report()
        return texts

    def _content(self, path: str | os.PathLike[str], malformed: Malformed) -> str:
        """Return the content of a plain text file; record and skip malformed lines."""
        kept = []
        lines = file_lines(path, "paths", encoding=self.encoding, has_encoding=True)
        for number, line in enumerate(lines, start=1):
            malformed.total += 1
            try:
                kept.append(line.decode())
            except UnicodeDecodeError:
                malformed.add(path, f"line {number}", "not UTF-8", line)
        return "".join(kept).replace("\r\n", "\n").replace("\r", "\n")

    def split(self, examples: list[str]) -> tuple[list[str], list[str]]:
        """Hold out a fraction of the texts, or the end of a single text."""
        if len(examples) > 1 or are_pairs(examples):
            train, validation = data.split(examples, self.validation, self.seed)
            return train, validation
        (text,) = examples
        cut = text.rfind("\n", 0, round(len(text) * (1 - self.validation))) + 1
        cut = cut or round(len(text) * (1 - self.validation))
        return [text[:cut]], [text[cut:]]


class LanguageModel(LanguageModelOptions, _Texts):
    """Train a decoder-only model to continue texts, or to answer prompts.

    Two `columns`, or examples that are pairs, are prompts and completions; the loss is then computed on completions.

    The options are the fields of `LanguageModelOptions` and of its base classes in `keras_transformer_options`.

    Example:
        >>> writer, history = LanguageModel("novel.txt", epochs=5).train()  # doctest: +SKIP
        >>> writer("It was a")  # doctest: +SKIP
        ' dark night.'
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"num_layers": 4, "num_heads": 4, "model_dim": 128},
        "small": {"num_layers": 6, "num_heads": 6, "model_dim": 384},
        "base": {"num_layers": 12, "num_heads": 12, "model_dim": 768},
        **{
            name: {argument: size[argument] for argument in (*SIZES, "normalization") if argument in size}
            for name, size in models.GPT.sizes.items()
        },
    }

    def read(self, paths: Any) -> list[Any]:
        """Read texts, or prompts and completions."""
        return read_rows(self, paths) if self.are_pairs else super().read(paths)

    def new_pipeline(self, train: Sequence[Any]) -> pipelines.TextGeneration:
        """Create a GPT that samples, because greedy continuations repeat themselves."""
        if self.from_ is not None:
            pipeline = check_pipeline(self.pretrained(), pipelines.TextGeneration)
            return pipeline.with_settings(max_new_tokens=self.max_new_tokens)
        tokenizer = self.new_tokenizer(itertools.chain.from_iterable(train) if are_pairs(train) else train)
        model = models.GPT(
            tokenizer.vocabulary_size,
            **self.sizes(),
            max_length=self.max_length,
            pad_id=tokenizer.pad_id,
            end_id=tokenizer.end_id,
        )
        new_tokens = self.max_new_tokens or max(1, self.max_length // 2)
        return pipelines.TextGeneration(
            model, tokenizer, generation.Sample(0.8, top_p=0.95), max_new_tokens=new_tokens
        )

    def batches(self, examples: Sequence[Any], pipeline: Any, shuffle: bool) -> Any:
        """Return rows of `max_length` tokens: of the texts joined by end tokens, or packed with pairs."""
        length = min(self.max_length, pipeline.model.max_length or self.max_length)
        batches_of = data.instruction_tuning if are_pairs(examples) else data.language_modeling
        return batches_of(examples, pipeline.tokenizer, length=length, **self.batching(shuffle))

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return cross-entropy and perplexity."""
        return token_loss(pipeline.tokenizer.pad_id)

    def evaluate(self, pipeline: Any, examples: Sequence[Any]) -> dict[str, Any]:
        """Return the perplexity, and answers to prompts, or continuations of the first words of lines."""
        metrics = evaluate_tokens(self, pipeline, examples)
        if are_pairs(examples):
            limit = pipeline.max_source_tokens - 1  # minus a start id
            sizes = pipeline.tokenizer.tokenize([prompt for prompt, _ in examples[:100]]).row_lengths()
            samples = [pair for pair, size in zip(examples, sizes, strict=False) if 0 < size <= limit][:5]
            answers = pipeline([prompt for prompt, _ in samples])
            rows = [
                {"input": prompt, "reference": completion, "answer": answer}
                for (prompt, completion), answer in zip(samples, answers, strict=True)
            ]
            return {**metrics, "examples": rows}
        words = [line.split() for text in examples for line in text[:10_000].splitlines()]
        limit = pipeline.max_source_tokens - 1  # minus a start id
        lines = [fitting(line[:4], pipeline.tokenizer, limit) for line in words if len(line) > 4][:5]
        prompts = [" ".join(line) for line in lines if line]
        rows = [
            {"input": prompt, "answer": answer}
            for prompt, answer in zip(prompts, pipeline(prompts), strict=True)
        ]
        return {**metrics, "examples": rows}


class MaskedLanguageModel(MaskedLanguageModelOptions, _Texts):
    """Pre-train a BERT encoder to predict masked tokens; other recipes start from it with `from_`.

    The options are the fields of `MaskedLanguageModelOptions` and of its base classes in `keras_transformer_options`.

    Example:
        >>> filler, history = MaskedLanguageModel("novel.txt", epochs=5).train()  # doctest: +SKIP
        >>> filler("It was a [MASK] night.")  # doctest: +SKIP
        [[MaskPrediction(piece='dark', probability=0.4), …]]
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = BERT_ARGUMENTS

    def new_pipeline(self, train: Sequence[str]) -> pipelines.FillMask:
        """Create a BERT encoder with a head that predicts tokens."""
        if self.from_ is not None:
            pipeline = self.pretrained()
            if isinstance(pipeline, pipelines.FillMask):
                return pipeline
            encoder, tokenizer = encoder_of(pipeline), pipeline.tokenizer
        else:
            tokenizer = self.new_tokenizer(train)
            encoder = new_encoder(self, tokenizer)
        return pipelines.FillMask(models.MaskedLanguageModel(encoder, dtype=self.precision), tokenizer)

    def batches(self, examples: Sequence[str], pipeline: Any, shuffle: bool) -> Any:
        """Return rows of texts with masked tokens."""
        return data.masked_language_modeling(
            examples,
            pipeline.tokenizer,
            max_length=min(self.max_length, pipeline.encoder.max_length),
            rate=self.masked_share,
            whole_words=self.whole_words,
            **self.batching(shuffle),
        )

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return cross-entropy, perplexity and accuracy of the masked tokens."""
        loss, metrics = token_loss(pipeline.tokenizer.pad_id)
        return loss, [*metrics, training.TokenAccuracy(pad_id=pipeline.tokenizer.pad_id)]

    def evaluate(self, pipeline: Any, examples: Sequence[str]) -> dict[str, Any]:
        """Return perplexity and accuracy, and predictions of the middle words of lines."""
        metrics = evaluate_tokens(self, pipeline, examples)
        words = [line.split() for text in examples for line in text[:10_000].splitlines()]
        limit = pipeline.encoder.max_length - 2  # minus the special ids
        prompts = [fitting(line[:20], pipeline.tokenizer, limit) for line in words if len(line) > 3][:5]
        rows = []
        for line in filter(None, prompts):
            middle = len(line) // 2
            masked = " ".join([*line[:middle], pipeline.mask, *line[middle + 1 :]])
            predictions = ", ".join(prediction.piece for prediction in pipeline(masked)[0])
            rows.append({"input": masked, "reference": line[middle], "answer": predictions})
        return {**metrics, "examples": rows}


def are_pairs(examples: Sequence[Any]) -> bool:
    """Return whether examples are prompts and completions rather than texts."""
    return len(examples) > 0 and not isinstance(examples[0], str)


def fitting(words: Sequence[str], tokenizer: Any, limit: int) -> Sequence[str]:
    """Return the first words, as many as fit `limit` tokens."""
    while words and int(tokenizer.tokenize([" ".join(words)]).row_lengths()[0]) > limit:
        words = words[:-1]
    return words


def new_encoder(recipe: Recipe, tokenizer: Any) -> models.BERT:
    """Create a BERT encoder without a pooler, which would need pre-training."""
    return models.BERT(
        tokenizer.vocabulary_size,
        **recipe.sizes(),
        max_length=recipe.max_length,
        pooler=False,
        pad_id=tokenizer.pad_id,
    )


def token_loss(pad_id: int | None) -> tuple[Any, list[Any]]:
    """Return cross-entropy and perplexity over tokens."""
    return training.LabelSmoothedCrossentropy(0.0, pad_id=pad_id), [training.Perplexity(pad_id=pad_id)]


def evaluate_tokens(recipe: Recipe, pipeline: Any, examples: Sequence[str]) -> dict[str, float]:
    """Return the metrics of `recipe.loss` on examples."""
    loss, compiled_metrics = recipe.loss(pipeline)
    pipeline.model.compile(loss=loss, metrics=compiled_metrics)
    metrics = pipeline.model.evaluate(
        recipe.batches(examples, pipeline, shuffle=False), return_dict=True, verbose=0
    )
    return {name: float(value) for name, value in metrics.items() if name != "loss"}
