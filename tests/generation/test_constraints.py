import json

import keras
import numpy as np
import pytest

from keras_transformer import generation
from keras_transformer.generation import (
    BannedWords,
    Beam,
    EndTokens,
    ForcedLastToken,
    ForcedPrefix,
    ForcedWords,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    Sample,
)

from .reference import every_sequence, forced, translator

ON_JAX = keras.backend.backend() == "jax"
SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5]])
MOST = 4


def repeats(ids, size):
    grams = [ids[i : i + size] for i in range(len(ids) - size + 1)]
    return len(set(grams)) < len(grams)


def holds(ids, word):
    return any(ids[i : i + len(word)] == word for i in range(len(ids)))


# Each constraint, and a reference predicate for the id sequences that it allows.
CASES = {
    "minimum": (MinNewTokens(2), lambda ids: 3 not in ids[:2]),
    "no repeated token": (NoRepeatNGram(1), lambda ids: len(set(ids)) == len(ids)),
    "no repeated pair": (NoRepeatNGram(2), lambda ids: not repeats(ids, 2)),
    "longer than the output": (NoRepeatNGram(9), lambda ids: True),
    "banned words": (
        BannedWords([[4], [5, 1], [1, 1, 3]]),
        lambda ids: 4 not in ids and not holds(ids, (5, 1)) and not holds(ids, (1, 1, 3)),
    ),
    "never ends": (BannedWords([[3]]), lambda ids: 3 not in ids),
    "prefix": (ForcedPrefix([5, 1]), lambda ids: ids[:2] == (5, 1)),
    "whole": (ForcedPrefix([5, 1, 3]), lambda ids: ids == (5, 1, 3)),
    "more ends": (EndTokens([5]), lambda ids: True),
}


@pytest.mark.slow
@pytest.mark.parametrize(("constraint", "allows"), CASES.values(), ids=CASES)
def test_wide_beam_finds_exactly_the_allowed_sequences(constraint, allows):
    model = translator(2)
    ends = [3, 5] if isinstance(constraint, EndTokens) else [3]
    rows = every_sequence([1, 3, 4, 5], ends, MOST)
    rows = np.array([row for row in rows if allows(tuple(int(i) for i in row if i))])
    beam = Beam(130, 0.0, num_return=130)
    out = generation.Generator(model, beam, MOST, jit_compile=ON_JAX, constraints=[constraint])(SOURCES)
    for row, source in enumerate(SOURCES):
        scores = forced(model, source, rows).sum(axis=1)
        found = out.scores[row] > -np.inf
        assert {tuple(ids) for ids in out.ids[row][found]} == {tuple(ids) for ids in rows}
        np.testing.assert_allclose(out.scores[row][found], np.sort(scores)[::-1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "sampler", ["greedy", Sample(temperature=3.0, seed=0, num_return=4), Beam(3, num_return=3)], ids=repr
)
@pytest.mark.parametrize(("constraint", "allows"), CASES.values(), ids=CASES)
def test_every_sampler_respects_the_constraint(sampler, constraint, allows):
    model = translator(3)
    out = generation.Generator(model, sampler, MOST, jit_compile=ON_JAX, constraints=[constraint])(SOURCES)
    assert out.lengths[:, 0].all()
    for ids, length in zip(out.ids.reshape(-1, MOST), out.lengths.ravel(), strict=True):
        if length == 0:  # if a beam has fewer hypotheses
            continue
        ids = tuple(ids[:length].tolist())
        assert allows(ids)
        ends = {3, 5} if isinstance(constraint, EndTokens) else {3}
        assert length == MOST or ids[-1] in ends or "NoRepeat" in repr(constraint)
        assert not set(ids[:-1]) & ends


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_min_new_tokens_equals_its_constraint_and_constraints_combine():
    model = translator(3)
    same = [
        generation.generate(model, SOURCES, max_new_tokens=MOST, min_new_tokens=3),
        generation.generate(model, SOURCES, max_new_tokens=MOST, constraints=[MinNewTokens(3)]),
    ]
    np.testing.assert_array_equal(same[0].ids, same[1].ids)
    assert (same[0].lengths > 3).all()
    both = [MinNewTokens(2), NoRepeatNGram(1), BannedWords([[1]])]
    out = generation.generate(model, SOURCES, Beam(3), max_new_tokens=MOST, constraints=both)
    for ids, length in zip(out.best, out.lengths[:, 0], strict=True):
        assert length >= 3
        assert len(set(ids[:length])) == length
        assert 1 not in ids


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_repetition_penalty_lowers_repeated_tokens():
    """Compare with the same rule in NumPy."""
    model, factor = translator(3), 8.0
    out = generation.Generator(
        model, "greedy", 6, jit_compile=ON_JAX, constraints=[RepetitionPenalty(factor)]
    )(SOURCES)
    for source, ids, length in zip(SOURCES, out.best, out.lengths[:, 0], strict=True):
        for step in range(length):
            target = np.concatenate([[model.start_id], ids[:step]])[None]
            logits = np.array(model({"source_ids": source[None], "target_ids": target}))[0, -1]
            seen = np.isin(np.arange(6), ids[:step])
            logits = np.where(seen, np.where(logits > 0, logits / factor, logits * factor), logits)
            logits[[0, 2]] = -np.inf
            assert ids[step] == logits.argmax()
    np.testing.assert_allclose(
        out.scores[:, 0],
        [forced(model, source, ids[None]).sum() for source, ids in zip(SOURCES, out.best, strict=True)],
        rtol=1e-4,
        atol=1e-4,
    )
    plain = generation.generate(model, SOURCES, max_new_tokens=6)
    assert (plain.ids != out.ids).any()


@pytest.mark.slow
def test_beam_penalizes_log_probabilities_of_repeated_tokens():
    model, factor = translator(2), 3.0
    rows = every_sequence([1, 3, 4, 5], [3], MOST)
    beam = Beam(130, 0.0, num_return=130)
    constraints = [RepetitionPenalty(factor)]
    out = generation.Generator(model, beam, MOST, jit_compile=ON_JAX, constraints=constraints)(SOURCES)
    seen = np.array([[token in row[:step] for step, token in enumerate(row)] for row in rows])
    for row, source in enumerate(SOURCES):
        scores = forced(model, source, rows)
        ranking = np.where(seen, scores * factor, scores).sum(axis=1)
        order = np.argsort(-ranking)
        np.testing.assert_allclose(out.ranking_scores[row][: len(rows)], ranking[order], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(out.ids[row, :5], rows[order[:5]])
        np.testing.assert_allclose(out.scores[row, 0], scores[order[0]].sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_forced_last_token_ends_truncated_sequences_at_no_cost():
    model = translator(2)
    rows = every_sequence([1, 3, 4, 5], [3], MOST)
    rows = rows[(rows[:, 0] == 5) & ((rows == 3).any(axis=1))]
    constraints = [ForcedPrefix([5]), ForcedLastToken([3])]
    beam = Beam(130, 0.6, num_return=130)
    out = generation.Generator(model, beam, MOST, jit_compile=ON_JAX, constraints=constraints)(SOURCES)
    for row, source in enumerate(SOURCES):
        free = forced(model, source, rows)
        free[:, [0, -1]] = 0.0
        ranking = free.sum(axis=1) / beam.penalties(MOST)[(rows != 0).sum(axis=1)]
        found = out.scores[row] > -np.inf
        assert {tuple(ids) for ids in out.ids[row][found]} == {tuple(ids) for ids in rows}
        np.testing.assert_allclose(
            out.ranking_scores[row][found], np.sort(ranking)[::-1], rtol=1e-4, atol=1e-4
        )
        scores = forced(model, source, out.ids[row][found]).sum(axis=1)
        np.testing.assert_allclose(out.scores[row][found], scores, rtol=1e-4, atol=1e-4)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("constraints", "options"),
    [
        ([ForcedLastToken([0])], {}),
        ([ForcedLastToken([6])], {}),
        ([ForcedPrefix([4]), BannedWords([[4]])], {}),
        ([ForcedPrefix([4, 5]), ForcedPrefix([5])], {}),
        ([ForcedPrefix([4, 4]), NoRepeatNGram(1)], {}),
        ([ForcedPrefix([4, 3])], {"min_new_tokens": 2}),
        ([ForcedPrefix([4, 4, 4, 4, 4])], {}),
        ([ForcedPrefix([3, 4])], {}),
        ([ForcedPrefix([0])], {}),
        ([ForcedPrefix([2])], {}),
        ([ForcedPrefix([6])], {}),
        ([BannedWords([[9]])], {}),
        ([EndTokens([6])], {}),
        ([BannedWords([[1], [3], [4], [5]])], {}),
        ([MinNewTokens(5)], {}),
        ([], {"min_new_tokens": 5}),
        ([BannedWords([[1], [4], [5]])], {"min_new_tokens": 1}),
        ([ForcedPrefix([4, 3]), ForcedWords([[5]])], {"sampler": generation.Beam(2)}),
        ([], {"min_new_tokens": -1}),
        (["no"], {}),
        ("no", {}),
        (NoRepeatNGram(2), {}),
    ],
    ids=str,
)
def test_contradictory_constraints_are_rejected(constraints, options):
    with pytest.raises(ValueError, match=r"`(constraints|min_new_tokens)` must .*Received: "):
        generation.generate(translator(), SOURCES, max_new_tokens=MOST, constraints=constraints, **options)


def test_numpy_settings_equal_python_settings():
    assert BannedWords(np.array([[1, 2]])) == BannedWords([[np.int64(1), 2]]) == BannedWords([[1, 2]])
    assert ForcedPrefix(np.array([4])) == ForcedPrefix([4])
    assert NoRepeatNGram(np.int64(2)) == NoRepeatNGram(2)
    assert json.dumps(generation.constraints.serialize(RepetitionPenalty(np.float32(2))))


def test_equal_constraints_compare_and_hash_equal():
    assert BannedWords([[1, 2]]) == BannedWords(((1, 2),))
    assert hash(ForcedPrefix([1])) == hash(ForcedPrefix((1,)))
