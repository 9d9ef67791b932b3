"""OpenAI's protocol, by its own client."""

import asyncio
import json

import numpy as np
import openai
import pytest
from openai import BadRequestError, NotFoundError
from served_exports import STEPS, call, json_call, listening, predict, run, write_export
from served_graphs import OFFSET

import keras_transformer_serving as serving
from keras_transformer_serving.generation import Token
from keras_transformer_serving.graphs import Graphs
from keras_transformer_serving.server import Limits, create_app

NAMES = ("generator", "chat", "sampler", "copier", "embedder", "classifier")
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
PROMPTS = ["hello", "a", "the cat", "x" * 17]
MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("openai")
    return {name: write_export(small, folder / name, name) for name in NAMES}


@pytest.fixture(scope="module")
def client(exports):
    with listening(create_app(exports)) as address, new_client(address) as client:
        yield client


def new_client(address, api_key="any"):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=api_key, max_retries=0)


def test_completions_are_the_texts_of_the_pipeline(client, exports):
    pipeline = serving.load(exports["generator"])
    found = client.completions.create(model="generator", prompt=PROMPTS, user="me")
    assert [choice.text for choice in found.choices] == pipeline(PROMPTS)
    assert [choice.index for choice in found.choices] == [*range(len(PROMPTS))]
    lengths = pipeline.generate(PROMPTS)["lengths"]
    reasons = ["length" if length == STEPS else "stop" for length in lengths]
    assert [choice.finish_reason for choice in found.choices] == reasons
    assert found.usage.prompt_tokens == sum(map(len, PROMPTS))
    assert found.usage.completion_tokens == lengths.sum()
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert (found.object, found.model) == ("text_completion", "generator")
    ids = pipeline.encode(PROMPTS)
    again = client.completions.create(model="generator", prompt=ids)
    assert [choice.text for choice in again.choices] == pipeline(PROMPTS)
    assert client.completions.create(model="generator", prompt=ids[0]).choices[0].text == pipeline(PROMPTS[0])
    copied = client.completions.create(model="copier", prompt="La casa", max_tokens=3)
    assert (copied.choices[0].text, copied.choices[0].finish_reason) == ("La ", "length")
    for limit in (
        {"max_tokens": 4096},
        {"extra_body": {"max_completion_tokens": 4096}},
    ):  # more than the export's
        clamped = client.completions.create(model="copier", prompt="La casa", **limit).choices[0]
        assert clamped.text == client.completions.create(model="copier", prompt="La casa").choices[0].text
    full = client.completions.create(model="copier", prompt="x" * STEPS, max_tokens=4096).choices[0]
    assert (full.text, full.finish_reason) == ("x" * STEPS, "length")


@pytest.mark.parametrize("stop", [None, ["zz"], "y", ["wv", "v"], ["stv", "t"]])
def test_streams_make_up_the_whole_answer(client, stop):
    for prompt in PROMPTS:
        options = {"model": "generator", "prompt": prompt, "stop": stop}
        whole = client.completions.create(**options)
        *parts, last = client.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
        assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert (last.choices, last.usage) == ([], whole.usage)
        assert len({part.id for part in parts}) == 1
        steps = client.completions.create(**options, logprobs=0)
        assert (steps.choices[0].text, steps.usage) == (whole.choices[0].text, whole.usage)


def test_a_text_ends_before_the_first_stop_string(client):
    text = client.completions.create(model="generator", prompt="abd").choices[0].text
    assert len(text) > 4
    for start in range(len(text)):
        stop = text[start : start + 2]
        found = client.completions.create(model="generator", prompt="abd", stop=stop)
        assert found.choices[0].text == text[: text.index(stop)]
        parts = client.completions.create(model="generator", prompt="abd", stop=stop, stream=True)
        assert "".join(part.choices[0].text for part in parts) == found.choices[0].text
        assert found.choices[0].finish_reason == "stop"
        assert found.usage.completion_tokens <= len(text) + 1


def test_chat_completions_continue_the_conversation_of_the_template(client, exports):
    pipeline = serving.load(exports["chat"])
    expected = pipeline(MESSAGES)
    found = client.chat.completions.create(model="chat", messages=MESSAGES)
    assert found.choices[0].message.content == expected
    assert found.choices[0].message.role == "assistant"
    assert found.usage.prompt_tokens == len("system:be;user:ab;")
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    of_parts = client.chat.completions.create(model="chat", messages=[MESSAGES[0], *parts])
    assert of_parts.choices[0].message.content == expected
    chunks = [*client.chat.completions.create(model="chat", messages=MESSAGES, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == found.choices[0].finish_reason
    with client.chat.completions.stream(model="chat", messages=MESSAGES) as stream:
        assert stream.get_final_completion().choices[0].message.content == expected


def test_log_probabilities_equal_the_softmax_of_the_logits(client):
    # The logits of the graph are 1 for the next token and 0 for all others.
    expected = 1 - np.log(np.e + 260)
    found = client.completions.create(model="generator", prompt="hello", logprobs=3).choices[0]
    logprobs = found.logprobs
    assert "".join(logprobs.tokens) == found.text
    np.testing.assert_allclose(logprobs.token_logprobs, expected, rtol=1e-5)
    assert logprobs.text_offset == [*range(len(found.text))]  # of this text, as it is ASCII
    for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True):
        assert len(top) == 3
        assert max(top, key=top.get) == token
    parts = client.completions.create(model="generator", prompt="hello", logprobs=3, stream=True)
    streamed = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
    assert [token for each in streamed for token in each.tokens] == logprobs.tokens
    assert [offset for each in streamed for offset in each.text_offset] == logprobs.text_offset
    options = {"model": "chat", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    content = client.chat.completions.create(**options).choices[0].logprobs.content
    assert all(each.top_logprobs[0].token == each.token and len(each.top_logprobs) == 2 for each in content)
    text = client.chat.completions.create(**options).choices[0].message.content
    assert b"".join(bytes(each.bytes) for each in content) == text.encode()


def test_tokens_that_are_parts_of_characters_have_their_bytes(client):
    options = {"model": "copier", "prompt": "né€", "logprobs": 1}
    found = client.completions.create(**options).choices[0]
    tokens = ["n", *(f"bytes:\\x{byte:02x}" for byte in "é€".encode())]
    assert (found.text, found.logprobs.tokens) == ("né€", tokens)
    assert found.logprobs.text_offset == [0, 1, 1, 2, 2, 2]
    parts = [part.choices[0] for part in client.completions.create(**options, stream=True)]
    assert [(part.text, part.logprobs.tokens) for part in parts if part.text] == [
        ("n", tokens[:1]),
        ("é", tokens[1:3]),
        ("€", tokens[3:]),
    ]


def test_samples_depend_on_the_seed(client, exports):
    def texts(**options):
        found = client.completions.create(model="sampler", prompt="a", **options)
        return [choice.text for choice in found.choices]

    assert texts(seed=4, n=3) == texts(seed=4, n=3)
    assert len(set(texts(seed=4, n=8))) > 1
    assert texts(seed=4, n=3, temperature=1) != texts(seed=5, n=3, temperature=1)
    assert texts(n=2, top_p=1, temperature=0) == texts(n=2, top_p=1, temperature=0)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_equal_the_outputs_of_the_pipeline(client, exports, encoding):
    options = {} if encoding is None else {"encoding_format": encoding}
    found = client.embeddings.create(model="embedder", input=PROMPTS, dimensions=3, **options)
    expected = serving.load(exports["embedder"])(PROMPTS)
    vectors = [each.embedding for each in found.data]
    if encoding == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(each), "<f4") for each in vectors]
    np.testing.assert_array_equal(np.float32(vectors), expected)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, PROMPTS))
    short = client.embeddings.create(
        model="embedder", input=PROMPTS, dimensions=2, encoding_format="float"
    ).data
    expected_short = serving.load(exports["embedder"])(PROMPTS, truncate_dim=2)
    assert expected_short.shape == (len(PROMPTS), 2)
    np.testing.assert_array_equal(np.float32([each.embedding for each in short]), expected_short)
    one = client.embeddings.create(model="embedder", input=PROMPTS[0]).data
    np.testing.assert_array_equal(np.float32([one[0].embedding]), expected[:1])


def test_models_are_listed(client):
    assert {model.id for model in client.models.list()} == {*NAMES}
    found = client.models.retrieve("chat")
    assert (found.id, found.object) == ("chat", "model")
    assert found.created > 1.7e9
    with pytest.raises(NotFoundError):
        client.models.retrieve("other")


def test_clients_of_today_read_the_models_unchanged(exports):
    async def test(app):
        _, models = await json_call(app, "GET", "/v1/models")
        _, status = await json_call(app, "GET", "/v1/models/chat")
        return models, status, await json_call(app, "GET", "/v1/models/chat/versions/1")

    with_openai, without = (run(exports, test, apis=apis) for apis in (["openai"], []))
    assert with_openai[2] == without[2]
    added = [{"object", "data"}, {"object", "id", "created", "owned_by"}]
    for found, expected, keys in zip(with_openai[:2], without[:2], added, strict=True):
        assert found.keys() - expected.keys() == keys
        assert {key: found[key] for key in expected} == expected


UNSUPPORTED = "unsupported_parameter"
WRONG = [
    ({"model": "other"}, NotFoundError, "model", "model_not_found", "The model must be"),
    ({"model": "classifier"}, BadRequestError, "model", None, "`model` must be one that generates"),
    ({"prompt": []}, BadRequestError, "prompt", None, "`prompt` must be a string"),
    ({"prompt": [999]}, BadRequestError, "prompt", None, "`prompt` must have ids from 0 to 260"),
    ({"prompt": "x" * 99}, BadRequestError, "prompt", None, "`prompt` must have at most 40 tokens"),
    ({"temperature": 0.7}, BadRequestError, "temperature", UNSUPPORTED, "`temperature` must be 0"),
    ({"n": 2}, BadRequestError, "n", UNSUPPORTED, "`n` must be 1, as the model's graph"),
    ({"best_of": 2}, BadRequestError, "best_of", UNSUPPORTED, "`best_of` must be 1"),
    ({"max_tokens": 0}, BadRequestError, "max_tokens", None, "`max_tokens` must be an integer in [1, 2147483647]"),
    ({"stop": ["a"] * 5}, BadRequestError, "stop", None, "`stop` must be a string, or a list of at most 4"),
    ({"stop": ""}, BadRequestError, "stop", None, "`stop` must be a string"),
    ({"echo": True}, BadRequestError, "echo", UNSUPPORTED, "`echo` must be false"),
    ({"logit_bias": {"5": 1}}, BadRequestError, "logit_bias", UNSUPPORTED, "`logit_bias` must be {}"),
    ({"extra_body": {"top_k": 5}}, BadRequestError, "top_k", "unknown_parameter", "The fields of a request"),
    ({"stream_options": {}}, BadRequestError, "stream_options", None, "`stream_options` must be"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "param", "code", "message"), WRONG, ids=range(len(WRONG)))
def test_options_without_an_input_of_the_graph_are_rejected_by_name(
    client, change, error, param, code, message
):
    with pytest.raises(error) as raised:
        client.completions.create(**{"model": "generator", "prompt": "a", **change})
    assert raised.value.body["message"].startswith(message)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert raised.value.body["type"] == "invalid_request_error"
    assert client.completions.create(model="generator", prompt="a").choices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "generator"}, "`model` must be one with a chat template"),
        ({"messages": []}, "`messages` must be a list of messages"),
        ({"messages": [{"role": "user"}]}, "`messages` must each have a \"content\""),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "`messages[0].content` must be"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "`tools` must be []"),
        ({"response_format": {"type": "json_object"}}, '`response_format` must be {"type": "text"}'),
        ({"top_logprobs": 2}, "`top_logprobs` needs `logprobs` true"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, "`messages` must have at most 40 tokens"),
    ],
)  # fmt: skip
def test_invalid_conversations_are_rejected(client, change, message):
    with pytest.raises(BadRequestError) as raised:
        client.chat.completions.create(**{"model": "chat", "messages": MESSAGES, **change})
    assert raised.value.body["message"].startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "chat"}, "`model` must be one of embeddings"),
        ({"input": [[1, 2]]}, "`input` must be a string or a list of strings"),
        ({"input": ["a", "x" * 99]}, "`text` must have at most 38 tokens"),
        ({"dimensions": 4}, "`dimensions` must be an integer in [1, 3]"),
    ],
)
def test_invalid_inputs_of_embeddings_are_rejected(client, change, message):
    with pytest.raises(BadRequestError) as raised:
        client.embeddings.create(**{"model": "embedder", "input": "a", **change})
    assert raised.value.body["message"].startswith(message)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_streams_end_with_an_error_if_the_engine_fails(num_tokens, exports, monkeypatch, caplog):
    def tokens(engine, source):
        yield from [Token(OFFSET + ord("a"))] * num_tokens
        raise RuntimeError("out of memory")

    async def test(app):
        monkeypatch.setattr(Graphs, "tokens", tokens)
        body = {"model": "generator", "prompt": "hello", "stream": True}
        for path, request in ((COMPLETIONS, body), ("/v1/models/generator:stream", {"text": "hello"})):
            status, _, content = await call(app, "POST", path, request)
            assert status == 200
            *_, error = [line for line in content.decode().splitlines() if '"error"' in line]
            assert "The log of the server has the error" in error
            assert "RuntimeError: out of memory" in caplog.text
            caplog.clear()

    run(exports, test, "generator")


def test_streams_end_with_an_error_at_the_time_limit(exports, monkeypatch):
    import time

    next_logits = serving.Graphs.next_logits

    seconds = 0.1

    def slow(self, *arguments):
        step = next_logits(self, *arguments)
        return lambda token: time.sleep(seconds) or step(token)

    with listening(create_app({"generator": exports["generator"]}, Limits(timeout=0.25))) as address:
        monkeypatch.setattr(serving.Graphs, "next_logits", slow)
        with new_client(address) as client:
            options = {"model": "generator", "prompt": "abd"}
            begin = time.monotonic()
            assert list(client.completions.create(**options, stream=True))  # goes on
            assert time.monotonic() - begin > 0.25
            with pytest.raises(
                openai.InternalServerError, match="The request must be computed within 0.25 s"
            ):
                client.completions.create(**options, logprobs=1)
            seconds = 0.5
            stream = client.completions.create(**options, stream=True)
            with pytest.raises(
                openai.APIError, match="Each part of the stream must be computed within 0.25 s"
            ):
                list(stream)


def test_a_client_that_does_not_read_is_disconnected_while_others_are_served(exports):
    async def test(app):
        body = {"model": "generator", "prompt": "hello", "stream": True}
        for path, request in ((COMPLETIONS, body), ("/v1/models/generator:stream", {"text": "hello"})):
            never = asyncio.Event()
            waiting = [asyncio.create_task(call(app, "POST", path, request, reads=never)) for _ in range(2)]
            while app.state.server.active < 2:
                await asyncio.sleep(0.005)
            assert (await predict(app, "generator", ["a"]))[0] == 200
            status, headers, _ = await call(app, "POST", path, request)  # streams are limited
            assert (status, "retry-after" in headers) == (429, True)
            assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [(None, {}, b"")] * 2
            assert app.state.server.active == 0
            assert (await call(app, "POST", path, request))[0] == 200

    run(exports, test, "generator", limits=Limits(timeout=0.3, max_streams=2))


def test_a_protocol_that_is_switched_off_has_no_routes(exports):
    async def test(app):
        status, found = await json_call(app, "POST", COMPLETIONS, {"model": "generator", "prompt": "a"})
        assert status == 404
        assert "/openapi.json" in found["error"]
        _, document = await json_call(app, "GET", "/openapi.json")
        assert COMPLETIONS not in document["paths"]
        assert (await predict(app, "generator", ["a"]))[0] == 200

    run(exports, test, "generator", apis=())
    with pytest.raises(ValueError, match="`apis` must be of .*openai.* Received: soap"):
        create_app(exports, apis=["soap"])


def test_routes_are_described_for_the_models_that_answer_them(exports):
    async def test(app):
        _, document = await json_call(app, "GET", "/openapi.json")
        expected = {
            COMPLETIONS: {"generator", "chat", "sampler", "copier"},
            CHAT: {"chat"},
            EMBEDDINGS: {"embedder", "text-embeddings-inference"},
        }
        for path, names in expected.items():
            content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            assert {*content["schema"]["properties"]["model"]["enum"]} == names
        text = json.dumps(document)
        references = {each.split('"')[0] for each in text.split('"#/components/schemas/')[1:]}
        assert references <= document["components"]["schemas"].keys()

    run(exports, test)
