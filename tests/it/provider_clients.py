"""Calls of a language model with the library of its provider.

openai|anthropic ADDRESS RETRIES KIND...: calls once for each kind (create, stream, usage, responses), and prints as JSON what
the calls have returned or raised, and what was sent and received.
"""

import importlib
import json
import os
import sys
import time

name, address, retries, *kinds = sys.argv[1:]
library = importlib.import_module(name)
exchanges = []


def sent(request):
    exchanges.append({"sent": time.monotonic()})


def received(response):
    headers = {key.lower(): value for key, value in response.headers.items()}
    exchanges[-1] |= {"received": time.monotonic(), "status": response.status_code, "headers": headers}


def openai(kind, pieces):
    client = library.OpenAI(base_url=f"http://{address}/v1", **options)
    request = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hello."}]}
    if kind == "create":
        completion = client.chat.completions.create(**request)
        pieces.append(completion.choices[0].message.content)
        return completion.usage.completion_tokens
    if kind == "responses":
        for event in client.responses.create(model="gpt-4o", input="Say hello.", stream=True):
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
        return event.response.usage.output_tokens
    asked = {"stream_options": {"include_usage": True}} if kind == "usage" else {}
    used = None
    for chunk in client.chat.completions.create(**request, stream=True, **asked):
        # Without being asked for, no chunk without choices comes.
        pieces.append(chunk.choices[0].delta.content or "" if chunk.choices or not asked else "")
        used = chunk.usage.completion_tokens if chunk.usage else used
    return used


def anthropic(kind, pieces):
    client = library.Anthropic(base_url=f"http://{address}", **options)
    request = {"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": "Say hello."}]}
    if kind == "create":
        message = client.messages.create(**request)
        pieces.append(message.content[0].text)
        return message.usage.output_tokens
    with client.messages.stream(**request) as stream:
        pieces.extend(stream.text_stream)
        return stream.get_final_message().usage.output_tokens


http_client = library.DefaultHttpxClient(event_hooks={"request": [sent], "response": [received]})
options = {"api_key": os.environ.get("API_KEY", "secret"), "max_retries": int(retries), "http_client": http_client}
results = []
for kind in kinds:
    pieces = []
    result = {}
    try:
        result["used"] = globals()[name](kind, pieces)
    except library.APIError as error:
        result["error"] = {"class": type(error).__name__, "body": error.body}
    results.append(result | {"text": "".join(pieces)})
print(json.dumps({"results": results, "exchanges": exchanges}))
