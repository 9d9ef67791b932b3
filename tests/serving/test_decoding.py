"""Tokens chosen in NumPy are those that the generation loop chooses."""

import dataclasses

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import Sample, constraints
from keras_transformer.generation.constraints import History
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.search import categorical
from keras_transformer_serving import decoding

VOCABULARY, LENGTH, END, PAD = 11, 8, 2, 0
CONSTRAINTS = [
    constraints.MinNewTokens(3),
    constraints.RepetitionPenalty(1.7),
    constraints.NoRepeatNGram(1),
    constraints.NoRepeatNGram(2),
    constraints.BannedWords(((4,), (5, 6), (6, 7, 5))),
    constraints.ForcedPrefix((6, 5)),
    constraints.EndTokens((9,)),
    constraints.ForcedLastToken((2, 9)),
]


@dataclasses.dataclass
class Model:
    vocabulary_size: int = VOCABULARY
    end_id: int = END
    pad_id: int = PAD


def chooser(found, **options):
    processors = LogitsProcessors.of(Model(), LENGTH, 0, found)
    settings = [constraints.serialize(each) for each in found]
    ends, never = frozenset(processors.end_ids), frozenset(processors.never)
    options = {"sampler": {"sampler": "greedy"}, "limit": LENGTH, **options}
    return processors, decoding.TokenChooser(constraints=settings, end_ids=ends, never=never, **options)


def expected_logits(processors, logits, ids, limit=LENGTH, minimum=0):
    padded = np.array([[[*ids, *[PAD] * (LENGTH - len(ids))]]], "int32")
    history = History(padded, len(ids), processors.end_ids, np.array([limit]), np.array([minimum]))
    return ops.convert_to_numpy(processors(ops.convert_to_tensor(logits[None, None]), history))[0, 0]


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": {"sampler": "sample"}, "noise": np.zeros(LENGTH, "float32")}],
    ids=["greedy", "sample"],
)
def test_no_token_is_chosen_from_logits_that_are_not_numbers(options):
    _, choose = chooser([], **options)
    logits = np.where(np.arange(VOCABULARY) == 5, np.nan, 0).astype("float32")
    assert choose(logits, []) is None


@pytest.mark.parametrize("found", [*([each] for each in CONSTRAINTS), CONSTRAINTS[:5]], ids=str)
def test_constraints_choose_the_tokens_of_the_loop(found):
    random = np.random.default_rng(5)
    processors, choose = chooser(found, limit=6, minimum=2)
    for step in (0, 1, 2, 4, 5):
        for _ in range(8):
            logits = random.normal(size=VOCABULARY).astype("float32")
            ids = random.integers(4, 8, step).tolist()
            expected = expected_logits(processors, logits, ids, limit=6, minimum=2)
            assert choose(logits, ids) == expected.argmax()


def test_no_token_is_chosen_if_all_are_forbidden():
    words = tuple((id_,) for id_ in range(1, VOCABULARY - 1))
    _, choose = chooser([constraints.BannedWords(words)])
    logits = np.zeros(VOCABULARY, "float32")
    assert choose(logits, []) == VOCABULARY - 1
    _, choose = chooser([constraints.BannedWords(words), constraints.NoRepeatNGram(1)])
    assert choose(logits, [VOCABULARY - 1]) is None


@pytest.mark.parametrize(
    "sampler",
    [Sample(), Sample(0.5, top_k=4), Sample(1.5, top_p=0.7), Sample(min_p=0.2), Sample(2.0, 6, 0.8, 0.05)],
    ids=str,
)
def test_sampling_draws_the_tokens_of_the_loop(sampler):
    random = np.random.default_rng(3)
    logits = random.normal(size=(64, 1, 101), scale=2).astype("float32")
    logits[:, :, 7] = constraints.FORBIDDEN
    noise = random.uniform(size=(64, 1)).astype("float32")
    expected = categorical.draw(ops.convert_to_tensor(logits), sampler, sampler.temperature, noise)
    settings = dataclasses.asdict(sampler)
    found = [
        decoding.draw(row, settings, sampler.temperature, number)
        for row, number in zip(logits[:, 0], noise[:, 0], strict=True)
    ]
    assert found == ops.convert_to_numpy(expected)[:, 0].tolist()
    assert len({*found}) > 3


def test_every_constraint_is_known_except_of_beams_and_speech():
    known = {each.__name__ for each in constraints.Constraint.__subclasses__()}
    assert known - decoding.CONSTRAINTS.keys() <= {"ForcedWords", "Timestamps"} | {
        each for each in known if not hasattr(constraints, each)
    }


@pytest.mark.parametrize("size", [1, 7, 300])
def test_the_largest_values_are_the_first_of_a_stable_sort(size):
    values = np.random.default_rng(0).integers(0, 7, size).astype("float32")  # with equal ones
    for count in (0, 1, 3, 20):
        assert decoding.largest(values, count) == np.argsort(-values, kind="stable")[:count].tolist()
