"""Calls the rate limit service at an address, with the messages of envoy-data-plane, and checks what it answers."""

import sys

import grpc
from envoy_data_plane.envoy.extensions.common.ratelimit import v3 as common
from envoy_data_plane.envoy.service.ratelimit import v3 as service

OK, OVER_LIMIT = service.RateLimitResponseCode.OK, service.RateLimitResponseCode.OVER_LIMIT

channel = grpc.insecure_channel(sys.argv[1])
call = channel.unary_unary(
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    request_serializer=bytes,
    response_deserializer=service.RateLimitResponse.parse,
)


def ask(domain="edge", hits=0, **entries):
    entries = [common.RateLimitDescriptorEntry(key=key, value=value) for key, value in entries.items()]
    other = common.RateLimitDescriptor(entries=[common.RateLimitDescriptorEntry(key="other", value="x")])
    descriptors = [common.RateLimitDescriptor(entries=entries, hits_addend=hits or None), other]
    return call(service.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=2))


def headers(answer):
    return {line.key: line.value for line in answer.response_headers_to_add}


answer = ask(masked_remote_address="192.0.2.1/32", path="/")
assert answer.overall_code == OK, answer
first, second = answer.statuses
assert (first.code, first.limit_remaining) == (OK, 1), "hits_addend of the call is charged: " + repr(answer)
assert (first.current_limit.name, first.current_limit.requests_per_unit) == ("per-client", 3), answer
assert first.current_limit.unit == service.RateLimitResponseRateLimitUnit.MINUTE, answer
assert (second.code, second.current_limit) == (OK, None), "nothing limits it: " + repr(answer)
assert headers(answer)["ratelimit"].startswith('"per-client";r=1'), answer

answer = ask(masked_remote_address="192.0.2.1/32", path="/")
assert (answer.overall_code, answer.statuses[0].code, answer.statuses[1].code) == (OVER_LIMIT, OVER_LIMIT, OK), answer
assert answer.statuses[0].duration_until_reset.total_seconds() > 0, answer
assert int(headers(answer)["retry-after"]) > 0 and b"3/m" in answer.raw_body, answer

answer = ask(masked_remote_address="192.0.2.1/32", path="/", hits=1)
assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 0), "the descriptor's own hits: " + repr(answer)

try:
    ask(domain="", masked_remote_address="192.0.2.1/32")
    raise AssertionError("a call without a domain was answered")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert error.details() == "The domain is empty.", error
