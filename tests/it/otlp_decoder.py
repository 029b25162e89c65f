"""Decodes OTLP with the messages that OpenTelemetry publishes.

Reads lines of hexadecimal digits, each an ExportTraceServiceRequest, and prints all of their spans as JSON.
"""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(element) for element in any_value.array_value.values]
    return getattr(any_value, kind)


def attributes(pairs):
    read = {pair.key: value(pair.value) for pair in pairs}
    assert len(read) == len(pairs), "an attribute is there twice"
    return read


def known(message):
    """Fails if the message, or one in it, has a field that its type does not have."""
    assert not list(UnknownFieldSet(message)), f"unknown fields in {message.DESCRIPTOR.full_name}"
    for field, content in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in content if field.is_repeated else [content]:
                known(part)


def spans(request):
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield {
                    "resource": attributes(of_resource.resource.attributes),
                    "scope": of_scope.scope.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "name": span.name,
                    "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    "begun": span.start_time_unix_nano,
                    "ended": span.end_time_unix_nano,
                    "attributes": attributes(span.attributes),
                    "status": Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_").lower(),
                    "flags": span.flags,
                }


def decoded():
    for line in sys.stdin:
        request = ExportTraceServiceRequest.FromString(bytes.fromhex(line))
        known(request)
        yield from spans(request)


print(json.dumps(list(decoded())))
