"""The base class of recipes that train an encoder–decoder from text to text."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from keras_transformer import data, generation, models, pipelines, text, training
from keras_transformer.pipelines import hugging_face
from keras_transformer.pipelines.pipeline import folder_of, is_pipeline
from keras_transformer.recipes import distributed
from keras_transformer.recipes.pretrained import check_pipeline
from keras_transformer.recipes.recipe import Recipe
from keras_transformer_options.arguments import check, check_one_of
from keras_transformer_options.tasks import TextToTextOptions

Pairs = Sequence[tuple[str, str]]
_LANGUAGES = ("source_language", "target_language")
_MONITORED = 1000  # examples


class TextToTextRecipe(TextToTextOptions, Recipe):
    """Base class of recipes that train an encoder–decoder on pairs (source, target)."""

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"num_layers": 2, "num_heads": 4, "model_dim": 128, "hidden_dim": 512},
        "small": {"num_layers": 3, "num_heads": 8, "model_dim": 256, "hidden_dim": 1024},
        "base": {"num_layers": 6, "num_heads": 8, "model_dim": 512, "hidden_dim": 2048},
        "big": {"num_layers": 6, "num_heads": 16, "model_dim": 1024, "hidden_dim": 4096},
    }
    truncates: ClassVar[bool] = False  # long texts, which are otherwise excluded from training and refused

    def new_pipeline(self, train: Pairs) -> pipelines.TextToText:
        """Create a Transformer with one vocabulary for sources and targets, or load the pipeline of `from_`."""
        if self.from_ is not None:
            return self._with_options(check_pipeline(self.pretrained(), pipelines.TextToText))
        tokenizer = self.new_tokenizer(side for pair in train for side in pair)
        special_ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
        model = models.Transformer(tokenizer.vocabulary_size, **self.sizes(), **special_ids)
        return pipelines.TextToText(model, tokenizer, max_new_tokens=self.max_new_tokens or 128)

    def _with_options(self, pipeline: pipelines.TextToText) -> pipelines.TextToText:
        """Return a pipeline with the options' languages and number of tokens, or those that it has."""
        known = list(pipeline.languages)
        languages = {name: getattr(self, name) or getattr(pipeline, name) for name in _LANGUAGES}
        for name, language in languages.items():
            if known:
                check_one_of(known, **{name: language})
            else:
                check(
                    language is None, "be None, as the model of {from_} has no languages", **{name: language}
                )
        return pipeline.with_settings(max_new_tokens=self.max_new_tokens, **languages)

    def lengths(self, pipeline: Any) -> int | tuple[int, int]:
        """Return the maximum length of sources and targets."""
        return self.max_length

    def batches(self, examples: Pairs, pipeline: Any, shuffle: bool) -> Any:
        """Return batches for teacher forcing."""
        tokens = self.batch_tokens or (self.default_batch_tokens if self.batch_size is None else None)
        forced = (each.prefix for each in pipeline.constraints if isinstance(each, generation.ForcedPrefix))
        return data.translation_pairs(
            examples,
            pipeline.tokenizer,
            target_tokenizer=self._target_tokenizer(pipeline),
            target_prefix=next(forced, ()),
            source_language=pipeline.source_language,
            target_language=pipeline.target_language,
            batch_tokens=distributed.per_process(tokens),
            max_length=self.lengths(pipeline),
            truncate=self.truncates,
            **self.batching(shuffle),
        )

    def _target_tokenizer(self, pipeline: Any) -> Any:
        """Return the tokenizer of a published Marian's targets, which has pieces of its own; None for others."""
        if self.from_ is None or is_pipeline(folder_of(self.from_)):
            return None
        folder = hugging_face.download(self.from_, self.revision)
        if not (folder / "target.spm").is_file():
            return None
        size = pipeline.model.vocabulary_size
        return text.MarianT5Tokenizer.from_files(folder, target=True, vocabulary_size=size)

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return label-smoothed cross-entropy and token accuracy."""
        pad_id = pipeline.model.pad_id
        return training.LabelSmoothedCrossentropy(0.1, pad_id=pad_id), [training.TokenAccuracy(pad_id=pad_id)]

    def stopping(self, pipeline: Any) -> list[Any]:
        """Return the callbacks of the base class, after one that generates texts for a metric to monitor."""
        callbacks = super().stopping(pipeline)
        if self.monitor == "loss":
            return callbacks
        examples = self.splits.validation[:_MONITORED]

        def score() -> float:
            scores = pipelines.evaluate(self._answers(pipeline), examples, metrics=[self.monitor])
            return float(scores[self.monitor])

        return [training.Evaluation(score, self.monitor), *callbacks]

    def check_requirements(self) -> None:
        """Raise an ImportError if the package of the metrics is not installed."""
        pipelines.scorers(self.metrics)

    def evaluate(self, pipeline: Any, examples: Pairs) -> dict[str, Any]:
        """Return the metrics with bootstrap intervals, exact match, and examples."""
        answers = self._answers(pipeline)
        metrics = pipelines.evaluate(answers, examples, metrics=self.metrics, num_bootstrap=1000)
        shown = examples[:10]
        rows = [
            {"input": source, "reference": target, "answer": answer}
            for (source, target), answer in zip(shown, answers([source for source, _ in shown]), strict=True)
        ]
        return {**metrics, "examples": rows}

    def _answers(self, pipeline: Any) -> Callable[[list[str]], list[str]]:
        """Return a function from texts to the texts that the pipeline generates."""
        return functools.partial(pipeline, truncate=self.truncates)
