import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import shape_search
from keras_transformer.data.buckets import Shapes
from keras_transformer.data.shape_search import choose_lengths, choose_shapes, first_fitting, ordered
from keras_transformer.data.storage import in_memory

LIMIT = 59  # not a multiple


def padded_cells(lengths, chosen):
    return int(np.sum(np.array(chosen)[np.searchsorted(chosen, lengths)]))


@given(
    st.lists(st.integers(1, LIMIT), min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from([2, 8]),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_chosen_lengths_minimize_padding(lengths, count, multiple, data):
    lengths = np.array(lengths)
    chosen = choose_lengths(lengths, count, LIMIT, multiple)
    assert len(chosen) <= count
    assert list(chosen) == sorted(set(chosen))
    assert all(length % multiple == 0 or length == LIMIT for length in chosen)
    assert chosen[-1] >= lengths.max()
    others = data.draw(
        st.lists(st.sampled_from([*range(multiple, LIMIT, multiple), LIMIT]), max_size=count - 1)
    )
    assert padded_cells(lengths, chosen) <= padded_cells(lengths, sorted({*others, chosen[-1]}))
    repeated, rows = np.unique(lengths, return_counts=True)
    assert choose_lengths(repeated, count, LIMIT, multiple, rows) == chosen


def rows_of(shape):
    return max(1, 2048 // max(shape))


def epoch_positions(lengths, shapes, rows_of):
    """Return the number of positions in an epoch, counted batch by batch."""
    positions, left = 0, [tuple(pair) for pair in lengths.tolist()]
    for shape in sorted(shapes, key=lambda shape: (sum(shape), shape)):
        fitting = [pair for pair in left if pair[0] <= shape[0] and pair[1] <= shape[1]]
        left = [pair for pair in left if pair[0] > shape[0] or pair[1] > shape[1]]
        positions += -(-len(fitting) // rows_of(shape)) * rows_of(shape) * sum(shape)
    assert not left
    return positions


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=60),
    st.integers(1, 6),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([1, 3, 20]),
)
@settings(max_examples=100, deadline=None)
def test_chosen_shapes_pad_no_more_than_evenly_spaced_lengths(pairs, count, multiple, batch_size):
    lengths = np.array(pairs)
    chosen = choose_shapes(lengths, lambda shape: batch_size, count, 60, multiple)
    assert chosen == choose_shapes(lengths[::-1], lambda shape: batch_size, count, 60, multiple)
    assert 1 <= len(chosen) <= count
    assert all(length % multiple == 0 or length == 60 for shape in chosen for length in shape)
    assert np.array_equal(ordered(np.array(chosen)), chosen)
    assert set(first_fitting(lengths, np.array(chosen))) == set(range(len(chosen)))
    equal = choose_lengths(lengths.max(axis=1), len(chosen), 60, multiple)
    positions = epoch_positions(lengths, chosen, lambda shape: batch_size)
    assert positions <= epoch_positions(lengths, [(each, each) for each in equal], lambda shape: batch_size)


def test_chosen_shapes_are_within_the_limit_of_each_side():
    lengths = np.array([(2, 7), (9, 3), (11, 7), (5, 5)] * 20)
    chosen = np.array(choose_shapes(lengths, lambda shape: 4, 4, (11, 7), 2))
    assert (chosen.max(axis=0) == (11, 7)).all()
    assert (first_fitting(lengths, chosen) >= 0).all()
    assert ((chosen % 2 == 0) | (chosen == (11, 7))).all()


def sentence_lengths(count, seed=0):
    """Return lengths of source and target distributed like short translated sentences."""
    random = np.random.default_rng(seed)
    meaning = random.lognormal(2.2, 0.35, count)
    sides = [meaning * random.lognormal(0, 0.12, count) for _ in range(2)]
    return np.clip(np.round(np.stack(sides, axis=1)), 2, 80).astype(int)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("multiple", "least"), [(8, 0.70), (4, 0.84), (2, 0.88)])
def test_sixteen_shapes_leave_little_padding(multiple, least):
    lengths = sentence_lengths(100_000)
    chosen = choose_shapes(lengths, rows_of, 16, 128, multiple)
    assert len(chosen) <= 16
    assert lengths.sum() / epoch_positions(lengths, chosen, rows_of) >= least


def test_each_additional_shape_saves_more_than_its_compilation_costs(monkeypatch):
    lengths = sentence_lengths(5000)
    chosen = choose_shapes(lengths, rows_of, 64, 128, 2)
    saved = 1 - epoch_positions(lengths, chosen, rows_of) / epoch_positions(lengths, chosen[-1:], rows_of)
    assert saved > shape_search.COMPILATION * (len(chosen) - 1)
    for dropped in chosen[:-1]:
        others = [shape for shape in chosen if shape != dropped]
        with_it, without = (epoch_positions(lengths, shapes, rows_of) for shapes in (chosen, others))
        assert with_it < without
    monkeypatch.setattr(shape_search, "COMPILATION", 10.0)
    assert len(choose_shapes(lengths, rows_of, 64, 128, 2)) == 1


def test_rows_fit_the_first_shape_that_is_large_enough():
    shapes = np.array([(4, 4), (2, 8), (8, 8)])
    lengths = np.array([(1, 4), (2, 5), (3, 5), (8, 8), (9, 1)])
    assert first_fitting(lengths, shapes).tolist() == [0, 1, 2, 2, -1]


@pytest.mark.slow
def test_shapes_for_a_million_pairs_are_chosen_in_seconds():
    lengths = np.random.default_rng(0).integers(1, 513, (1_000_000, 2))
    shapes, ends = Shapes.of_pairs(None, 4096, 512, 16, 2), [len(lengths)]

    def row_lengths(start, end):
        return lengths[start:end]

    buckets = shapes.buckets(in_memory([{}]), row_lengths, shapes.count_lengths(row_lengths, ends), ends)
    assert len(buckets.shapes) == 16
    bucket = np.repeat(np.arange(16), buckets.sizes[:, 0])
    assert (lengths[buckets.rows] <= buckets.shapes[bucket]).all()
    assert sorted(buckets.rows) == list(range(len(lengths)))
