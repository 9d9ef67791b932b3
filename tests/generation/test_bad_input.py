import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import Beam, Ensemble, generate, score

pytestmark = pytest.mark.backend_neutral


def test_what_does_not_generate_is_named(decoder):
    with pytest.raises(TypeError, match=r"`model` must generate.*Received: a NoneType"):
        generate(None, [[5]])
    with pytest.raises(TypeError, match=r"`models` must be a list.*Received: a "):
        Ensemble(decoder())


def test_rows_of_different_lengths_are_named(decoder):
    with pytest.raises(
        ValueError, match=r"`source_ids` must be rows of one length.*Received: \[\[5\], \[5, 6\]\]"
    ):
        generate(decoder(), [[5], [5, 6]])


def test_early_stopping_is_a_boolean():
    with pytest.raises(ValueError, match=r"`early_stopping` must be True or False. Received: .*never"):
        Beam(4, early_stopping="never")


def test_targets_with_padding_before_a_token_are_refused(decoder):
    for target in ([0, 5], [5, 0, 6]):
        with pytest.raises(ValueError, match=r"`target_ids` must have padding behind.*row 1"):
            score(decoder(), [[5], [5]], [[6] * len(target), target])
    assert score(decoder(), [[5]], [[6, 0, 0]]).lengths == [1]


def test_scores_that_are_nan_are_named_by_row_and_step():
    class Broken:
        """After 7 comes NaN."""

        vocabulary_size, pad_id, end_id, variables = 12, 0, 3, []

        def empty_cache(self, batch_size, length, hypotheses=1):
            return ops.zeros((batch_size, 1))

        def step(self, ids, cache, **options):
            logits = ops.zeros((*ids.shape, 12))
            return ops.where(ops.equal(ids, 7)[..., None], float("nan"), logits), cache

    with pytest.raises(ValueError, match=r"finite logits. Received: .* row 1 at step 2"):
        generation.score(Broken(), [[4], [4]], [[5, 6, 5], [5, 7, 5]])
    assert np.isfinite(generation.score(Broken(), [[4]], [[5, 6, 7]]).scores).all()


def test_padding_ends_nothing(decoder):
    with pytest.raises(ValueError, match=r"end tokens that are not padding. Received: .*pad_id=0"):
        generate(decoder(), [[5]], constraints=[generation.EndTokens([0, 4])])


@pytest.mark.parametrize("sampler", ["greedy", generation.Beam(2), generation.Sample()], ids=str)
def test_numbers_of_rows_are_checked_whether_or_not_they_are_drawn_for(decoder, sampler):
    with pytest.raises(ValueError, match=r"`rows` must be integers of shape"):
        generate(decoder(), [[5]], sampler, rows="abc")
