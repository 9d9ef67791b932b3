"""Recipe of a summarizer of documents."""

from typing import Any, ClassVar

from keras_transformer import data, models, pipelines
from keras_transformer.recipes.text_to_text import Pairs, TextToTextRecipe
from keras_transformer_options.arguments import renamed
from keras_transformer_options.tasks import SummarizeOptions


class Summarize(SummarizeOptions, TextToTextRecipe):
    """Train an encoder–decoder to summarize documents, on pairs (document, summary).

    Documents are cut off after `max_length` tokens, in training and in the evaluation with ROUGE. With `top_k`, the
    model is a `models.Unlimiformer`, which reads them in chunks, so that they may be longer than the model's inputs.

    The options are the fields of `SummarizeOptions` and of its base classes in `keras_transformer_options`.

    Example:
        >>> recipe = Summarize("cnn/stories/*.story", from_="facebook/bart-base", epochs=1)  # doctest: +SKIP
        >>> summarizer, history = recipe.train()  # doctest: +SKIP
        >>> summarizer(document, truncate=True)  # doctest: +SKIP
        'The storm is over.'
    """

    truncates: ClassVar[bool] = True

    def read(self, paths: Any) -> Pairs:
        """Read documents and summaries."""
        return data.read_summaries(paths, self.columns, **self.file_format, on_error=self.on_error)

    def new_pipeline(self, train: Pairs) -> pipelines.TextToText:
        """Create a pipeline with the lengths of the options and, with `top_k`, with an Unlimiformer."""
        pipeline = super().new_pipeline(train)
        settings = {**pipeline.settings(), "max_source_tokens": self.max_length}
        model = pipeline.model
        with renamed(max_source_tokens="max_length"):
            if self.top_k is not None:
                model = getattr(model, "model", model)  # of an Unlimiformer
                model = models.Unlimiformer(model, self.top_k, self.chunk_length)
            return pipelines.TextToText(model, pipeline.tokenizer, **settings)

    def lengths(self, pipeline: Any) -> tuple[int, int]:
        """Return the maximum length of documents and summaries."""
        return self.max_length, pipeline.max_new_tokens
