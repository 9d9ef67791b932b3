"""Subword regularization: each epoch segments the same texts differently, reproducibly for a seed."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import models, training
from keras_transformer.data import language_modeling, multi_task_pairs, translation_pairs
from keras_transformer.data.sampling import SampledRows
from keras_transformer.data.storage import RowsToStore, in_memory
from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    OpenAIGPTTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)

WORDS = ["the", "lowest", "newer", "widest", "hugging", "lower", "wide", "hugs", "new", "low"]
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(WORDS, size)) for size in RANDOM.integers(1, 12, 30)]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))


@pytest.fixture(scope="module")
def tokenizer():
    return BytePairTokenizer.train(TEXTS, 320)


@pytest.fixture(scope="module")
def sentence_piece():
    return SentencePieceTokenizer.train(TEXTS, 330)


def decoded(tokenizer, ids):
    return [text.decode() for text in tokenizer.detokenize(ids).numpy()]


class TestTokenizers:
    @pytest.mark.slow_variants
    @pytest.mark.parametrize("made", [BytePairTokenizer, OpenAIGPTTokenizer], ids=["bytes", "characters"])
    def test_bpe_dropout_is_a_function_of_the_seed_and_keeps_the_text(self, made):
        tokenizer = made.train(TEXTS, 320)
        usual = tokenizer.tokenize(TEXTS)
        first, again, other = (tokenizer.sample(TEXTS, 0.2, [0, seed]).to_list() for seed in (1, 1, 2))
        assert first == again != other
        assert decoded(tokenizer, tf.ragged.constant(first)) == decoded(tokenizer, usual)
        assert 1.1 < sum(map(len, first)) / len(usual.values) < 3
        in_graph = tf.function(lambda texts: tokenizer.sample(texts, 0.2, [0, 1]))(tf.constant(TEXTS))
        assert in_graph.to_list() == first

    @pytest.mark.slow
    def test_dropout_rates_near_zero_and_one_give_the_usual_pieces_and_single_bytes(self, tokenizer):
        usual = tokenizer.tokenize(TEXTS).to_list()
        assert tokenizer.sample(TEXTS, 1e-9, [0, 1]).to_list() == usual
        lengths = tokenizer.sample(TEXTS, 1 - 1e-7, [0, 1]).row_lengths().numpy()
        assert lengths.tolist() == [len(text) for text in TEXTS]

    @pytest.mark.slow
    def test_merges_are_dropped_with_the_given_probability(self):
        """A word of two bytes has one merge, which is dropped with probability `rate`."""
        tokenizer = BytePairTokenizer.train(["ab ab"], 261, add_prefix_space=False)
        assert tokenizer.merges == [("a", "b")]
        found = tokenizer.sample(["ab"] * 4000, 0.3, [5, 6]).row_lengths().numpy()
        assert abs((found == 2).mean() - 0.3) < 0.03

    def test_sentence_piece_samples_decode_to_the_same_text(self, sentence_piece):
        found = [sentence_piece.sample(TEXTS, 0.1, [0, 0]) for _ in range(2)]
        assert found[0].to_list() != found[1].to_list()
        for ids in found:
            assert decoded(sentence_piece, ids) == TEXTS
        np.testing.assert_array_equal(*(sentence_piece.tokenize(TEXTS).values for _ in range(2)))

    def test_tokenizers_that_cannot_sample_are_rejected(self):
        with pytest.raises(ValueError, match="Received: a ByteTokenizer"):
            ByteTokenizer().sample(["a"], 0.1, [0, 0])
        characters = SentencePieceTokenizer.train(TEXTS, 300, "char")
        with pytest.raises(ValueError, match="Received: a model of type char"):
            characters.sample(["a"], 0.1, [0, 0])
        with pytest.raises(ValueError, match="`rate` must be between 0 and 1. Received: rate=1"):
            ByteTokenizer().sample(["a"], 1, [0, 0])


@pytest.mark.slow
def test_few_samples_exceed_the_expected_length(tokenizer):
    ids, texts = RowsToStore.of_tokens(tokenizer.tokenize(TEXTS)), [text.encode() for text in TEXTS]
    arrays = in_memory([{"ids": ids, "texts": RowsToStore.of_strings(texts)}])
    for rate in (0.05, 0.1, 0.3):
        rows = SampledRows.of(arrays.rows("ids"), arrays.rows("texts"), tokenizer, rate)
        room = rows.lengths(0, len(TEXTS))
        samples = [tokenizer.sample(TEXTS, rate, [1, seed]).row_lengths().numpy() for seed in range(20)]
        assert (np.array(samples) > room).mean() < 0.08


def epoch(dataset, tokenizer):
    """Return the rows of an epoch by their texts: (source text, target text) → [(source ids, labels), …]."""
    found = collections.defaultdict(list)
    for inputs, labels in dataset.as_numpy_iterator():
        present = (labels != tokenizer.pad_id).any(axis=1)
        sources, labels = inputs["source_ids"][present], labels[present]
        shifted = inputs["target_ids"][present]
        assert (shifted[:, 0] == tokenizer.start_id).all()
        ends = (labels == tokenizer.end_id).cumsum(axis=1)[:, :-1] > 0
        np.testing.assert_array_equal(shifted[:, 1:][~ends], labels[:, :-1][~ends])
        assert ((labels == tokenizer.end_id).sum(axis=1) == 1).all()
        texts = zip(decoded(tokenizer, sources), decoded(tokenizer, labels), strict=True)
        for pair, source, label in zip(texts, sources, labels, strict=True):
            found[pair].append((source[source != 0].tolist(), label[label != 0].tolist()))
    return found


class TestTranslationPairs:
    @pytest.mark.slow
    def test_each_epoch_segments_the_same_texts_differently(self, tokenizer):
        datasets = [
            translation_pairs(PAIRS, tokenizer, 16, sampling=0.1, seed=seed, length_buckets=2)
            for seed in (1, 1, 2)
        ]
        first = [epoch(datasets[0], tokenizer) for _ in range(2)]
        again, other = (epoch(dataset, tokenizer) for dataset in datasets[1:])
        assert first[0] == again != other
        assert first[0] != first[1]
        for rows in (*first, other):
            assert {pair: len(each) for pair, each in rows.items()} == collections.Counter(PAIRS)
        usual = epoch(translation_pairs(PAIRS, tokenizer, 8, sampling=0.0), tokenizer)
        same = [first[0][pair] == usual[pair] for pair in usual]
        assert np.mean(same) < 0.2  # short texts, and the few samples that are too long

    @pytest.mark.slow
    def test_a_resumed_epoch_has_the_same_samples_and_other_epochs_have_others(self, tokenizer):
        dataset = translation_pairs(
            PAIRS, tokenizer, 8, sampling=0.1, shuffle=False
        )  # the same rows in a batch
        whole, other = ([labels.numpy().tolist() for _, labels in dataset] for _ in range(2))
        assert whole != other
        dataset.epochs.start_at(0, 2)
        iterator = iter(dataset)
        assert [next(iterator)[1].numpy().tolist() for _ in range(len(whole) - 2)] == whole[2:]

    @pytest.mark.slow
    def test_too_long_samples_are_replaced_by_the_usual_ids(self, tokenizer):
        max_length = max(len(ids) for ids in tokenizer.tokenize(TEXTS).to_list()) + 1
        dataset = translation_pairs(PAIRS, tokenizer, 8, sampling=0.9, max_length=max_length)
        rows = epoch(dataset, tokenizer)
        assert {pair: len(each) for pair, each in rows.items()} == collections.Counter(PAIRS)

    def test_exact_resume_rejects_a_nondeterministic_sampler_by_name(self, sentence_piece, tmp_path):
        dataset = translation_pairs(PAIRS, sentence_piece, 16, sampling=0.1)
        rows = epoch(dataset, sentence_piece)
        assert {pair: len(each) for pair, each in rows.items()} == collections.Counter(PAIRS)
        model = models.Transformer(
            sentence_piece.vocabulary_size, num_layers=1, num_heads=1, model_dim=4, hidden_dim=4
        )
        model.compile("sgd", training.LabelSmoothedCrossentropy())
        with pytest.raises(ValueError, match="`x` must be .* sampled by a SentencePieceTokenizer"):
            model.fit(dataset, callbacks=[training.ExactResume(tmp_path)])
        usual = translation_pairs(PAIRS, sentence_piece, 16)
        tokenizers = [each.epochs.nondeterministic_tokenizer for each in (usual, dataset)]
        assert tokenizers == ["", "SentencePieceTokenizer"]
        assert usual.epochs.fingerprint != dataset.epochs.fingerprint

    def test_errors_name_tokenizers_that_cannot_sample(self, tokenizer):
        pieces = WordPieceTokenizer.train(TEXTS, 100)
        message = (
            "`sampling` must be 0 for a `target_tokenizer` .* Received: sampling=0.1 and a WordPieceTokenizer"
        )
        with pytest.raises(ValueError, match=message):
            translation_pairs(PAIRS, tokenizer, target_tokenizer=pieces, sampling=0.1)
        with pytest.raises(ValueError, match="`pairs` must hold at least one pair"):
            translation_pairs([], tokenizer, sampling=0.1)


def separate_texts(dataset, tokenizer):
    """Return the texts of an epoch with their ids, [(text, ids), …], and the number of rows."""
    found, count = [], 0
    for inputs, labels in dataset.as_numpy_iterator():
        for ids, segments, positions, following in zip(
            inputs["token_ids"], inputs["segment_ids"], inputs["positions"], labels, strict=True
        ):
            count += int(segments.any())
            for segment in range(1, segments.max() + 1):
                here = segments == segment
                assert positions[here].tolist() == list(range(here.sum()))
                assert following[here].tolist() == [*ids[here].tolist()[1:], following[here][-1]]
                found.append((ids[here].tolist(), int(following[here][-1])))
            assert (following[segments == 0] == tokenizer.pad_id).all()
    assert {last for _, last in found} == {tokenizer.end_id}
    texts = decoded(tokenizer, tf.ragged.constant([ids for ids, _ in found]))
    return sorted(zip(texts, (ids for ids, _ in found), strict=True)), count


class TestLanguageModeling:
    @pytest.mark.slow
    def test_each_epoch_segments_the_same_separate_texts_differently(self, tokenizer):
        make = functools.partial(language_modeling, TEXTS, tokenizer, 4, length=64, separate=True)
        dataset = make(sampling=0.1)
        (first, rows), (second, _) = (separate_texts(dataset, tokenizer) for _ in range(2))
        usual, fewer_rows = separate_texts(make(), tokenizer)
        assert [text for text, _ in first] == [text for text, _ in second] == sorted(TEXTS)
        assert first != second
        assert np.mean([one == other for one, other in zip(first, usual, strict=True)]) < 0.5
        assert fewer_rows <= rows
        dataset.epochs.start_at(0)
        assert separate_texts(dataset, tokenizer)[0] == first

    @pytest.mark.slow
    def test_samples_that_do_not_fit_are_replaced_by_the_usual_ids(self, tokenizer):
        """Texts longer than a row have the usual pieces; others have a sample or the usual ids."""
        texts = [*TEXTS, " ".join(WORDS * 8)]
        length = max(len(ids) for ids in tokenizer.tokenize(TEXTS).to_list())
        assert len(tokenizer.tokenize(texts[-1:]).values) > length
        dataset = language_modeling(texts, tokenizer, 4, length=length, separate=True, sampling=0.9)
        pieces = collections.Counter()
        for inputs, labels in dataset.as_numpy_iterator():
            for ids, following in zip(inputs["segment_ids"], labels, strict=True):
                pieces.update(following[ids > 0].tolist())
        assert pieces[tokenizer.end_id] == len(texts)

    def test_exact_resume_rejects_a_nondeterministic_sampler_by_name(self, sentence_piece, tmp_path):
        dataset = language_modeling(TEXTS, sentence_piece, separate=True, length=64, sampling=0.1)
        model = models.GPT(sentence_piece.vocabulary_size, num_layers=1, num_heads=1, model_dim=4)
        model.compile("sgd", training.LabelSmoothedCrossentropy())
        with pytest.raises(ValueError, match="`x` must be .* sampled by a SentencePieceTokenizer"):
            model.fit(dataset, callbacks=[training.ExactResume(tmp_path)])


@pytest.mark.slow
def test_tasks_are_sampled_with_their_prefixes(tokenizer):
    tasks = {"new ": PAIRS[:20], "low ": PAIRS[20:]}
    dataset = multi_task_pairs(tasks, tokenizer, 8, sampling=0.1)
    first, second = (epoch(dataset, tokenizer) for _ in range(2))
    expected = collections.Counter((prefix + one, other) for prefix in tasks for one, other in tasks[prefix])
    assert {pair: len(rows) for pair, rows in first.items()} == expected
    assert first != second
