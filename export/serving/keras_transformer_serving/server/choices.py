"""Generated texts as choices of an answer: stop strings, the reason of their end, log-probabilities."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer_serving.generation import Token, stream_text
from keras_transformer_serving.pipelines.generating import Generating


class Logprob(NamedTuple):
    """The log-probability of a generated token, and the most probable tokens in its place.

    Attributes:
        text: the text of the token.
        logprob: its log-probability.
        top: the texts and log-probabilities of the most probable tokens.
    """

    text: str
    logprob: float
    top: list[tuple[str, float]]


class Choice:
    """A generated text, up to the first of several strings: an iterator of its pieces.

    A piece is the text that a token adds, and the token's `Logprob` if they are asked for. Text that may be the
    beginning of a stop string is held back until it is known.

    Args:
        pipeline: the pipeline.
        tokens: the tokens.
        stops: the strings at which the text ends, without them.
        limit: the maximum number of tokens.
        top: the number of the most probable tokens in each `Logprob`; None for no log-probabilities.

    Attributes:
        num_tokens: the number of tokens so far, end tokens among them.
        finish_reason: at the end "stop" or, at the limit, "length".
    """

    def __init__(
        self,
        pipeline: Generating,
        tokens: Iterable[Token],
        stops: Sequence[str],
        limit: int,
        top: int | None = None,
    ) -> None:
        self.num_tokens, self.finish_reason = 0, "stop"
        self._pipeline, self._tokens, self._stops = pipeline, tokens, stops
        self._limit, self._top = limit, top
        self._ids: list[int] = []
        self._logprob: Logprob | None = None

    def __iter__(self) -> Iterator[tuple[str, Logprob | None]]:
        """Yield the pieces."""
        text, sent = "", 0
        for piece in stream_text(self._read(), self._pipeline.decode):
            logprob, self._logprob = self._logprob, None
            text += piece
            ends = ((at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0)
            stop = min(ends, default=None)
            end = len(text) - self._num_open(text) if stop is None else stop[1]
            yield text[sent:end], logprob
            sent = end
            if stop is not None:
                return
        if self.num_tokens == self._limit and self._ids[-1] not in self._pipeline.engine.end_ids:
            self.finish_reason = "length"
        yield text[sent:], None

    def _read(self) -> Iterator[int]:
        for token in self._tokens:
            self.num_tokens += 1
            if self._top is not None and token.id not in self._pipeline.engine.end_ids:
                self._logprob = self._logprob_of(token, self._top)
            self._ids.append(token.id)
            yield token.id

    def _num_open(self, text: str) -> int:
        """Return the length of the longest end of a text that is the beginning of a stop string."""
        lengths = (
            length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length])
        )
        return max(lengths, default=0)

    def _logprob_of(self, token: Token, top: int) -> Logprob:
        assert token.logits is not None
        logits = token.logits.astype(np.float32)
        logprobs = logits - logits.max()
        logprobs = logprobs - np.log(np.exp(logprobs).sum())
        best = np.argsort(-logits, kind="stable")[:top].tolist()
        entries = [(self._text_of(id_), float(logprobs[id_])) for id_ in best]
        return Logprob(self._text_of(token.id), float(logprobs[token.id]), entries)

    def _text_of(self, id_: int) -> str:
        """Return the text that a token adds to the ids before it, or the token itself if that is incomplete."""
        before = self._ids[-1:]
        prefix, text = self._pipeline.decode(before), self._pipeline.decode([*before, id_])
        if text.startswith(prefix) and len(text) > len(prefix) and not text.endswith("\ufffd"):
            return text[len(prefix) :]
        assert self._pipeline.text_methods is not None
        return self._pipeline.text_methods.piece(id_)
