"""Calls of pipelines that generate, from texts to texts."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import numpy as np

from keras_transformer_serving import jobs
from keras_transformer_serving.generation import (
    Alignment,
    Answer,
    Generated,
    Generation,
    GenerationEngine,
    Source,
)
from keras_transformer_serving.graphs import Graphs
from keras_transformer_serving.jobs import Steps
from keras_transformer_serving.pipelines.errors import (
    Errors,
    RowErrors,
    as_list,
    check_batch_size,
    check_truncate,
)
from keras_transformer_serving.pipelines.generation_steps import GenerationSteps as GenerationSteps
from keras_transformer_serving.pipelines.generation_steps import padding_value
from keras_transformer_serving.pipelines.options import Options, TextOptions, texts_of
from keras_transformer_serving.tasks import ExportedPipeline, Row
from keras_transformer_serving.text import Tokenizer
from keras_transformer_serving.text.methods import PythonMethods

T = TypeVar("T")


class GeneratingTask(GenerationSteps):
    """Generation: from texts to texts, or to token ids by `generate`.

    Its attributes are those of `GenerationSteps`.
    """

    def __call__(
        self,
        texts: Any,
        batch_size: int = 64,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
        **options: Unpack[TextOptions],
    ) -> Any:
        r"""Generate texts.

        Args:
            texts: a list of any length, or one text. A text of only spaces and unknown characters gives an empty
                output, or only its prefix; a prompt must have at least one token.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of the output.
            truncate: whether to truncate texts of more than `max_source_tokens` tokens. An encoder–decoder reads the
                first tokens and the end token; a decoder-only model reads the last tokens of a prompt.
            **options: those of `TextOptions`, such as `max_new_tokens`, `prefixes` and `glossary`.

        Returns:
            A list as long as `texts`, or a string for one text: the first of several hypotheses (see `answers`).

        Raises:
            ValueError: if a text is not valid Unicode or too long, its tags are not closed, an option is out of range,
                the numbers of options and texts differ, a language is unknown or missing, there is no tokenizer, or the
                model or the export has no such option.

        Example:
            >>> translator(["la casa", "la casa"], prefixes=["the", "a"], max_new_tokens=8)
            ['the house', 'a house']
            >>> translator("La casa.\n\nEl perro.", long_texts="split")
            'The house.\n\nThe dog.'
            >>> translator("<p>La <b>casa</b> azul.", tag_handling="html", glossary={"casa": "home"})
            '<p>The blue <b>home</b>.'
            >>> translator(["la casa", None], errors="return")
            ['the house', TypeError('`texts` must be strings. Received: texts[1]=None')]
        """
        one = self._is_one(texts)
        if one and isinstance(prefix := options.get("prefixes"), str):
            options["prefixes"] = [prefix]
        row_errors = RowErrors(errors)
        answers = self._run([texts] if one else texts, batch_size, row_errors, truncate, options, self._text)
        outputs = row_errors.merge(answers)
        return outputs[0] if one else outputs

    def answers(
        self,
        texts: Iterable[Any],
        batch_size: int = 64,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
        **options: Unpack[TextOptions],
    ) -> list[Any]:
        """Generate all hypotheses for each text: the n-best of a beam, or several samples; arguments are as in a call.

        Returns:
            A list of the N `Answer`s to each text, or fewer if there are not N distinct ones.

        Example:
            >>> translator = TextToText(model, tokenizer, Beam(4, num_return=2))
            >>> [[answer.text for answer in answers] for answers in translator.answers(["la casa"])]
            [['the house', 'a house']]
        """
        row_errors = RowErrors(errors)
        return row_errors.merge(self._run(texts, batch_size, row_errors, truncate, options, self._answers))

    def generate(
        self,
        texts: Iterable[Any],
        batch_size: int = 64,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
        **options: Unpack[Options],
    ) -> Generation:
        """Generate token ids.

        Args:
            texts: B texts, or lists of token ids.
            batch_size: as in a call.
            errors: "raise" the error of a text, or "return" it in "error", with empty values in its row.
            truncate: as in a call; lists of ids are truncated, too.
            **options: those of `Options`.

        Returns:
            The `Generation`, as long as the largest limit; prefixes are not part of it.
        """
        texts, row_errors = as_list("texts", texts), RowErrors(errors)
        rows = self.rows(len(texts), row_errors, truncate, options, Options.__annotations__)
        found = self._run(texts, batch_size, row_errors, truncate, options, self._generated, rows)
        limits = [row.get("max_new_tokens", self.engine.max_new_tokens) for row in rows]
        seeds = {row["seed"] for row in rows if "seed" in row}
        return Generation(
            **_stacked(found, len(texts), max(limits, default=self.engine.max_new_tokens), self.engine),
            seed=seeds.pop() if len(seeds) == 1 else None,
            error=row_errors.merge(dict.fromkeys(range(len(texts)))) if errors == "return" else None,
        )

    def encode(
        self, texts: Iterable[Any], truncate: bool = False, *, source_language: Any = None
    ) -> list[list[int]]:
        """Return the source ids of each text or list of ids."""
        row_errors, options = RowErrors(), {"source_language": source_language}
        found = self._run(texts, 1, row_errors, truncate, options, self.source_ids)
        return row_errors.merge(found)

    def score(
        self,
        texts: Iterable[str],
        targets: Iterable[str],
        batch_size: int = 64,
        *,
        source_language: str | Iterable[str] | None = None,
        target_language: str | Iterable[str] | None = None,
        errors: Errors = "raise",
    ) -> list[Any]:
        """Score target texts.

        Args:
            texts: a list of any length.
            targets: the target of each text.
            batch_size: the number of rows in a batch.
            source_language: as in a call.
            target_language: as in a call; its token is not scored.
            errors: "raise" the error of a text or target, or "return" it in place of the answer.

        Returns:
            An `Answer` for each target, including its end token.

        Raises:
            ValueError: if a text is empty or too long, a target is too long, the numbers of texts and targets differ,
                or the export lacks the graphs of single steps.

        Example:
            >>> [answer.score for answer in translator.score(["la casa"] * 2, ["the house", "a house"])]
            [-0.2, -3.1]
        """
        self._check_scores("`score`")
        texts, row_errors = as_list("texts", texts), RowErrors(errors)
        targets = texts_of("targets", targets, len(texts), row_errors)

        def scored(text: Any, row: Row, index: int) -> Steps[Answer]:
            scores, target_ids = yield from self.scored(text, targets[index], row, index)
            total = float(scores.sum())
            ranking = self.engine.ranking_score(total, len(target_ids))
            return Answer(targets[index], total, ranking, target_ids, scores.tolist())

        options = {"source_language": source_language, "target_language": target_language}
        return row_errors.merge(self._run(texts, batch_size, row_errors, False, options, scored))

    def align(
        self,
        text: str,
        target: str | None = None,
        *,
        layer: int = -1,
        head: Any = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Alignment:
        """Align a target with its text by the decoder's cross-attention; see `generation.align`.

        Args:
            text: one text.
            target: the target; by default the output of a call.
            layer: the index of the decoder layer.
            head: the index of a head, or several indices to average; by default all.
            source_language: as in a call.
            target_language: as in a call.

        Raises:
            ValueError: if the text is empty, the model has no such weights, layer or head, or the pipeline is an
                export, whose graphs return no attention weights.

        Example:
            >>> alignment = translator.align("la casa")
            >>> [(piece, alignment.source[row.argmax()]) for piece, row in zip(alignment.target, alignment.weights)]
            [('▁the', '▁la'), ('▁house', '▁casa'), ('</s>', '</s>')]
        """
        options = {"source_language": source_language, "target_language": target_language}
        row = self._row(text, target, options)
        source, target_ids, output = self.now(self._pair(text, target, row, 0))
        weights = self.engine.attention(source, target_ids, layer, head)
        return self._alignment(source, target_ids, weights, output)

    def attributions(
        self,
        text: str,
        target: str | None = None,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Alignment:
        """Return how much each token of a text contributes to each token of a target.

        The contribution is the decrease of the log-probability of the target's token if the source token is masked,
        at least 0, divided by the sum over the source.

        Args:
            text: one text, of at most 64 tokens.
            target: the target; by default the output of a call.
            source_language: as in a call.
            target_language: as in a call.

        Returns:
            The `Alignment`; the weights of a token on which masking has no effect are 0.

        Raises:
            ValueError: if the text is empty or has more tokens, or the export lacks the graphs of single steps.

        References:
            Li et al., Understanding Neural Networks through Representation Erasure, 2016, equation 2.
        """
        if needed := self.engine.needed_to_attribute:
            raise ValueError(f"`attributions` needs {needed}")
        options = {"source_language": source_language, "target_language": target_language}
        return self.now(self.attributed(text, target, self._row(text, target, options), 0))

    def stream(
        self,
        text: Any,
        prefix: str = "",
        *,
        long_texts: str | None = None,
        truncate: bool = False,
        **options: Unpack[Options],
    ) -> Iterator[str]:
        """Stream the output text while it is generated; the concatenated pieces equal the output of a call.

        Args:
            text: one text.
            prefix: the prefix of the output, part of the first piece.
            long_texts: as in a call.
            truncate: as in a call.
            **options: those of `Options`.

        Raises:
            ValueError: if the sampler keeps several parallel hypotheses, or as in a call.
        """
        check_truncate(truncate)
        if not self._is_one(text):
            raise TypeError(f"`text` must be a string. Received: text={text!r}")
        given: Any = {**options, "long_texts": long_texts}
        if prefix:
            given["prefixes"] = [prefix]
        (row,) = self.rows(1, RowErrors(), truncate, given, {*Options.__annotations__, "long_texts"})
        with RowErrors().catching(0):
            pieces = self.pieces(text, row)
        return filter(None, pieces)

    def sources_of(self, texts: Sequence[Any], **options: Any) -> list[Source]:
        """Return the inputs of the generation for each text or list of ids; the options are those of `Options`."""
        row_errors = RowErrors()
        return row_errors.merge(self._run(texts, 1, row_errors, False, options, self.source_of))

    def _run(
        self,
        texts: Any,
        batch_size: int,
        errors: RowErrors,
        truncate: bool,
        options: Mapping[str, Any],
        answer: Callable[[Any, Row, int], Steps[T]],
        rows: Sequence[Row] | None = None,
    ) -> dict[int, T]:
        """Return the answers to the texts without an error, by index; `rows` are their options, if they are known."""
        check_batch_size(batch_size)
        check_truncate(truncate)
        texts = as_list("texts", texts)
        rows = self.rows(len(texts), errors, truncate, options) if rows is None else rows
        accepted = errors.accepted(len(texts))
        steps = {index: answer(texts[index], rows[index], index) for index in accepted}
        local = {} if self.text_methods is None else self.text_methods.methods
        return jobs.run(steps, local, self.engine, batch_size, errors)

    def _row(self, text: Any, target: str | None, options: Mapping[str, Any]) -> Row:
        """Return the options of a single text, after a check of text and target."""
        for name, value in (("text", text), ("target", target or "")):
            if not isinstance(value, str):
                raise TypeError(f"`{name}` must be a string. Received: {name}={value!r}")
        (row,) = self.rows(1, RowErrors(), False, options)
        return row

    def _text(self, text: Any, row: Row, index: int) -> Steps[str]:
        """Return the text of the first hypothesis."""
        self._check_text(text, index)
        output = yield from self.output(text, row, index)
        return output.texts[0]

    def _answers(self, text: Any, row: Row, index: int) -> Steps[list[Answer]]:
        """Return all hypotheses that were found."""
        self._check_text(text, index)
        texts, out = yield from self.output(text, row, index, self.engine.num_return)
        return [
            Answer(
                texts[place],
                float(out.scores[place]),
                None if out.ranking_scores is None else float(out.ranking_scores[place]),
                out.ids[place, :length].tolist(),
                None if out.token_scores is None else out.token_scores[place, :length].tolist(),
                row.get("seed"),
            )
            for place, length in enumerate(out.lengths)
            if out.scores[place] > -np.inf
        ]

    def _generated(self, text: Any, row: Row, index: int) -> Steps[Generated]:
        """Return the ids of all hypotheses."""
        source = yield from self.source_of(text, row, index)
        return (yield from self._hypotheses(source))

    def _is_one(self, texts: Any) -> bool:
        """Return whether the argument of a call is one text."""
        return isinstance(texts, str)


class Generating(GeneratingTask, ExportedPipeline, abc.ABC):
    """Base class of exported pipelines that generate.

    Args:
        engine: what generates.
        config: the export's settings.
        tokenizer: the export's tokenizer; None if it needs TensorFlow, so that inputs must be token ids.
    """

    def __init__(self, engine: GenerationEngine, config: dict[str, Any], tokenizer: Tokenizer | None) -> None:
        self.engine, self.config, self.tokenizer = engine, config, tokenizer
        self.text_methods = None if tokenizer is None else PythonMethods(tokenizer)
        self.max_source_tokens = config["max_source_tokens"]
        self.skip_special_tokens = config.get("skip_special_tokens", False)
        self.languages = {} if tokenizer is None else tokenizer.languages

    @property
    def graphs(self) -> Graphs:
        """The engine of an export that ONNX Runtime runs."""
        if not isinstance(self.engine, Graphs):
            raise ValueError(
                f"`graphs` needs an export that ONNX Runtime runs. Received: the engine {type(self.engine).__name__}"
            )
        return self.engine

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""
        return self._text_of_ids(ids)

    def run(self, input_ids: np.ndarray, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the outputs of the graph with the generation loop for token ids, without a tokenizer or batches.

        Args:
            input_ids: integers (B, S), padded.
            **arrays: the other arguments of `Graphs.generate`.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis N after the first if the
            export returns N > 1 hypotheses.
        """
        return self.graphs.generate(input_ids, **arrays)


def _stacked(
    rows: Mapping[int, Generated], count: int, length: int, engine: GenerationEngine
) -> dict[str, np.ndarray]:
    """Return the fields of a `Generation` of `count` rows and a length; rows that are missing are empty."""
    shape = (count, engine.num_return)
    fields: dict[str, np.ndarray] = {
        "ids": np.full((*shape, length), padding_value(engine), np.int32),
        "lengths": np.zeros(shape, np.int32),
        "scores": np.zeros(shape, np.float32),
        "ranking_scores": np.zeros(shape, np.float32),
        "token_scores": np.zeros((*shape, length), np.float32),
    }
    for index, row in rows.items():
        for name, values in row._asdict().items():
            if values is None:
                fields.pop(name, None)
            elif values.ndim == 1:
                fields[name][index] = values
            else:
                width = min(values.shape[1], length)
                fields[name][index, :, :width] = values[:, :width]
    return fields
