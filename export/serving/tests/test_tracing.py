"""OpenTelemetry traces of requests."""

import http.server
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served_exports import PREDICT, call, json_call, predict, run

from keras_transformer_serving.server import tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans():
    """A tracer, and the finished spans by name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("test"), lambda: {span.name: span for span in exporter.get_finished_spans()}
    provider.shutdown()


def test_a_request_is_a_span_of_the_trace_of_its_client(exports, spans):
    tracer, found = spans

    async def test(app):
        headers = [("traceparent", f"00-{TRACE}-{PARENT}-01")]
        body = {"instances": ["a"]}
        assert (await call(app, "POST", PREDICT.format("classifier"), body, headers))[0] == 200

    run(exports, test, "classifier", tracer=tracer)
    whole = found().pop("POST /v1/models/{name}:predict")
    assert (whole.context.trace_id, whole.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert whole.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/models/{name}:predict",
        "http.response.status_code": 200,
        "keras_transformer.protocol": "tensorflow_serving",
        "keras_transformer.model": "classifier",
    }
    for name in ("parse", "tokenize", "wait and compute"):
        part = found()[name]
        assert part.parent.span_id == whole.context.span_id
        assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time


def test_errors_and_streams_are_traced(exports, spans):
    tracer, found = spans

    async def test(app):
        await predict(app, "other", ["a"])
        await call(app, "POST", "/v1/models/generator:stream", {"text": "a"})

    run(exports, test, "generator", tracer=tracer)
    assert found()["POST /v1/models/{name}:predict"].attributes["http.response.status_code"] == 404
    assert found()["stream"].parent.span_id == found()["POST /v1/models/{name}:stream"].context.span_id


def test_spans_are_sent_to_a_collector(exports):
    received = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(content))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        tracer, provider = tracing.new_tracer(f"http://127.0.0.1:{collector.server_port}/v1/traces")

        async def test(app):
            await json_call(app, "GET", "/v1/models")

        run(exports, test, "classifier", tracer=tracer)
        provider.shutdown()
        collector.shutdown()
    (resource,) = received[0].resource_spans
    assert [span.name for span in resource.scope_spans[0].spans] == ["GET /v1/models"]
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes["service.name"] == "keras-transformer-serve"
