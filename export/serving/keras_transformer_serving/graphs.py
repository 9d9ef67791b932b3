"""Generation by the ONNX graphs of an export: token ids in, token ids out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.decoding import CONSTRAINTS, TokenChooser
from keras_transformer_serving.generation import (
    GENERATE,
    SCORE,
    ExportedEngine,
    Generated,
    Scored,
    Source,
    Token,
    option_of,
    padded,
    uniform_noise,
)
from keras_transformer_serving.jobs import Method
from keras_transformer_serving.row_options import SAMPLE, tensors_of
from keras_transformer_serving.sessions import Sessions, as_value, device_of
from keras_transformer_serving.tasks import Tensor

ENCODER = "encoder_model"
DECODER = "decoder_model_merged"
MODEL = "model"  # a decoder-only model, or a model that does not generate
_MOST_LOGITS = 2**24  # of a batch that is scored
_LOOP_OPTIONS = ("max_new_tokens", "min_new_tokens", "temperature")  # inputs of the loop
_OPTIONS = (*_LOOP_OPTIONS, "seed", "rows")


def loop_name(config: dict[str, Any]) -> str:
    """Return the name of the graph with the generation loop, from an export's settings."""
    return f"generate_{config['generation']['sampler']}"


class Graphs(ExportedEngine):
    """Generation by ONNX Runtime: a `GenerationEngine`.

    Args:
        sessions: ONNX Runtime's sessions of the graphs.
        config: the export's settings.
    """

    def __init__(self, sessions: Sessions, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.session = sessions
        self.options = _OPTIONS
        self._numbers = {tensor.name: tensor for tensor in tensors_of(config) if tensor.name in _LOOP_OPTIONS}
        self.methods = {GENERATE: self._generated, SCORE: self._scored}
        self._loop = loop_name(config)
        # A damaged file is found now, not at the first request.
        self.device, _ = device_of(self.session(self._loop))

    @property
    def has_steps(self) -> bool:
        """True if there are the graphs of single steps, which converted precisions and some models lack."""
        try:
            for name in (MODEL,) if self.start_id is None else (ENCODER, DECODER):
                self.session(name)
        except FileNotFoundError:
            return False
        return True

    @property
    def needed_to_score(self) -> str:
        """The requirement of `score` that is not met, "" for none."""
        if self.has_steps:
            return ""
        names = MODEL if self.start_id is None else f"{ENCODER} and {DECODER}"
        return (
            f"the graphs of single steps, {names}: load an export of a model that has them with "
            "precision='float32'. Received: an export without them"
        )

    @property
    def needed_to_give_logits(self) -> str:
        """The requirement of logits of generated tokens that is not met, "" for none."""
        return self.needed_to_stream

    @property
    def needed_to_stream(self) -> str:
        """The requirement of generation token by token that is not met, "" for none."""
        sampler = self.sampler["sampler"]
        if sampler not in ("greedy", "sample") or self.num_return > 1:
            received = f"Received: the sampler {sampler!r} with {self.num_return} hypotheses"
            return f"greedy search or sampling of one hypothesis. {received}"
        others = {each["constraint"] for each in self.constraints} - CONSTRAINTS.keys()
        if others:
            return f"constraints among {', '.join(CONSTRAINTS)}. Received: {', '.join(sorted(others))}"
        return "" if self.has_steps else "the graphs of single steps, which this export or precision lacks"

    def map(self, method: Method, batches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the results of a method for several batches, as many at the same time as there are workers."""
        return self.session.map(method, batches)

    def tokens(self, source: Source) -> Iterator[Token]:
        """Generate token by token, up to an end token, the tokens that the graph of the loop generates."""
        given = source.options
        limit = given.get("max_new_tokens", self.max_new_tokens)
        chooser = TokenChooser(
            self.sampler,
            self.constraints,
            self.end_ids,
            self.never - self.end_ids,
            limit,
            given.get("min_new_tokens", 0),
            given.get("temperature", self.sampler.get("temperature", 1.0)),
            self._noise(source)[0] if self.samples else None,
        )
        ids = list[int]()
        next_logits = self.next_logits(*padded([source.ids], self.padding_value), **self.targets([source]))
        while len(source.ids) and len(ids) < limit and not (ids and ids[-1] in self.end_ids):
            (logits,) = next_logits(np.array([ids[-1:]]) if ids else None)
            token = chooser(logits, ids)
            if token is None:
                return
            ids.append(token)
            yield Token(token, logits)

    def _generated(self, batch: Sequence[Source]) -> list[Generated]:
        """Return the hypotheses of a batch of sources."""
        ids, mask = padded([source.ids for source in batch], self.padding_value)
        inputs = self.targets(batch)
        if self.samples:
            inputs["noise"] = np.stack([*map(self._noise, batch)])
        for name, tensor in self._numbers.items():
            if (values := option_of(batch, name, tensor.default)) is not None:
                inputs[name] = np.array(values, _graph_type(tensor))
        outputs = self.run_loop(ids, mask, inputs)
        shape = (len(batch), self.num_return)
        shapes = {"ids": (*shape, self.max_new_tokens), "lengths": shape, "scores": shape}
        return [*map(Generated, *(outputs[name].reshape(shape) for name, shape in shapes.items()))]

    def _scored(self, batch: Sequence[Scored]) -> list[np.ndarray]:
        """Return the log-probabilities (T,) of the targets of a batch."""
        length = max(len(each.source.ids) + len(each.target_ids) for each in batch)
        most = max(_MOST_LOGITS // (length * self.vocabulary_size), 1)
        if (
            len({len(each.source.prefix_ids) for each in batch}) > 1
        ):  # the graph takes no padding between tokens
            most = 1
        if len(batch) > most:
            return [*self._scored(batch[:most]), *self._scored(batch[most:])]
        input_ids, mask = padded([each.source.ids for each in batch], self.padding_value)
        for row, each in zip(mask, batch, strict=True):
            if each.mask is not None:
                row[: len(each.mask)] = each.mask
        target_ids, _ = padded([each.target_ids for each in batch], self.padding_value)
        scores = self.score(input_ids, target_ids, mask, **self.targets([each.source for each in batch]))
        return [row[: len(each.target_ids)] for row, each in zip(scores, batch, strict=True)]

    def _noise(self, source: Source) -> np.ndarray:
        """Return the noise of sampling of a row (N, M)."""
        if source.noise is not None:
            return source.noise
        seed, row = source.options["seed"], source.options["rows"]
        noise = uniform_noise(seed, np.array([row]), self.num_return, self.max_new_tokens)
        first: np.ndarray = noise[0]
        return first

    def targets(self, batch: Sequence[Source]) -> dict[str, np.ndarray]:
        """Return the "prefix_ids" and "start_ids" of sources, if there are any."""
        inputs = {}
        if any(source.prefix_ids for source in batch):
            inputs["prefix_ids"], _ = padded([source.prefix_ids for source in batch], self.padding_value)
        if any(source.start_id is not None for source in batch):
            starts = [self.start_id if source.start_id is None else source.start_id for source in batch]
            inputs["start_ids"] = np.array(starts, np.int64)
        return inputs

    @property
    def samples(self) -> bool:
        """True if the sampler draws tokens."""
        return bool(self.sampler["sampler"] == SAMPLE)

    def padding_mask(self, input_ids: np.ndarray) -> np.ndarray:
        """Return the mask int64 (B, S): 0 where `input_ids` equal `pad_id`; all ones if that is None."""
        return np.ones_like(input_ids) if self.pad_id is None else (input_ids != self.pad_id).astype(np.int64)

    def generate(
        self,
        input_ids: np.ndarray,
        rows: np.ndarray | None = None,
        noise: np.ndarray | None = None,
        attention_mask: np.ndarray | None = None,
        *,
        max_new_tokens: Any = None,
        min_new_tokens: Any = None,
        temperature: Any = None,
        prefix_ids: Any = None,
        start_ids: Any = None,
    ) -> dict[str, np.ndarray]:
        """Generate with the graph of the generation loop.

        Args:
            input_ids: integers (B, S), padded with `pad_id`, or with any id where `attention_mask` is given; after
                the tokens for an encoder–decoder.
            rows: integers (B,), the index of each input that the noise of sampling depends on, by default 0, 1, 2, …
            noise: float32 (B, N, M), the uniform noise of sampling, by default from the sampler's seed or,
                if it has none, a new one at each call.
            attention_mask: integers (B, S), 0 for padding, by default where ids equal `pad_id`. A model without a
                `pad_id` needs it where there is padding.
            max_new_tokens: the maximum number of new tokens, at most M: an integer, or integers (B,), one for each
                input; by default M.
            min_new_tokens: the minimum number of tokens before an end token, likewise, by default 0.
            temperature: the temperature of sampling, a number or numbers (B,), by default the sampler's.
            prefix_ids: for an encoder–decoder, integers (B, Q) or (1, Q), the first target tokens, padded with
                `pad_id`; not part of the output.
            start_ids: integers (B,) or (1,), the first input of the decoder, by default `start_id`; for models whose
                targets begin with the token of a language, such as mBART.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis N after the first if
            N > 1. An input without tokens generates nothing.
        """
        input_ids = self._checked_ids("input_ids", input_ids)
        size = len(input_ids)
        if attention_mask is None:
            mask = self.padding_mask(input_ids)
        else:
            mask = _checked("attention_mask", attention_mask, input_ids.shape, "biu", 0, 1).astype(np.int64)
        if self.pad_id is not None:
            mask = mask * self.padding_mask(input_ids)
            input_ids = np.where(mask != 0, input_ids, self.pad_id)
        self._check_padding(mask)
        if (lengths := mask.sum(axis=1)).size and lengths.max() > self.max_source_tokens:
            raise ValueError(
                f"`input_ids` must have at most {self.max_source_tokens} tokens each (max_source_tokens). "
                f"Received: {lengths.max()} tokens in input_ids[{lengths.argmax()}]"
            )
        inputs = {}
        if self.samples:
            inputs["noise"] = (
                self.noise(np.arange(size) if rows is None else rows) if noise is None else noise
            )
        for name, option in (
            ("max_new_tokens", max_new_tokens),
            ("min_new_tokens", min_new_tokens),
            ("temperature", temperature),
        ):
            if option is None:
                continue
            if name not in self._numbers:
                raise ValueError(f"`{name}` needs an export that samples. Received: {name}={option}")
            tensor, values = self._numbers[name], np.atleast_1d(np.asarray(option))
            shape = (size,) if len(values) == size else (1,)
            dtypes = "iuf" if tensor.dtype == "float32" else "iu"
            inputs[name] = _checked(name, values, shape, dtypes, *tensor.range).astype(_graph_type(tensor))
        if prefix_ids is not None:
            if self.start_id is None:
                raise ValueError(
                    f"`prefix_ids` needs an encoder–decoder. Received: prefix_ids={prefix_ids!r}"
                )
            inputs["prefix_ids"] = self._checked_ids("prefix_ids", prefix_ids)
        if start_ids is not None:
            # An input with a default is an initializer that can be replaced.
            replaceable = self.session(self._loop).get_overridable_initializers()
            if "start_ids" not in (entry.name for entry in replaceable):
                raise ValueError(
                    "`start_ids` needs a model whose targets begin with the token of a language. "
                    f"Received: start_ids={start_ids!r}"
                )
            inputs["start_ids"] = self._checked_ids("start_ids", np.asarray(start_ids)[:, None])[:, 0]
        return self.run_loop(input_ids, mask, inputs)

    def _check_padding(self, mask: np.ndarray) -> None:
        """Raise a ValueError if a row of an encoder–decoder has padding before its tokens, which moves positions."""
        wrong = mask.any(axis=1) & (mask[:, :1] == 0).any(axis=1)
        if self.start_id is not None and wrong.any():
            raise ValueError(
                "`input_ids` of an encoder–decoder must have padding after the tokens. "
                f"Received: padding before the tokens of row {wrong.argmax()}"
            )

    def run_loop(
        self, input_ids: np.ndarray, mask: np.ndarray, inputs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of `generate` for checked inputs: ids with padding, their mask, and the graph's others."""
        masks = {"attention_mask": mask} if self.pad_id is None else {}
        names = ["ids", "lengths", "scores"]
        outputs = self.session(self._loop).run(names, {"input_ids": input_ids, **masks, **inputs})
        return dict(zip(names, outputs, strict=True))

    def _checked_ids(self, name: str, ids: Any) -> np.ndarray:
        array = np.asarray(ids)
        shape = array.shape if array.ndim == 2 else (None, None)
        return _checked(name, array, shape, "iu", 0, self.vocabulary_size - 1).astype(np.int64)

    def noise(self, rows: np.ndarray) -> np.ndarray:
        """Return the noise of the sampler's seed, or of a new one, for inputs of these indices: float32 (B, N, M)."""
        return uniform_noise(self.seed(), rows, self.num_return, self.max_new_tokens)

    def seed(self) -> int:
        """Return the sampler's seed, or a new one if it has none."""
        seed: int | None = self.sampler["seed"]
        return self.new_seed() if seed is None else seed

    def generate_by_steps(
        self, input_ids: np.ndarray, attention_mask: np.ndarray | None = None, **targets: np.ndarray
    ) -> np.ndarray:
        """Generate greedily (B, M), one token at a time, with the graphs of a single step.

        An example of a generation loop outside the graphs; slower than `generate`. The sampler and the constraints of
        the export do not apply. The arguments are as for `generate`; `targets` are `prefix_ids` without padding, and
        `start_ids`.
        """
        ids = np.full((len(input_ids), self.max_new_tokens), self.padding_value, np.int64)
        for column, tokens in enumerate(self.steps(input_ids, attention_mask, **targets)):
            ids[:, column] = tokens
        return ids

    def steps(
        self, input_ids: np.ndarray, attention_mask: np.ndarray | None = None, **targets: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Return an iterator of the next ids (B,) of `generate_by_steps`, until all rows have ended."""
        mask = self.padding_mask(input_ids) if attention_mask is None else attention_mask
        self._check_padding(mask)
        next_logits = self.next_logits(input_ids, mask, **targets)
        ended = ~mask.any(axis=1)
        token = None
        for _ in range(self.max_new_tokens):
            if ended.all():
                break
            logits = next_logits(token)
            logits[:, [*self.never]] = -np.inf
            best = np.where(ended, self.padding_value, logits.argmax(axis=-1))
            yield best
            ended |= best == self.end_id
            token = best[:, None]

    def next_logits(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, **targets: np.ndarray
    ) -> Callable[[np.ndarray | None], np.ndarray]:
        """Return a function from the last tokens (B, 1), None at first, to the logits (B, V) of the next."""
        if self.start_id is None:
            step = self._prompted(input_ids, attention_mask)
        else:
            step = self._encoded(input_ids, attention_mask, self._starts(len(input_ids), **targets))
        return lambda token: step(token)[:, -1]

    @property
    def never(self) -> frozenset[int]:
        """The tokens that are never generated: padding and start tokens, unless they end a sequence."""
        return frozenset(
            id_ for id_ in (self.pad_id, self.start_id) if id_ is not None and id_ != self.end_id
        )

    def score(
        self,
        input_ids: np.ndarray,
        target_ids: np.ndarray,
        attention_mask: np.ndarray | None = None,
        **targets: np.ndarray,
    ) -> np.ndarray:
        """Return the log-probability of each token of given outputs, with the graphs of a single step.

        Args:
            input_ids: integers (B, S) with a token in each row, padded with `pad_id`.
            target_ids: integers (B, T), outputs without a start token, padded on the right.
            attention_mask: integers (B, S), 0 for padding and tokens to hide, by default where ids equal `pad_id`.
            **targets: as for `generate_by_steps`; a prefix is not scored.

        Returns:
            float32 (B, T).
        """
        mask = self.padding_mask(input_ids) if attention_mask is None else attention_mask
        if self.start_id is None:
            # A first step reads the prompts, and gives the logits of the first target token.
            step = self._prompted(input_ids, mask)
            logits = np.concatenate([step(None)[:, -1:], step(target_ids)[:, :-1]], axis=1)
        else:
            starts = self._starts(len(target_ids), **targets)
            step = self._encoded(input_ids, mask, starts)
            logits = step(np.concatenate([starts, target_ids[:, :-1]], axis=1))[:, starts.shape[1] - 1 :]
        logits = logits.astype(np.float32)
        chosen = np.take_along_axis(logits, target_ids[..., None], axis=-1)[..., 0]
        largest = logits.max(axis=-1)
        total = np.exp(logits - largest[..., None]).sum(axis=-1)
        scores: np.ndarray = chosen - largest - np.log(total)
        return scores

    def _starts(
        self, rows: int, prefix_ids: np.ndarray | None = None, start_ids: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the first inputs (B, P) of the decoder: the start token and the prefix of each row."""
        start = np.full((rows, 1), self.start_id) if start_ids is None else start_ids[:, None]
        return start if prefix_ids is None else np.concatenate([start, prefix_ids], axis=1)

    def _encoded(
        self, input_ids: np.ndarray, mask: np.ndarray, starts: np.ndarray
    ) -> Callable[[np.ndarray | None], np.ndarray]:
        """Return a function from the last tokens (B, 1), None at first, to the next tokens' logits, with an encoder."""
        source = {"input_ids": input_ids, "attention_mask": mask}
        memory = self._run(ENCODER, {name: self._value(ENCODER, ids) for name, ids in source.items()})
        constants = {
            "encoder_hidden_states": memory["last_hidden_state"],
            "encoder_attention_mask": self._value(DECODER, mask),
        }
        cache = self._empty(DECODER, len(input_ids))

        def step(token: np.ndarray | None) -> np.ndarray:
            return self._step(DECODER, {"input_ids": starts if token is None else token}, constants, cache)

        return step

    def _prompted(self, input_ids: np.ndarray, mask: np.ndarray) -> Callable[[np.ndarray | None], np.ndarray]:
        """Return the same function for a decoder-only model, whose first step reads the left-padded prompts."""
        order = np.argsort(mask != 0, axis=1, kind="stable")  # padding first
        first, first_mask = (np.take_along_axis(array, order, axis=1) for array in (input_ids, mask))
        cache = self._empty(MODEL, len(input_ids))
        seen = np.zeros((len(input_ids), 0), np.int64)

        def step(token: np.ndarray | None) -> np.ndarray:
            nonlocal seen
            new, real = (first, first_mask) if token is None else (token, np.ones_like(token))
            seen = np.concatenate([seen, real], axis=1).astype(np.int64)
            positions = np.maximum(seen.cumsum(axis=1) - 1, 0)[:, -new.shape[1] :]
            return self._step(
                MODEL, {"input_ids": new, "attention_mask": seen, "position_ids": positions}, {}, cache
            )

        return step

    def _step(
        self,
        name: str,
        arrays: dict[str, np.ndarray],
        constants: dict[str, Any],
        cache: dict[str, Any],
    ) -> np.ndarray:
        """Return the logits (B, T, V), and update the cache, which stays on the session's device."""
        new = {argument: self._value(name, array) for argument, array in arrays.items()}
        results = self._run(name, {**new, **constants, **cache})
        logits: np.ndarray = results.pop("logits").numpy()
        cache |= {_as_past(output): value for output, value in results.items()}
        return logits

    def _run(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Run a graph on values of ONNX Runtime (`OrtValue`), and return its outputs on the session's device."""
        session = self.session(name)
        binding = session.io_binding()
        for argument, value in values.items():
            binding.bind_ortvalue_input(argument, value)
        names = [output.name for output in session.get_outputs()]
        for output in names:
            binding.bind_output(output, *device_of(session))
        session.run_with_iobinding(binding)
        return dict(zip(names, binding.get_outputs(), strict=True))

    def _value(self, name: str, array: np.ndarray) -> Any:
        """Copy an array to the device of a graph's session."""
        return as_value(array, device_of(self.session(name)))

    def _empty(self, name: str, rows: int) -> dict[str, Any]:
        """Return an empty cache."""
        return {
            entry.name: self._value(
                name, np.zeros((rows, entry.shape[1], 0, entry.shape[3]), _DTYPES[entry.type])
            )
            for entry in self.session(name).get_inputs()
            if entry.name.startswith("past_key_values")
        }


def _checked(
    name: str, values: Any, shape: tuple[int | None, ...], dtypes: str, low: float, high: float
) -> np.ndarray:
    """Return an array, or raise a ValueError if it has another shape or dtype, or values out of range."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in dtypes:
        numbers = "numbers" if "f" in dtypes else "integers"
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"`{name}` must be {numbers} of shape ({sizes}). Received: {array.dtype} of shape {array.shape}"
        )
    if not ((array >= low) & (array <= high)).all():
        raise ValueError(f"`{name}` must be in [{low}, {high}]. Received: {array.min()} to {array.max()}")
    return array


def _graph_type(option: Tensor) -> type[np.generic]:
    """Return the type of an option as an input of the loop."""
    return np.float32 if option.dtype == "float32" else np.int64


def _as_past(name: str) -> str:
    return name.replace("present", "past_key_values")


_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
