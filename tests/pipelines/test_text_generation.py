import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import export, generation, pipelines, text
from keras_transformer.models import GPT
from keras_transformer.pipelines import TextGeneration
from tests.random_weights import randomise

TEXTS = ["to be, or not to be: that is the question", "whether 'tis nobler in the mind to suffer", "ñandú ☃"]
PROMPTS = ["to be", "the question", "w", "mind to suffer to be or not", "the  que "]
TOKENIZERS = {
    "byte_pair": lambda: text.BytePairTokenizer.train(TEXTS, 290),
    "sentence_piece": lambda: text.SentencePieceTokenizer.train(TEXTS, 320),
    "character_pair": lambda: text.OpenAIGPTTokenizer.train([*TEXTS, "w"], 80),
    "bytes": text.ByteTokenizer,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def random_model(tokenizer, **options):
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "max_length": 64, "dropout": 0.0}
    model = GPT(
        tokenizer.vocabulary_size,
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
        **{**sizes, "position_encoding": "rotary", **options},
    )
    return randomise(model, scale=0.7, seed=1)


@pytest.fixture(scope="module")
def writer(tokenizer):
    """A pipeline whose outputs differ: a small random model would always prefer one token."""
    return TextGeneration(random_model(tokenizer), tokenizer, generation.Sample(seed=1), max_new_tokens=6)


@pytest.fixture(scope="module")
def byte_writer():
    tokenizer = text.ByteTokenizer()
    return TextGeneration(random_model(tokenizer), tokenizer, max_new_tokens=6)


@pytest.mark.slow
def test_prompt_and_output_concatenate_to_the_text_of_all_ids(writer):
    out = writer.generate(PROMPTS)
    answers = [answer.decode() for answer in writer.decode(out.best).numpy()]
    assert len(set(answers)) > 1
    for prompt, answer, ids in zip(PROMPTS, answers, out.best, strict=True):
        prompt_ids = writer.tokenizer.tokenize(prompt).numpy().tolist()
        both = [*prompt_ids, *ids[ids != writer.model.pad_id].tolist()]
        said = writer.tokenizer.detokenize(prompt_ids).numpy().decode()
        assert said + answer == writer.tokenizer.detokenize(both).numpy().decode()


@pytest.mark.slow
def test_prompts_are_not_normalised(writer):
    ids = writer.encode(PROMPTS[:2]).numpy()
    assert (ids != writer.model.end_id).all()
    for row, prompt in zip(ids, PROMPTS, strict=False):
        assert row[row != writer.model.pad_id].tolist() == writer.tokenizer.tokenize(prompt).numpy().tolist()


@pytest.mark.slow
def test_streamed_pieces_concatenate_to_the_output(byte_writer):
    assert "".join(byte_writer.stream("abcd")) == byte_writer("abcd")


def test_add_start_allows_empty_prompts(byte_writer):
    started = TextGeneration(byte_writer.model, byte_writer.tokenizer, max_new_tokens=3, add_start=True)
    start = byte_writer.tokenizer.start_id
    assert started.encode([""]).numpy().tolist() == [[start]]
    assert started.with_settings("sample").add_start


def test_a_prompt_without_tokens_is_rejected(byte_writer):
    with pytest.raises(ValueError, match=r"each have a token. Received: none in texts\[1\]"):
        byte_writer(["a", ""])


def test_learned_positions_limit_prompt_and_output(byte_writer):
    model = random_model(byte_writer.tokenizer, position_encoding="learned")
    writer = TextGeneration(model, byte_writer.tokenizer, max_new_tokens=10)
    assert writer.max_source_tokens == 55
    assert len(writer.encode(["a" * 55])[0]) == 55
    with pytest.raises(ValueError, match=r"at most 55 tokens each.*Received: 56 tokens in texts\[0\]"):
        writer("a" * 56)
    with pytest.raises(ValueError, match="must fit the model's 64 positions together. Received: 60 and 10"):
        TextGeneration(model, byte_writer.tokenizer, max_new_tokens=10, max_source_tokens=60)


@pytest.mark.slow
def test_max_source_tokens_by_default_follows_max_new_tokens(byte_writer, tmp_path):
    model = random_model(byte_writer.tokenizer, position_encoding="learned")
    writer = TextGeneration(model, byte_writer.tokenizer, max_new_tokens=10)
    writer.save(tmp_path / "derived")
    for each in (writer, pipelines.load(tmp_path / "derived")):
        assert each.generation_config()["max_source_tokens"] == 55
        assert [each.with_settings(max_new_tokens=most).max_source_tokens for most in (30, 4)] == [35, 61]
    given = TextGeneration(model, byte_writer.tokenizer, max_new_tokens=10, max_source_tokens=20)
    given.save(tmp_path / "given")
    for each in (given, pipelines.load(tmp_path / "given")):
        assert each.with_settings(max_new_tokens=30).max_source_tokens == 20


def test_mismatched_model_and_tokenizer_are_rejected(byte_writer):
    other = text.ByteTokenizer(extra_tokens=["<more>"])
    with pytest.raises(ValueError, match="must have the same vocabulary_size"):
        TextGeneration(byte_writer.model, other)
    without = text.ByteTokenizer({"pad": "<pad>", "unknown": "<unk>", "end": "</s>"}, ["<more>"])
    model = GPT(without.vocabulary_size, 1, 2, 8, end_id=without.end_id, pad_id=without.pad_id)
    with pytest.raises(ValueError, match="`add_start` must be False .*tokenizer.start_id=-1"):
        TextGeneration(model, without, add_start=True)


@pytest.mark.slow
def test_a_saved_model_gives_the_same_outputs(byte_writer, tmp_path):
    path = export.saved_model(byte_writer, tmp_path / "writer", texts=["abcd", "f"])
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    answers = [one.decode() for one in served(text=tf.constant(["xyz", "abcd"]))["text"].numpy()]
    assert answers == byte_writer(["xyz", "abcd"])


END_OF_TEXT = {"unknown": "<|endoftext|>", "start": "<|endoftext|>", "end": "<|endoftext|>"}


@pytest.fixture(scope="module")
def gpt2():
    """A pipeline as of GPT-2: one special token for start and end, and no padding."""
    tokenizer = text.BytePairTokenizer.train(TEXTS, 290, special_tokens=END_OF_TEXT)
    model = random_model(tokenizer, position_encoding="learned")
    return TextGeneration(model, tokenizer, max_new_tokens=6, add_start=True, special_tokens=True)


@pytest.mark.slow
def test_an_empty_prompt_starts_from_the_end_token(gpt2):
    end_id = gpt2.tokenizer.end_id
    assert gpt2.tokenizer.pad_id is None
    assert gpt2.model.pad_id is None
    inputs = gpt2.preprocess([""]).inputs
    assert inputs["source_ids"].numpy().tolist() == [[end_id]]
    out = generation.generate(gpt2.model, np.array([[end_id]]), max_new_tokens=6)
    np.testing.assert_array_equal(gpt2.generate([""]).ids, out.ids)


def test_special_tokens_in_a_prompt_are_single_tokens_on_request(gpt2):
    end_id, prompt = gpt2.tokenizer.end_id, "to be<|endoftext|>the question"
    ids = gpt2.encode([prompt]).numpy()[0].tolist()
    parts = gpt2.tokenizer.tokenize(["to be", "the question"]).to_list()
    assert ids == [end_id, *parts[0], end_id, *parts[1]]
    plain = TextGeneration(gpt2.model, gpt2.tokenizer, max_new_tokens=6)
    assert end_id not in plain.encode([prompt]).numpy()[0].tolist()


@pytest.mark.slow
def test_prompts_with_end_tokens_do_not_depend_on_the_batch(gpt2):
    prompts = ["", "<|endoftext|>", "to be<|endoftext|>", "whether 'tis nobler in the mind", "w"]
    inputs = gpt2.preprocess(prompts).inputs
    assert inputs["padding_mask"].numpy().sum(axis=1).tolist()[:2] == [1, 2]
    out = gpt2.generate(prompts)
    for row in range(len(prompts)):
        assert (out.best[row, out.lengths[row, 0] :] == gpt2.model.end_id).all()
    targets = [" to", " be", " or", "s", "hat"]
    scores = [answer.score for answer in gpt2.score(prompts, targets)]
    single = [gpt2.score([one], [target])[0].score for one, target in zip(prompts, targets, strict=True)]
    np.testing.assert_allclose(scores, single, rtol=1e-4)


@pytest.mark.slow
def test_a_long_text_in_a_graph_is_rejected_and_its_ids_are_ignored(gpt2):
    run = tf.function(gpt2.preprocess, [tf.TensorSpec([None], tf.string)])
    for texts in (["to be", "w" * 200], ["w" * 200, "to be"]):
        batch, long = run(tf.constant(texts)), texts.index("w" * 200)
        assert b"must have at most 59 tokens" in batch.error.numpy()[long]
        assert batch.error.numpy()[1 - long] == b""
        assert batch.inputs["padding_mask"].numpy().any(axis=1).tolist() == [row != long for row in (0, 1)]
        out = gpt2.signatures()["generate_ids"].function(tf.constant(texts))
        assert (out["lengths"].numpy() > 0).tolist() == [row != long for row in (0, 1)]
        np.testing.assert_array_equal(out["error"], batch.error)
