"""Generated texts as choices of an answer: stop strings, the reason of their end, log-probabilities."""

import codecs
import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer_serving.decoding import largest
from keras_transformer_serving.generation import Token, stream_text
from keras_transformer_serving.pipelines.generating import Generating

_CONTEXT = 16  # tokens before one with which it is decoded


class TokenLogprob(NamedTuple):
    r"""The log-probability of a token.

    Attributes:
        text: the text that it adds; of a part of a character its bytes, such as "bytes:\xe2\x82"; or the name of a
            special token that texts are without.
        content: the UTF-8 bytes that it adds; None for a special token that texts are without.
        logprob: its log-probability.
    """

    text: str
    content: bytes | None
    logprob: float


class Logprob(NamedTuple):
    """The log-probability of a generated token, and the most probable tokens in its place.

    Attributes:
        token: the token.
        top: the most probable tokens.
        offset: the number of characters of the text before it.
    """

    token: TokenLogprob
    top: list[TokenLogprob]
    offset: int


class Choice:
    """A generated text, up to the first of several strings: an iterator of its pieces.

    A piece is text, and the `Logprob`s of its tokens if they are asked for. Text that may be the beginning of a stop
    string, or is a part of a character, is held back with its tokens until it is known.

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
        # The number of the characters of the tokens so far; the last may have a part of another.
        self._offset, self._decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
        self._logprobs: collections.deque[Logprob] = collections.deque()  # of tokens that are held back
        tokenizer = pipeline.tokenizer
        self._special_ids = {*tokenizer.special_token_ids.values(), *pipeline.engine.end_ids}

    def __iter__(self) -> Iterator[tuple[str, list[Logprob]]]:
        """Yield the pieces."""
        text, sent = "", 0
        for piece in stream_text(self._read(), self._pipeline.decode):
            text += piece
            ends = ((at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0)
            stop = min(ends, default=None)
            end = len(text) - self._num_open(text) if stop is None else stop[1]
            yield text[sent:end], [*self._logprobs_before(end)]
            sent = end
            if stop is not None:
                return
        if self.num_tokens == self._limit and self._ids[-1] not in self._pipeline.engine.end_ids:
            self.finish_reason = "length"
        yield text[sent:], [*self._logprobs]

    def _read(self) -> Iterator[int]:
        for token in self._tokens:
            self.num_tokens += 1
            if self._top is not None and token.id not in self._pipeline.engine.end_ids:
                self._logprobs.append(self._logprob_of(token, self._top))
            self._ids.append(token.id)
            yield token.id

    def _logprobs_before(self, end: int) -> Iterator[Logprob]:
        """Yield the log-probabilities of the tokens that begin before an offset."""
        while self._logprobs and self._logprobs[0].offset < end:
            yield self._logprobs.popleft()

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
        best = largest(logits, top)
        chosen, *others = (self._token(id_, float(logprobs[id_])) for id_ in (token.id, *best))
        offset = self._offset
        self._offset += len(self._decoder.decode(chosen.content or b""))
        return Logprob(chosen, others, offset)

    def _token(self, id_: int, logprob: float) -> TokenLogprob:
        content = self._content(id_)
        if not content and id_ in self._special_ids:
            return TokenLogprob(self._pipeline.tokenizer.pieces[id_], None, logprob)
        try:
            return TokenLogprob(content.decode(), content, logprob)
        except UnicodeDecodeError:
            text = "".join(f"\\x{byte:02x}" for byte in content)
            return TokenLogprob(f"bytes:{text}", content, logprob)

    def _content(self, id_: int) -> bytes:
        """Return the bytes that a token adds to the ids before it."""
        ids, decode = self._ids[-_CONTEXT:], self._pipeline.decode
        before, text = decode(ids), decode([*ids, id_])
        if text == before and not decode([id_]):
            return b""
        content = self._pipeline.tokenizer.content(id_)
        return text.removeprefix(before).encode() if content is None else content
