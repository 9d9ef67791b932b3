import dataclasses

import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import (
    BannedWords,
    Beam,
    Contrastive,
    EndTokens,
    Greedy,
    MinNewTokens,
    Sample,
    Speculative,
    samplers,
)
from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.loop import new_search
from keras_transformer.generation.search.greedy import GreedySearch
from keras_transformer.generation.search.interface import Inputs
from keras_transformer.generation.settings import Settings
from keras_transformer.models import GPT, Transformer, Unlimiformer

from .reference import decoder

pytestmark = pytest.mark.backend_neutral

PROMPTS = np.array([[5, 6, 7], [4, 5, 0]])


@dataclasses.dataclass(frozen=True)
class Rank(samplers.Sampler):
    """Choose the token of rank `rank` at every step; rank 0 is greedy search."""

    rank: int = 1


class RankSearch(GreedySearch):
    """Mask all tokens except the one of the sampler's rank."""

    def _candidates(self, state, logits):
        logits = super()._candidates(state, logits)
        kept = ops.top_k(logits, self.sampler.rank + 1)[0][..., -1:]
        return ops.where(logits <= kept, logits, -1e9)


@pytest.fixture
def registered(monkeypatch):
    """Restore the registry after the test."""
    monkeypatch.setattr(samplers, "_NAMES", dict(samplers._NAMES))
    monkeypatch.setattr(samplers, "_SEARCHES", dict(samplers._SEARCHES))


@pytest.mark.slow
def test_a_registered_sampler_generates_and_serializes(registered):
    with pytest.raises(ValueError, match=r"`sampler` must be one of .*Received: sampler=Rank"):
        generation.generate(decoder(5), PROMPTS, Rank(), max_new_tokens=4)
    samplers.register("rank", Rank, RankSearch)
    model = decoder(5)
    out = generation.generate(model, PROMPTS, Rank(1), max_new_tokens=4)
    for row, (prompt, ids) in enumerate(zip(PROMPTS, out.best, strict=True)):
        prompt = prompt[prompt != 0]
        for step in range(out.lengths[row, 0]):
            logits = ops.convert_to_numpy(model(np.array([[*prompt, *ids[:step]]])))[0, -1]
            logits[[model.pad_id]] = -np.inf
            assert ids[step] == np.argsort(-logits)[1]
    assert samplers.serialize(Rank(2)) == {"sampler": "rank", "rank": 2}
    assert generation.get({"sampler": "rank", "rank": 2}) == Rank(2)


@pytest.mark.slow
def test_a_registered_sampler_streams_the_ids_of_generate(registered):
    samplers.register("rank", Rank, RankSearch)
    model = decoder(5)
    out = generation.generate(model, PROMPTS, Rank(1), max_new_tokens=4)
    greedy = generation.generate(model, PROMPTS, max_new_tokens=4)
    np.testing.assert_array_equal(
        generation.generate(model, PROMPTS, Rank(0), max_new_tokens=4).ids, greedy.ids
    )
    streamed = np.stack(list(generation.stream(model, PROMPTS, "rank", max_new_tokens=4)), axis=1)
    np.testing.assert_array_equal(streamed, out.best[:, : streamed.shape[1]])


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["greedy", "beam", "one beam", "sample", "contrastive", "speculative"])
def test_every_search_keeps_the_structure_of_its_loop_state(name):
    model = GPT(12, num_layers=1, num_heads=2, model_dim=8, max_length=32)
    sampler = {
        "greedy": Greedy(),
        "beam": Beam(2),
        "one beam": Beam(1),
        "sample": Sample(seed=0, num_return=2),
        "contrastive": Contrastive(2),
        "speculative": Speculative(model, 2),
    }[name]
    search = new_search(Inputs(model, Settings.of(model, sampler, 3), source_ids=ops.array(PROMPTS)))
    state = search.start()
    assert bool(search.running(state))
    following = search.step(state)
    assert following.keys() == state.keys()
    for name in state.keys() - {"cache", "draft_cache"}:
        assert following[name].shape == state[name].shape, name
        assert following[name].dtype == state[name].dtype, name
    assert int(following["step"]) == 1
    while bool(search.running(state)):
        state = search.step(state)
    expected = generation.generate_ids(model, ops.array(PROMPTS), 3, sampler=sampler)
    for name, value in search.results(state).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "constraint", [None, EndTokens([5]), BannedWords([[4], [7]]), MinNewTokens(2)], ids=repr
)
@pytest.mark.parametrize("minimums", [None, [3, 0]], ids=repr)
@pytest.mark.parametrize("vocabulary_size", [12, 151])
def test_the_highest_logits_are_the_first_of_a_sort_of_all(vocabulary_size, minimums, constraint):
    model, runs = decoder(5, vocabulary_size=vocabulary_size), 20
    settings = Settings.of(model, Greedy(), 3, constraints=[constraint] if constraint else [])
    minimums = None if minimums is None else ops.convert_to_tensor(minimums * runs, "int32")
    prompts = ops.array(np.tile(PROMPTS, (runs, 1)))
    search = new_search(Inputs(model, settings, source_ids=prompts, minimums=minimums))
    state = search.start()
    random = np.random.default_rng(vocabulary_size)
    logits = random.integers(1, 9, (2 * runs, 1, vocabulary_size)).astype("float32")
    for rows in np.split(logits, runs):
        rows[..., [0, 3, 5]] = random.integers(5, 10, 3)  # special tokens are often the highest
        rows[..., random.integers(0, vocabulary_size, vocabulary_size // 2)] = -np.inf
    logits[:2, :, 2:] = -np.inf
    whole = ops.convert_to_numpy(search._processed(ops.array(logits), state["ids"], state["step"]))
    order = np.argsort(-whole, axis=-1, kind="stable")
    for count in (1, 4):
        values, tokens = map(ops.convert_to_numpy, search._highest(ops.array(logits), state, count))
        assert tokens.max() < vocabulary_size
        for row in range(2 * runs):
            allowed = values[row, 0] > FORBIDDEN / 2
            expected = [token for token in order[row, 0] if whole[row, 0, token] > FORBIDDEN / 2]
            assert tokens[row, 0][allowed][:count].tolist() == expected[:count]
            np.testing.assert_array_equal(values[row, 0][allowed], logits[row, 0, tokens[row, 0][allowed]])


@pytest.mark.slow
def test_arguments_are_validated_once(monkeypatch):
    validated = []
    original = generation.logits_processors.LogitsProcessors.of
    monkeypatch.setattr(
        generation.logits_processors.LogitsProcessors,
        "of",
        lambda *given: validated.append(1) or original(*given),
    )
    model = decoder(5)
    generation.generate(model, PROMPTS, max_new_tokens=2)  # compiles
    assert len(validated) == 1
    list(generation.stream(model, PROMPTS, max_new_tokens=2))
    assert len(validated) == 2
    run = generation.Generator(model, max_new_tokens=2)
    assert len(validated) == 3
    run(PROMPTS)
    assert len(validated) == 3


def test_encoder_decoders_are_recognized():
    gpt = GPT(12, num_layers=1, num_heads=2, model_dim=8)
    transformer = Transformer(12, num_layers=1, num_heads=2, model_dim=8, hidden_dim=8)
    assert gpt.encode(PROMPTS) is None
    assert not any(map(is_encoder_decoder, (gpt, decoder(), generation.Ensemble([gpt]))))
    encoder_decoders = (transformer, Unlimiformer(transformer, 2, 4), generation.Ensemble([transformer]))
    assert all(map(is_encoder_decoder, encoder_decoders))
