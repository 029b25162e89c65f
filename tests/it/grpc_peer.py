"""A server and a client of gRPC, whose messages are plain bytes.

serve: prints its port, then answers calls until it is killed.
call ADDRESS METHOD COUNT [TIMEOUT]: sends COUNT messages, and prints what comes back as JSON.
"""

import json
import sys
import time
from concurrent import futures

import grpc


def unary(request, context):
    # Metadata passes in both directions.
    received = dict(context.invocation_metadata())
    context.send_initial_metadata((("x-initial", received.get("x-sent", "")),))
    context.set_trailing_metadata((("x-trailing", "end"), ("x-bytes-bin", b"\x00\xff")))
    return request + b"!"


def fail(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "no such é%")


def late(request, context):
    yield b"first"
    while context.is_active():
        time.sleep(0.02)
    print("cancelled", flush=True)


def client_stream(requests, context):
    return b",".join(requests)


def server_stream(request, context):
    for index in range(int(request)):
        yield b"%d" % index


def bidirectional(requests, context):
    for request in requests:
        yield request + b"!"


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Late": grpc.unary_stream_rpc_method_handler(late),
        "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "Bidirectional": grpc.stream_stream_rpc_method_handler(bidirectional),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def messages(count):
    for index in range(count):
        yield b"m%d" % index


def call(address, method, count, timeout):
    path = f"/test.Echo/{method}"
    received = []
    with grpc.insecure_channel(address) as channel:
        options = {"timeout": timeout, "metadata": (("x-sent", "value"),)}
        if method == "ClientStream":
            outcome = channel.stream_unary(path).future(messages(count), **options)
            calls = lambda: received.append(outcome.result())
        elif method == "Bidirectional":
            # The next message is sent when the answer to the one before has come.
            sent = []
            def one_by_one():
                for message in messages(count):
                    while len(received) < len(sent):
                        time.sleep(0.001)
                    sent.append(message)
                    yield message
            outcome = channel.stream_stream(path)(one_by_one(), **options)
            calls = lambda: received.extend(iter_into(outcome, received))
        elif method in ("ServerStream", "Late"):
            outcome = channel.unary_stream(path)(b"%d" % count, **options)
            calls = lambda: received.extend(iter_into(outcome, received))
        else:
            outcome = channel.unary_unary(path).future(b"hello", **options)
            calls = lambda: received.append(outcome.result())
        try:
            calls()
        except grpc.RpcError:
            pass
        trailing = {key: value.decode("latin-1") if isinstance(value, bytes) else value for key, value in outcome.trailing_metadata() or ()}
        initial = dict(outcome.initial_metadata() or ())
    print(json.dumps({
        "code": outcome.code().name,
        "details": outcome.details(),
        "messages": [message.decode() for message in received],
        "initial": initial,
        "trailing": trailing,
    }))


def iter_into(outcome, received):
    for message in outcome:
        received.append(message)
    return []


if sys.argv[1] == "serve":
    serve()
else:
    call(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]) if len(sys.argv) > 5 else 20)
