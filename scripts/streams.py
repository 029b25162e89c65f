#!/usr/bin/env python3
"""A small model server and its clients, for the scenario "tokens" of scripts/bench.

    streams.py serve PORT                    answers each request with a stream of events, each in a segment of its own
    streams.py load PORT PATH COUNT EVENTS   reads COUNT streams side by side, each of EVENTS events, and prints the events
    streams.py hold PORT PATH COUNT          opens COUNT streams that go on until this program is ended, and says when all have begun
"""

import asyncio, json, sys

PIECE = "The quick brown fox jumps over the lazy dog."


def event(data):
    text = data if isinstance(data, str) else json.dumps(data)
    payload = f"data: {text}\n\n".encode()
    return f"{len(payload):x}\r\n".encode() + payload + b"\r\n"


def chunk(choices, usage=None):
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, "usage": usage}


async def answer(reader, writer):
    piece = event(chunk([{"index": 0, "delta": {"content": PIECE}, "finish_reason": None}]))
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            request = json.loads(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(request["events"]):
                writer.write(piece)
                await writer.drain()
                # Another stream has its turn, so that no two events are in one segment.
                await asyncio.sleep(0)
            if request.get("hold"):
                await reader.read()
                return
            tokens = request["events"] * 10
            writer.write(event(chunk([], {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10})))
            writer.write(event("[DONE]") + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def request(port, path, events, hold):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 100,
                       "messages": [{"role": "user", "content": PIECE}], "events": events, "hold": hold}).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                 f"content-length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


async def read(port, path, events):
    reader, writer = await request(port, path, events, False)
    seen = 0
    while not (piece := await reader.read(65536)).endswith(b"0\r\n\r\n"):
        assert piece, "the stream has broken off"
        seen += piece.count(b"data: {")
    writer.close()
    return seen + piece.count(b"data: {")


async def serve(port):
    async with await asyncio.start_server(answer, "127.0.0.1", int(port), backlog=4096) as server:
        await server.serve_forever()


async def load(port, path, count, events):
    print(sum(await asyncio.gather(*(read(port, path, int(events)) for _ in range(int(count))))))


async def hold(port, path, count):
    streams = [await request(port, path, 10, True) for _ in range(int(count))]
    for reader, _ in streams:
        seen = 0
        while seen < 10:
            seen += (await reader.readuntil(b"\n\n")).count(b"data: ")
    print("all have begun", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"serve": serve, "load": load, "hold": hold}[sys.argv[1]](*sys.argv[2:]))
