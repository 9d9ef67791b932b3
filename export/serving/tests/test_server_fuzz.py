"""Arbitrary requests to all protocols get a response or a 4xx, and the server keeps running."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served_exports import calling, write_export

from keras_transformer_serving.server import Limits, create_app

NAMES = ("classifier", "generator", "copier", "chat", "embedder", "reranker")
PATHS = [
    *(
        path.format(name)
        for name in NAMES[:3]
        for path in ("/v1/models/{}:predict", "/v2/models/{}/infer", "/v1/models/{}:stream")
    ),
    *("/v1/completions", "/v1/chat/completions", "/v1/embeddings"),
    *("/embed", "/embed_all", "/predict", "/rerank", "/similarity", "/tokenize", "/decode"),
    *("/translate", "/translate_file", "/detect", "/v2/repository/index"),
]
TEXT = st.text(st.characters(exclude_categories=()), max_size=50)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**31, 2**63, -1, 1e308]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=12,
)
BASE64 = st.one_of(VALUES, st.sampled_from(["", "/w==", "YQ=="]))
INPUT = st.one_of(TEXT, VALUES, st.fixed_dictionaries({"b64": BASE64}))
MARKED = st.lists(
    st.one_of(st.sampled_from(["<b>", "</b>", "<p>", "<!--", "{x}", "%s", "&lt;", "a b", "<"]), TEXT)
)
TAG_HANDLING = st.one_of(st.sampled_from(["html", "placeholders"]), INPUT)
PLACEHOLDERS = st.one_of(st.lists(st.sampled_from(["url", "printf", "colon"])), INPUT)
GLOSSARY = st.one_of(st.dictionaries(TEXT, TEXT, max_size=3), INPUT)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("text_pair", "target", "input_ids", "max_new_tokens", "min_new_tokens", "top_p"), INPUT
        ),
        "text": st.one_of(MARKED.map("".join), INPUT),
        "tag_handling": TAG_HANDLING,
        "placeholders": PLACEHOLDERS,
        "glossary": GLOSSARY,
        "glossary_mode": st.one_of(st.sampled_from(["hard", "soft"]), INPUT),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {"text": MARKED.map("".join)},
    optional={"tag_handling": TAG_HANDLING, "placeholders": PLACEHOLDERS, "glossary": GLOSSARY},
)
NAMED = [
    "serving_default",
    "generate",
    "generate_ids",
    "encode",
    "score",
    "attributions",
    "forward",
    "classify_pairs",
]
SIGNATURES = st.one_of(st.sampled_from(NAMED), VALUES)
COLUMNS = st.dictionaries(
    st.sampled_from(["text", "target", "input_ids", "max_new_tokens"]), st.lists(INPUT, max_size=3)
)
PREDICT = st.fixed_dictionaries(
    {},
    optional={
        "instances": st.one_of(
            st.lists(st.one_of(INPUT, INPUTS), max_size=4), st.lists(DOCUMENTS, max_size=1), VALUES
        ),
        "inputs": st.one_of(COLUMNS, VALUES),
        "signature_name": SIGNATURES,
    },
)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.sampled_from(["text", "input_ids", "attention_mask", "max_new_tokens"]), VALUES),
        "shape": st.one_of(st.lists(st.integers(-1, 4) | st.integers(), max_size=3), VALUES),
        "datatype": st.one_of(st.sampled_from(["BYTES", "INT64", "INT32", "FP32"]), VALUES),
        "data": st.one_of(st.lists(st.one_of(TEXT, st.integers(0, 300), VALUES), max_size=4), VALUES),
    },
)
INFER = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.one_of(st.lists(TENSOR, max_size=3), VALUES),
        "parameters": st.one_of(st.fixed_dictionaries({"signature_name": SIGNATURES}), VALUES),
        "outputs": st.one_of(st.lists(st.fixed_dictionaries({"name": VALUES}), max_size=2), VALUES),
        "id": VALUES,
    },
)
STREAM = st.fixed_dictionaries({}, optional={"text": INPUT, "max_new_tokens": VALUES})
TEXTS = st.one_of(TEXT, st.lists(TEXT, max_size=3), VALUES)
MESSAGES = st.lists(st.fixed_dictionaries({}, optional={"role": TEXT, "content": TEXTS}), max_size=3)
OPENAI = st.fixed_dictionaries(
    {"model": st.sampled_from(["generator", "copier", "chat", "embedder"])},
    optional={
        "prompt": st.one_of(TEXTS, st.lists(st.integers(0, 300), max_size=4)),
        "messages": st.one_of(MESSAGES, VALUES),
        "input": TEXTS,
        "stop": TEXTS,
        "max_tokens": st.one_of(st.integers(0, 13), VALUES),
        "logprobs": st.one_of(st.booleans(), st.integers(-1, 6), VALUES),
        "stream": st.one_of(st.booleans(), VALUES),
        "temperature": st.one_of(st.integers(0, 1), VALUES),
        "encoding_format": VALUES,
    },
)
TEI = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.one_of(
            TEXTS, st.fixed_dictionaries({}, optional={"source_sentence": TEXTS, "sentences": TEXTS})
        ),
        "query": TEXTS,
        "texts": TEXTS,
        "truncate": st.one_of(st.booleans(), VALUES),
        "prompt_name": st.one_of(st.just("query"), VALUES),
        "model": st.one_of(st.sampled_from(["embedder", "reranker"]), VALUES),
    },
)
LANGUAGE = st.one_of(st.sampled_from(["de", "en"]), VALUES)
LIBRE_TRANSLATE = st.fixed_dictionaries(
    {"source": LANGUAGE, "target": LANGUAGE},
    optional={
        "q": TEXTS,
        "format": st.one_of(st.sampled_from(["text", "html"]), VALUES),
        "alternatives": VALUES,
    },
)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.one_of(PREDICT, INFER, STREAM, OPENAI, TEI, LIBRE_TRANSLATE, VALUES).map(
        lambda value: json.dumps(value).encode()
    ),
)
CONTENT_TYPES = st.sampled_from(
    [
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "multipart/form-data; boundary=\x00",
    ]
)


@pytest.fixture(scope="module")
def answer(small, tmp_path_factory):
    """Call a server in one event loop for all requests."""
    folder = tmp_path_factory.mktemp("fuzz")
    exports = {name: write_export(small, folder / name, name) for name in NAMES}
    exports["de-en"] = exports["copier"]
    with calling(create_app(exports, Limits(timeout=5))) as answer:
        yield answer


def check(answer, path, body, kind):
    status, headers, content = answer(path, body, [("Content-Type", kind)])
    assert status == 200 or 400 <= status < 500, content
    if headers["content-type"] == "application/json":
        found = json.loads(content)
        assert {*found} - {"error_type"} == {"error"} if status != 200 else "error" not in found
        assert "Traceback" not in content.decode()


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), BODIES, CONTENT_TYPES)
def test_arbitrary_requests_do_not_crash_the_server(answer, path, body, kind):
    check(answer, path, body, kind)


@pytest.mark.slow
@settings(max_examples=100_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PATHS), BODIES, CONTENT_TYPES)
def test_100000_arbitrary_requests_do_not_crash_the_server(answer, path, body, kind):
    check(answer, path, body, kind)
