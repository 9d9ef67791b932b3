import contextlib
import dataclasses
import json
import pathlib
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import export, generation, pipelines, recipes, text
from keras_transformer.export import ParityError
from keras_transformer.export.parity import near_ties
from keras_transformer.export.parity.generation import Reference
from keras_transformer.generation import (
    Beam,
    Contrastive,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    Sample,
    VocabularyShortlist,
)
from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.search import categorical
from keras_transformer.models import GPT
from keras_transformer_serving import parity, precisions
from keras_transformer_serving.row_options import TEMPERATURES

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLERS = {
    "plain": Sample(),
    "cold": Sample(0.3),
    "hot": Sample(3.0),
    "coldest": Sample(TEMPERATURES[0]),
    "top_k": Sample(top_k=8),
    "top_k of one": Sample(top_k=1),
    "top_p": Sample(top_p=0.8),
    "min_p": Sample(min_p=0.1),
    "all": Sample(0.7, top_k=40, top_p=0.9, min_p=0.02),
}
DRAWS, VOCABULARY = 200, 300


def logits_of(kind):
    """Logits of few probable and many rare tokens, as of text, or of nearly equal ones, as of a new model."""
    random = np.random.default_rng(7)
    logits = -np.log(1.0 + random.permuted(np.tile(np.arange(VOCABULARY), (DRAWS, 1)), axis=1)) * 1.2
    logits = 0.1 * random.normal(size=logits.shape) + (logits if kind == "text" else 0)
    logits[:, :2] = FORBIDDEN
    return logits, random.random(DRAWS).astype("float32"), random


def drawn(logits, sampler, noise):
    """The tokens that the search draws in float32."""
    tensors = [
        ops.convert_to_tensor(values.astype("float32")) for values in (logits[:, None], noise[:, None])
    ]
    return ops.convert_to_numpy(categorical.draw(tensors[0], sampler, sampler.temperature, tensors[1]))[:, 0]


@pytest.mark.parametrize("kind", ["text", "flat"])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_draws_from_logits_within_the_margin_are_near_ties(sampler, kind):
    logits, noise, random = logits_of(kind)
    margin = 0.02
    mask = near_ties.draws_of(logits, sampler, noise, margin)
    changed = 0
    for _ in range(5):
        moved = logits + np.where(
            logits > FORBIDDEN / 2, random.choice([-0.5, 0.5], logits.shape) * margin, 0
        )
        tokens = drawn(moved, sampler, noise)
        assert mask[np.arange(DRAWS), tokens].all()
        changed += np.count_nonzero(tokens != drawn(logits, sampler, noise))
    assert changed or sampler.temperature < 1e-6 or sampler.top_k == 1


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_most_draws_from_the_distribution_of_text_have_no_near_tie(sampler):
    logits, noise, _ = logits_of("text")
    mask = near_ties.draws_of(logits, sampler, noise)
    assert mask[np.arange(DRAWS), drawn(logits, sampler, noise)].all()
    assert np.mean(mask.sum(axis=-1) == 1) > 0.97


@pytest.mark.parametrize("distance", [0.5, 2.0])
def test_noise_near_a_boundary_is_a_near_tie_within_the_margin_only(distance):
    """The odds of the cumulative distribution at a boundary move by the margin."""
    logits = np.log(np.array([[0.2, 0.3, 0.5]]))
    odds = 1.0 * np.exp(-distance * parity.NEAR_TIE)  # the boundary of the last two tokens is at one half
    mask = near_ties.draws_of(logits, Sample(), np.array([odds / (1 + odds)]))
    np.testing.assert_array_equal(mask, [[False, True, distance < 1]])


@pytest.fixture(scope="module")
def hesitant():
    """A language model that has hardly learnt: all words have similar probabilities."""
    words = [f"{first}{second}{third}" for first in "bdfgklmnprst" for second in "aeiou" for third in "lnrsz"]
    tokenizer = text.BytePairTokenizer.train(words * 3, 700)
    keras.utils.set_random_seed(0)
    model = GPT(
        tokenizer.vocabulary_size,
        num_layers=1,
        num_heads=2,
        model_dim=16,
        max_length=64,
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
    )
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(np.asarray(weight) + 0.02 * random.normal(size=weight.shape))
    return pipelines.TextGeneration(model, tokenizer, Sample(seed=3), max_new_tokens=16, max_source_tokens=8)


TEXTS = [first + rest for first in "bdf" for rest in ("al", "in")]
CASES = {
    "all": (Sample(1.3, top_k=480, top_p=0.99, num_return=2), (NoRepeatNGram(2), MinNewTokens(9))),
    "seed": (Sample(seed=3), ()),
    "shortlist": (Sample(seed=5), (VocabularyShortlist(tuple(range(500))), RepetitionPenalty(1.3))),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize(("sampler", "constraints"), CASES.values(), ids=CASES)
def test_a_draw_at_a_near_tie_passes_with_and_without_the_model(hesitant, sampler, constraints):
    pipeline = hesitant.with_settings(sampler, constraints=constraints)
    made = Reference.of(pipeline, TEXTS)
    stored = parity.Reference.stored(
        json.loads(
            json.dumps(parity.compare_generated(made, lambda texts: {"graph": (made.ids, made.answers)}))
        )
    )
    rows = made.ids.reshape(len(TEXTS), -1, made.ids.shape[-1])
    ties = [
        (row, hypothesis, step, id_)
        for row, hypotheses in enumerate(rows)
        for hypothesis, ids in enumerate(hypotheses)
        for step in range(len(ids))
        for id_ in made.near_ties(row, hypothesis, step)
    ]
    assert 0 < len(ties) < rows.size / 5
    row, hypothesis, step, near = ties[0]
    greedy = pipeline.with_settings("greedy").generate(TEXTS).best
    np.testing.assert_array_equal(made.choices.ids, greedy)

    def exported(id_):
        ids = rows.copy()
        ids[row, hypothesis, step:] = id_
        answers = [[f"{answer}…"] if at == row else answer for at, answer in enumerate(made.answers)]
        answers = made.answers if not id_ else answers
        return lambda texts: {"graph": (ids.reshape(made.ids.shape), answers)}

    for reference in (made, stored):
        report = parity.compare_generated(reference, exported(near))
        assert report["graphs"] == {"graph": {"identical": len(TEXTS) - 1, "near_ties": 1}}
        assert report["examples"]["texts"] == TEXTS  # also those with near ties, which are stored
        np.testing.assert_array_equal(reference.choices.ids, greedy)
        with pytest.raises(
            ParityError, match=rf"Please report the error.*`formats`.*from token {step} on"
        ) as error:
            parity.compare_generated(reference, exported((near + 50) % 500))
        assert len(str(error.value)) < 700


@pytest.fixture
def twins(hesitant):
    """A pipeline with contrastive search, and two tokens with equal embeddings, of which it chooses one."""
    pipeline = hesitant.with_settings(Contrastive(4, 0.5), max_new_tokens=8)
    embeddings = pipeline.model.embedding.embedding.embeddings
    before = np.array(embeddings)
    ids = [int(pipeline.generate(TEXTS[:1]).best[0, 2]), 300]
    embeddings.assign(np.where(np.arange(len(before))[:, None] == ids[1], before[ids[0]], before))
    yield pipeline, ids
    embeddings.assign(before)


def test_a_contrastive_choice_at_a_near_tie_passes(twins):
    pipeline, twin_ids = twins
    made = Reference.of(pipeline, TEXTS[:2])
    np.testing.assert_array_equal(made.greedy.ids, pipeline.with_settings("greedy").generate(TEXTS[:2]).best)
    places = np.argwhere(np.isin(made.ids, twin_ids))
    assert len(places)
    for row, step in places.tolist():
        (other,) = {*twin_ids} - {made.ids[row, step]}
        assert other in made.near_ties(row, 0, step)
    ties = [len(made.near_ties(row, 0, step)) for row, step in np.ndindex(made.ids.shape)]
    assert np.mean(np.equal(ties, 0)) > 0.5
    for id_, passes in ((other, True), ((other + 50) % 500, False)):
        ids = made.ids.copy()
        ids[row, step] = id_
        answers = [f"{answer}…" if at == row else answer for at, answer in enumerate(made.answers)]
        with contextlib.nullcontext() if passes else pytest.raises(ParityError, match="Please report"):
            parity.compare_generated(made, lambda texts, of=(ids, answers): {"graph": of})


def at_ties(pipeline, texts):
    """Change the embeddings until the outputs of a text change; yield it, and its outputs before and after."""
    embeddings = pipeline.model.embedding.embedding.embeddings
    before, random = np.array(embeddings), np.random.default_rng(1)
    direction = 0.01 * random.normal(size=before.shape)
    for text_ in texts:
        low, high = 0.0, 1.0
        first = pipeline.generate([text_])
        while high - low > 1e-4:
            middle = (low + high) / 2
            embeddings.assign(before + middle * direction)
            same = np.array_equal(pipeline.generate([text_]).ids, first.ids)
            low, high = (middle, high) if same else (low, middle)
        outputs = []
        for fraction in (high, low):
            embeddings.assign(before + fraction * direction)
            outputs.append(pipeline.generate([text_]))
        yield text_, *reversed(outputs)
        embeddings.assign(before)


BEAMS = {
    "one": (Beam(3), ()),
    "two": (Beam(3, num_return=2), (MinNewTokens(3),)),
    "shortlist": (Beam(3, length_penalty=0.5), (VocabularyShortlist(tuple(range(500))), NoRepeatNGram(2))),
}


@pytest.mark.slow
@pytest.mark.parametrize(("beam", "constraints"), BEAMS.values(), ids=BEAMS)
def test_beams_after_a_near_tie_pass(hesitant, beam, constraints):
    """Rounding may remove a hypothesis that would have won, so that the scores of the results are not close."""
    pipeline = hesitant.with_settings(beam, constraints=constraints, max_new_tokens=8)
    found = 0
    for text_, now, after in at_ties(pipeline, ("dal", "din", "fal")):
        if np.abs(now.ranking_scores - after.ranking_scores).max() < parity.NEAR_TIE:
            continue
        found += 1
        made = Reference.of(pipeline, [text_])
        ids = after.ids if beam.num_return > 1 else after.best
        graph = {"graph": (ids, ["…" for _ in ids])}
        report = parity.compare_generated(made, lambda texts, graph=graph: graph)
        assert report["graphs"] == {"graph": {"identical": 0, "near_ties": 1}}
        ids[..., 4:] = (ids[..., 4:] + 50) % 500
        with pytest.raises(ParityError, match="Please report"):
            parity.compare_generated(made, lambda texts, graph=graph: graph)
    assert found


def test_near_choices_are_nearly_as_probable_at_each_step():
    tokenizer = text.ByteTokenizer()
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
    model = GPT(tokenizer.vocabulary_size, **sizes, **ids)
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(scale=0.3, size=weight.shape))
    pipeline = pipelines.TextGeneration(model, tokenizer, max_new_tokens=5, max_source_tokens=8)
    made = Reference.of(pipeline, ["ab", "c"])
    found = 0
    for row, prompt in enumerate(["ab", "c"]):
        ids, near = tokenizer.tokenize([prompt]).numpy()[0].tolist(), made.near_choices(row)
        for step, chosen in enumerate(made.ids[row].tolist()):
            probabilities = ops.convert_to_numpy(ops.softmax(model(np.array([ids]))[0, -1]))
            least = max(probabilities[chosen] - 0.05, probabilities[chosen] / 2)
            expected = {*np.flatnonzero(probabilities >= least).tolist()} - {chosen}
            assert {id_ for place, id_ in near if place == step} == expected
            found, ids = found + len(expected), [*ids, chosen]
            if chosen == tokenizer.end_id:
                break
    assert found


def test_other_precisions_are_compared_by_the_most_probable_tokens():
    """Where tokens have similar probabilities, draws of a graph in float16 differ from the model's."""
    greedy = parity.Reference(["a"], np.array([[5, 6]]), ["five six"], scores=np.array([-1.0]))
    drawn = dataclasses.replace(greedy, ids=np.array([[[7, 8], [9, 5]]]), greedy=greedy, draws=True)
    graphs = types.SimpleNamespace()

    def generate(texts, **options):
        graphs.options = options
        return {
            "ids": np.array([[[5, 6], [5, 6]]]),
            "lengths": np.array([[2, 2]]),
            "scores": np.array([[-1.0, -1.0]]),
        }

    graphs.generate = generate
    row = precisions.compare("float16", drawn, graphs, {})
    assert graphs.options == {"temperature": TEMPERATURES[0]}
    assert (row["identical"], row["identical_ids"], row["score_difference"]) == (1, 1, 0)


def spanish_text():
    """The Spanish guides and the text of the Spanish notebooks."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "es").glob("*.md"))]
    for path in sorted((ROOT / "notebooks" / "es").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return "\n".join(texts)


@pytest.mark.slow
def test_a_language_model_after_a_short_training_is_exported(tmp_path):
    """Its distribution is flat, so that many draws are near boundaries."""
    (tmp_path / "novel.txt").write_text(spanish_text(), encoding="utf-8")
    recipe = recipes.LanguageModel(
        str(tmp_path / "novel.txt"),
        tokenizer="byte-bpe",
        vocabulary_size=4000,
        epochs=1,
        layers=1,
        model_dim=64,
        heads=2,
        max_length=64,
    )
    pipeline, _ = recipe.train(verbose=0)
    assert isinstance(pipeline.sampler, generation.Sample)
    folder = export.bundle(pipeline, tmp_path / "export", precisions=("float32", "float16", "int8"))
    report = export.verify(folder)
    assert set(report["onnx"]["precisions"]) == {"float16", "int8"}
    assert export.verify(folder, pipeline)["onnx"]["graphs"]["onnx_loop"]["identical"] > 0
