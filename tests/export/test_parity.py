import json

import numpy as np
import pytest

from keras_transformer.export import ParityError
from keras_transformer.export.parity import generation, near_ties
from keras_transformer.pipelines import TextToText
from keras_transformer_serving import parity

TEXTS = ["a", "b", "c"]
IDS = np.array([[5, 6, 3, 0], [7, 3, 0, 0], [8, 8, 8, 8]])
ANSWERS = ["five six", "seven", "eight"]
OTHER = np.array([[5, 9, 3, 0], [7, 3, 0, 0], [8, 8, 8, 8]])
OTHERS = ["five nine", "seven", "eight"]


def reference(near_ties=None):
    return generation.Reference(TEXTS, IDS, ANSWERS, near_ties)


def answering(ids=IDS, answers=ANSWERS, name="graph"):
    return lambda texts: {name: (np.asarray(ids)[: len(texts)], list(answers)[: len(texts)])}


def test_equal_answers_are_counted_as_identical():
    report = parity.compare_generated(reference(), answering())
    assert report["texts"] == 3
    assert report["graphs"] == {"graph": {"identical": 3, "near_ties": 0}}
    assert report["examples"] == {"texts": TEXTS, "ids": IDS.tolist(), "answers": ANSWERS}


def test_a_difference_at_a_near_tie_is_counted():
    asked = []

    def near_ties(*place):
        asked.append(place)
        return [9]

    report = parity.compare_generated(reference(near_ties), answering(OTHER, OTHERS))
    assert report["graphs"] == {"graph": {"identical": 2, "near_ties": 1}}
    assert asked == [(0, 0, 1)]


PLACE = r"`graph` must have the outputs of the model.*Input 0, 'a': expected 'five six', \[6, 3, 0\].*'five nine', \[9"
DIFFERENT = {
    "not near": (reference(lambda *_: [8]), answering(OTHER, OTHERS), PLACE),
    "without the model": (reference(), answering(OTHER, OTHERS), "Input 0"),
    "another text at a tie": (
        reference(lambda *_: range(10)),
        answering(IDS, ["five six", "seven", "EIGHT"]),
        r"Input 2, 'c': expected 'eight'. Received: 'EIGHT'",
    ),
    "ids of another width": (
        reference(lambda *_: range(10)),
        answering(IDS[:, :3]),
        r"Input 0.*shape \(4,\). Received: \(3,\)",
    ),
    "second graph": (
        reference(),
        lambda texts: {**answering(name="first")(texts), **answering(OTHER, name="second")(texts)},
        "`second`",
    ),
}


@pytest.mark.parametrize(("expected", "exported", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_any_other_difference_raises_an_error_with_its_position(expected, exported, message):
    with pytest.raises(ParityError, match=message):
        parity.compare_generated(expected, exported)


def test_missing_rows_raise_an_error():
    with pytest.raises(ValueError):  # noqa: PT011
        parity.compare_generated(reference(), answering(IDS[:2], ANSWERS[:2]))


def test_an_export_with_a_near_tie_passes_verification_without_the_model():
    """Stored references accept the same export again."""
    others = dict(zip(TEXTS, zip(OTHER, OTHERS, strict=True), strict=True))

    def exported(texts):
        ids, answers = zip(*(others[text] for text in texts), strict=True)
        return {"graph": (np.array(ids), list(answers))}

    report = parity.compare_generated(reference(lambda *_: [9]), exported)
    stored = generation.Reference.stored(json.loads(json.dumps(report)))
    parity.compare_generated(stored, exported)


def test_stored_references_round_trip():
    report = parity.compare_generated(reference(lambda *_: range(10)), answering())
    stored = generation.Reference.stored(json.loads(json.dumps(report)))
    assert (stored.texts, stored.answers, stored.near_ties) == (TEXTS, ANSWERS, None)
    np.testing.assert_array_equal(stored.ids, IDS)


@pytest.mark.slow
def test_a_reference_has_outputs_and_near_ties(pipeline, texts, monkeypatch):
    made = generation.Reference.of(pipeline, texts)
    assert made.texts == texts
    assert made.answers == pipeline(texts)
    np.testing.assert_array_equal(made.ids, pipeline.generate(texts).best)
    row, column = 3, 1
    target = np.array([[2, made.ids[row, 0]]])
    logits = np.asarray(pipeline.model({"source_ids": pipeline.encode([texts[row]]), "target_ids": target}))
    # Only pad and start, which are never generated, may have larger logits than the chosen id.
    logits = np.where(np.isin(np.arange(logits.shape[-1]), [0, 2]), -np.inf, logits[0, -1])
    chosen, second = np.argsort(-logits)[:2]
    assert chosen == made.ids[row, column]
    assert made.near_ties(row, 0, column) == []
    for margin, expected in ((0.99, []), (1.01, [second])):
        monkeypatch.setattr(
            near_ties.greedy_choices, "__defaults__", (margin * (logits[chosen] - logits[second]),)
        )
        assert generation.Reference.of(pipeline, texts).near_ties(row, 0, column) == expected


@pytest.mark.slow
def test_default_texts_cover_the_vocabulary_and_edge_cases(pipeline):
    made = generation.Reference.of(pipeline)
    assert len(made.texts) > 20
    assert "" in made.texts
    assert any(len(one) > 40 for one in made.texts)
    assert len(set(made.answers)) > 5
    assert generation.Reference.of(pipeline).texts == made.texts


def test_empty_texts_are_rejected(pipeline):
    with pytest.raises(ValueError, match="`texts` must not be empty"):
        generation.Reference.of(pipeline, [])


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 8, 20])
def test_a_pipeline_of_short_texts_has_a_default_reference(pipeline, limit):
    short = TextToText(pipeline.model, pipeline.tokenizer, max_new_tokens=10, max_source_tokens=limit)
    assert len(generation.Reference.of(short).texts) > 1
