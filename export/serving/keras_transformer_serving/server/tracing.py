"""OpenTelemetry traces of requests; needs the extra `tracing`."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

_TRACER: contextvars.ContextVar[Any] = contextvars.ContextVar("tracer", default=None)


def new_tracer(endpoint: str) -> tuple[Any, Any]:
    """Return a tracer whose spans are sent to a collector by OTLP over HTTP, and its provider, to be shut down.

    Args:
        endpoint: the address of the collector, such as "http://localhost:4318/v1/traces".
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ImportError(
            "traces need OpenTelemetry, the extra [tracing]: pip install opentelemetry-sdk "
            f"opentelemetry-exporter-otlp-proto-http. Received: {error}"
        ) from error
    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: "keras-transformer-serve"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider.get_tracer("keras_transformer_serving"), provider


@contextlib.contextmanager
def request_span(
    tracer: Any, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]
) -> Iterator[Any]:
    """Trace a request in the block, as part of the trace that its headers name; the value is its span, or None.

    Args:
        tracer: an OpenTelemetry tracer; None for no trace.
        name: the name of the span.
        headers: the headers of the request.
        attributes: the attributes of the span.
    """
    if tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract(headers)
    token = _TRACER.set(tracer)
    try:
        with tracer.start_as_current_span(
            name, parent, kind=SpanKind.SERVER, attributes=dict(attributes)
        ) as started:
            yield started
    finally:
        _TRACER.reset(token)


def span(name: str) -> contextlib.AbstractContextManager[Any]:
    """Trace a part of the request in a block."""
    tracer = _TRACER.get()
    return contextlib.nullcontext() if tracer is None else tracer.start_as_current_span(name)


def started_span(name: str) -> Any:
    """Return a span of a part of the request that ends later, by its `end`; None without traces."""
    tracer = _TRACER.get()
    return None if tracer is None else tracer.start_span(name)
