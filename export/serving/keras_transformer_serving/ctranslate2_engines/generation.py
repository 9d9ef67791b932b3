"""Generation of texts by CTranslate2."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any, Self, TypeVar

import numpy as np

from keras_transformer_serving.ctranslate2_engines.loading import load
from keras_transformer_serving.generation import (
    GENERATE,
    SCORE,
    ExportedEngine,
    Generated,
    Scored,
    Source,
    Token,
)
from keras_transformer_serving.jobs import Method
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.targets import EngineOptions

_MIN_NEW_TOKENS, _END_TOKENS = "MinNewTokens", "EndTokens"
_NOT_EARLY = 1 + 1e-3  # a patience with which CTranslate2 does not stop before all beams are finished
_NO_PENALTY = 1e-9  # changes no score; with 0, CTranslate2 waits until the best beam has ended

_Row = TypeVar("_Row")
_Group = TypeVar("_Group")
_Found = TypeVar("_Found")
_Hypotheses = tuple[list[list[int]], np.ndarray]  # their ids and log-probabilities


@dataclasses.dataclass(frozen=True)
class Search:
    """The search of a pipeline in the terms of CTranslate2.

    CTranslate2 searches, and hypotheses are ranked here, by the pipeline's length penalty.

    Attributes:
        num_beams: the number of beams, 1 for greedy search.
        num_return: the number of hypotheses.
        alpha: the exponent of the length penalty.
        normalization: "gnmt" or "length"; see `Beam`.
        early_stopping: when beam search stops.
        minimum: the number of tokens before an end token.
    """

    num_beams: int = 1
    num_return: int = 1
    alpha: float = 0.0
    normalization: str = "length"
    early_stopping: bool | str = True
    minimum: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the search of an export's settings.

        Raises:
            ValueError: if CTranslate2 does not have the sampler, one of its settings, or a constraint.
        """
        sampler, constraints = config["generation"], config.get("constraints", [])
        is_greedy = sampler["sampler"] == "greedy"
        known = (_END_TOKENS, _MIN_NEW_TOKENS) if is_greedy else (_END_TOKENS,)
        for constraint in constraints:
            if constraint["constraint"] not in known:
                kind = "greedy" if is_greedy else "beam"
                raise ValueError(
                    f"`constraints` must be among {', '.join(known)} for {kind} search in CTranslate2. "
                    f"Received: {constraint['constraint']}"
                )
            others = {*constraint.get("end_ids", ())} - {config["end_id"]}
            if others and not is_greedy:  # a beam would continue after one of several
                raise ValueError(
                    f"`{_END_TOKENS}` must have only the end token {config['end_id']} for beam search in CTranslate2. "
                    f"Received: {sorted(others)}"
                )
        counts = [each["count"] for each in constraints if each["constraint"] == _MIN_NEW_TOKENS]
        if is_greedy:
            return cls(minimum=max(counts, default=0))
        if sampler["sampler"] != "beam":
            raise ValueError(
                f"`sampler` must be greedy or beam search for CTranslate2. Received: {sampler['sampler']!r}"
            )
        alpha, stopping = sampler["length_penalty"], sampler["early_stopping"]
        if sampler["diversity"]:
            raise ValueError(
                f"`diversity` must be 0 for CTranslate2. Received: diversity={sampler['diversity']}"
            )
        if stopping == "heuristic" or (
            stopping == "num_beams" and alpha and sampler["normalization"] != "length"
        ):
            raise ValueError(
                '`early_stopping` must be True, False, or "num_beams" with normalization="length" for CTranslate2. '
                f"Received: early_stopping={stopping!r}, normalization={sampler['normalization']!r}"
            )
        return cls(sampler["num_beams"], sampler["num_return"], alpha, sampler["normalization"], stopping)

    def arguments(self, limit: int, found: int = 0) -> dict[str, Any]:
        """Return the arguments of a search for at most `limit` tokens, where `found` hypotheses are known already."""
        beams = self.num_beams
        if beams == 1 or (not self.alpha and self.num_return == 1 and self.early_stopping != "num_beams"):
            # No penalty: the first hypothesis that ends as the best of the beam is the best.
            return {"beam_size": beams, "length_penalty": 0}
        if self.early_stopping == "num_beams":
            # Of more than `num_beams` hypotheses, CTranslate2 returns the best by its own penalty.
            return {
                "beam_size": beams,
                "num_hypotheses": beams - found,
                "patience": (beams - found) / beams,
                "length_penalty": self.alpha or _NO_PENALTY,
            }
        # All hypotheses up to the limit.
        return {
            "beam_size": beams,
            "num_hypotheses": beams * limit,
            "patience": limit * _NOT_EARLY,
            "length_penalty": 0,
        }

    def sums(self, lengths: Sequence[int], scores: Sequence[float], prefix: int) -> np.ndarray:
        """Return the log-probabilities of hypotheses.

        Args:
            lengths: the numbers of tokens, with those of end tokens.
            scores: CTranslate2's scores.
            prefix: the number of tokens of the prefix, which CTranslate2 counts, too.
        """
        sums = np.array(scores, np.float64)
        if self.early_stopping == "num_beams" and self.num_beams > 1:
            sums *= (np.maximum(lengths, 1) + prefix) ** self.alpha  # CTranslate2 has divided them
        return sums

    def best(self, lengths: Sequence[int], sums: np.ndarray) -> np.ndarray:
        """Return the indices of the best hypotheses, by their lengths and log-probabilities."""
        order: np.ndarray = np.argsort(-self._ranking(lengths, sums), kind="stable")[: self.num_return]
        return order

    def may_lack(
        self, lengths: Sequence[int], sums: np.ndarray, scores: Sequence[float], prefix: int
    ) -> bool:
        """Return whether CTranslate2, which ranks by the length with the prefix, may have left out one of the best.

        The arguments are those of `sums`, and the log-probabilities.
        """
        if not (prefix and self.alpha and self.early_stopping == "num_beams" and self.num_beams > 1):
            return False
        # Of a score s with the prefix, that without is s * factor, and s <= min(scores) <= 0.
        factor = min(((length + prefix) / length) ** self.alpha for length in (1, max(lengths)))
        ranking = np.sort(self._ranking(lengths, sums))[-self.num_return :]
        return bool(ranking[0] < min(scores) * factor)

    def _ranking(self, lengths: Sequence[int], sums: np.ndarray) -> np.ndarray:
        """Return the log-probabilities over the length penalty."""
        sizes = np.maximum(np.array(lengths, np.float64), 1)
        base = sizes if self.normalization == "length" else (5 + sizes) / 6
        ranking: np.ndarray = sums / base**self.alpha
        return ranking


class CTranslate2Engine(ExportedEngine):
    """Generation by CTranslate2: a `GenerationEngine`.

    Its tokens are ids as strings, in place of the pieces of the vocabulary's file, which need not be unique. The
    arguments are those of `ServedTarget.engine`.
    """

    def __init__(self, files: PartFiles, config: Mapping[str, Any], options: EngineOptions) -> None:
        super().__init__(config)
        self.search = Search.of(config)
        # Tokens that are left out change the probabilities of the others, and with them the scores of beams.
        is_greedy = self.search.num_beams == 1
        self.options = ("max_new_tokens", "min_new_tokens") if is_greedy else ("max_new_tokens",)
        self.needed_for_options = {} if is_greedy else {"min_new_tokens": self.needed_to_stream}
        self.methods = {GENERATE: self._generated, SCORE: self._scored}
        tokens = _words(range(self.vocabulary_size))
        settings: dict[str, Any] = dict.fromkeys(("bos_token", "unk_token", "eos_token"), str(self.end_id))
        if self.start_id is None:
            kind, vocabularies = "Generator", {"vocabulary.json": tokens}
        else:
            kind, vocabularies = "Translator", {"shared_vocabulary.json": tokens}
            settings |= {"decoder_start_token": None, "add_source_bos": False, "add_source_eos": False}
        self._model, self.device = load(kind, files, options, vocabularies, settings, self._try_out)
        self._workers = options.workers
        self._ends = _words(sorted(self.end_ids))
        self._never = {id_ for id_ in (self.pad_id, self.start_id) if id_ is not None} - {self.end_id}
        words = [[word] for word in _words(sorted(self._never))]
        self._suppressed = {"suppress_sequences": words} if words else {}

    @property
    def needed_to_attribute(self) -> str:
        """The requirement of "score" with source ids to hide, which CTranslate2 does not have."""
        return "an engine that hides source tokens, such as 'onnx'. Received: CTranslate2"

    @property
    def needed_to_give_logits(self) -> str:
        """The requirement of logits of generated tokens, which CTranslate2 does not return."""
        return "an engine that gives logits, such as 'onnx'. Received: CTranslate2"

    @property
    def needed_to_stream(self) -> str:
        """The requirement of generation token by token that is not met, "" for none."""
        if self.search.num_beams == 1:
            return ""
        return f"greedy search. Received: the sampler {self.sampler['sampler']!r}"

    def map(self, method: Method, batches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the results of a method for several batches, as many at the same time as there are workers."""
        if self._workers == 1 or len(batches) < 2:
            return super().map(method, batches)
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            return [*pool.map(method, batches)]

    def tokens(self, source: Source) -> Iterator[Token]:
        """Generate token by token, up to an end token, the tokens that "generate" generates."""
        limit, minimum = self._limits(source)
        if not source.ids or not limit:
            return
        skipped, options = len(source.prefix_ids), {"end_token": self._ends, **self._suppressed}
        if self.start_id is None:
            results = self._model.generate_tokens(
                _words(source.ids), max_length=limit, min_length=minimum, **options
            )
        else:
            results = self._model.generate_tokens(
                _words(source.ids),
                self._target(source),
                max_decoding_length=limit + skipped,
                min_decoding_length=minimum + skipped,
                max_input_length=0,
                **options,
            )
        for result in results:
            if skipped:
                skipped -= 1
                continue
            yield Token(result.token_id)
            if result.token_id in self.end_ids:
                break
        results.close()

    def _try_out(self, model: Any) -> None:
        """Generate a token."""
        if self.start_id is None:
            model.generate_batch([["0"]], max_length=1)
        else:
            model.translate_batch([["0"]], [["0"]], max_decoding_length=1)

    def _limits(self, source: Source) -> tuple[int, int]:
        """Return the maximum and the minimum number of new tokens."""
        limit = source.options.get("max_new_tokens", self.max_new_tokens)
        minimum = max(source.options.get("min_new_tokens", 0), self.search.minimum)
        return limit, min(minimum, limit)

    def _generated(self, batch: Sequence[Source]) -> list[Generated]:
        """Return the hypotheses of a batch of sources, those of equal limits together.

        So are prompts of equal lengths: of longer ones, CTranslate2 would read the last tokens one by one.
        """

        def group(source: Source) -> tuple[int, ...]:
            prompt = len(source.ids) if self.start_id is None else 0
            return (*self._limits(source), len(source.prefix_ids), prompt) if source.ids else ()

        def hypotheses(group: tuple[int, ...], sources: list[Source]) -> list[Generated]:
            return self._hypotheses(sources, *group[:3]) if group else [self._padded([], [])] * len(sources)

        return _grouped(batch, map(group, batch), hypotheses)

    def _hypotheses(
        self, sources: Sequence[Source], limit: int, minimum: int, prefix: int
    ) -> list[Generated]:
        """Return the hypotheses of sources of equal limits, whose prefixes have `prefix` tokens.

        Tokens that must not be generated, such as padding, are suppressed only where they were generated: CTranslate2
        leaves them out of the distribution, so that its scores, and with them its beams, would not be the model's.
        """
        best = self._searched(sources, limit, minimum, prefix, {})
        wrong = [row for row, (rows, _) in enumerate(best) if not self._never.isdisjoint(chain(*rows))]
        if wrong:
            others = self._searched([sources[row] for row in wrong], limit, minimum, prefix, self._suppressed)
            best = [*best]
            for row, hypotheses in zip(wrong, others, strict=True):
                best[row] = hypotheses
        return [self._padded(*hypotheses) for hypotheses in best]

    def _searched(
        self,
        sources: Sequence[Source],
        limit: int,
        minimum: int,
        prefix: int,
        suppressed: Mapping[str, Any],
    ) -> list[_Hypotheses]:
        """Return the best hypotheses of each source.

        Of the beams right after a prefix, CTranslate2 ends the best only. Where another one ends, no hypothesis of the
        search does so, which changes all log-probabilities by the same number; that of the end token alone is added.
        """

        def best(ends: bool, sources: list[Source]) -> list[_Hypotheses]:
            least = max(minimum, int(ends))

            def searched(search: Search, sources: Sequence[Source], limit: int) -> Iterator[Any]:
                arguments = {"end_token": self._ends, **suppressed, **search.arguments(limit, int(ends))}
                results = self._run(sources, limit, least, prefix, arguments)
                for source, (ids, scores) in zip(sources, results, strict=True):
                    if ends:
                        ids.append([self.end_id])
                    if suppressed or least:  # the scores leave out the probabilities of tokens that were
                        rows = self._scored([Scored(source, row) for row in ids])
                        sums = np.array([row.sum() for row in rows])
                    else:
                        sums = search.sums([*map(len, ids)], scores, prefix)
                    yield ids, sums, scores

            found = []
            for source, (ids, sums, scores) in zip(
                sources, searched(self.search, sources, limit), strict=True
            ):
                lengths = [*map(len, ids)]
                if self.search.may_lack(lengths, sums, scores, prefix):  # all up to the step where it stopped
                    last, every = max(lengths), dataclasses.replace(self.search, early_stopping=False)
                    ((ids, sums, _),) = searched(every, [source], last)
                    ended = [last == limit or row[-1] in self.end_ids for row in ids]
                    ids, sums = [*compress(ids, ended)], sums[ended]
                places = self.search.best([*map(len, ids)], sums)
                found.append(([ids[place] for place in places], sums[places]))
            return found

        return _grouped(sources, self._later_beams_end(sources, prefix, suppressed), best)

    def _later_beams_end(
        self, sources: Sequence[Source], prefix: int, suppressed: Mapping[str, Any]
    ) -> list[bool]:
        """Return whether a beam of each source ends right after the prefix, other than the best."""
        beams = self.search.num_beams
        if not prefix or beams == 1:
            return [False] * len(sources)
        arguments = {"end_token": [], "beam_size": beams, "num_hypotheses": beams, "length_penalty": 0}
        found = self._run(sources, 1, 0, prefix, {**arguments, **suppressed})
        return [[self.end_id] in ids[1:] for ids, _ in found]

    def _run(
        self, sources: Sequence[Source], limit: int, minimum: int, prefix: int, arguments: Mapping[str, Any]
    ) -> list[tuple[list[list[int]], list[float]]]:
        """Return the ids of hypotheses of each source, and CTranslate2's scores."""
        words = [_words(source.ids) for source in sources]
        arguments = {**arguments, "return_scores": True, "return_end_token": True}
        if self.start_id is None:
            results = self._model.generate_batch(
                words, max_length=limit, min_length=minimum, include_prompt_in_result=False, **arguments
            )
            sequences = [result.sequences for result in results]
        else:
            results = self._model.translate_batch(
                words,
                [self._target(source) for source in sources],
                max_decoding_length=limit + prefix,
                min_decoding_length=minimum + prefix,
                max_input_length=0,
                **arguments,
            )
            sequences = [result.hypotheses for result in results]
        return [
            ([[int(word) for word in each[prefix:]] for each in of_row], result.scores)
            for result, of_row in zip(results, sequences, strict=True)
        ]

    def _padded(self, rows: Sequence[Sequence[int]], scores: Iterable[float]) -> Generated:
        """Return hypotheses, of which there may be fewer than are returned."""
        count = self.num_return
        ids = np.full((count, self.max_new_tokens), self.padding_value, np.int32)
        lengths, sums = np.zeros(count, np.int32), np.full(count, -np.inf, np.float32)
        for place, (row, score) in enumerate(zip(rows, scores, strict=True)):
            ids[place, : len(row)], lengths[place], sums[place] = row, len(row), score
        if not rows:
            sums[0] = 0
        return Generated(ids, lengths, sums)

    def _scored(self, batch: Sequence[Scored]) -> list[np.ndarray]:
        """Return the log-probabilities (T,) of the targets of a batch."""
        skipped = []
        if self.start_id is None:
            rows = [_words([*each.source.ids, *each.target_ids]) for each in batch]
            results = self._model.score_batch(rows, max_input_length=0)
            skipped = [len(each.source.ids) - 1 for each in batch]
        else:
            targets = [
                [*self._target(each.source), *_words(self._without_end(each.target_ids))] for each in batch
            ]
            results = self._model.score_batch(
                [_words(each.source.ids) for each in batch], targets, max_input_length=0
            )
            skipped = [len(each.source.prefix_ids) for each in batch]
        return [
            np.array(result.log_probs[first : first + len(each.target_ids)], np.float32)
            for result, each, first in zip(results, batch, skipped, strict=True)
        ]

    def _without_end(self, target_ids: Sequence[int]) -> Sequence[int]:
        """Return a target without its end token, which CTranslate2 adds."""
        ends = bool(target_ids) and target_ids[-1] == self.end_id
        return target_ids[:-1] if ends else target_ids

    def _target(self, source: Source) -> list[str]:
        """Return the start token and the prefix of a source."""
        start = self.start_id if source.start_id is None else source.start_id
        assert start is not None  # of an encoder–decoder
        return _words([start, *source.prefix_ids])


def _words(ids: Sequence[int]) -> list[str]:
    return [str(int(id_)) for id_ in ids]


def _grouped(
    rows: Sequence[_Row], groups: Iterable[_Group], function: Callable[[_Group, list[_Row]], Sequence[_Found]]
) -> list[_Found]:
    """Return what a function finds for rows, those of each group together."""
    places = collections.defaultdict[_Group, list[int]](list)
    for place, group in enumerate(groups):
        places[group].append(place)
    found: dict[int, _Found] = {}
    for group, of_group in places.items():
        found |= zip(of_group, function(group, [rows[place] for place in of_group]), strict=True)
    return [found[place] for place in range(len(rows))]
