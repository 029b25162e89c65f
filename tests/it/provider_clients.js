// The same calls as those of provider_clients.py, with the libraries for JavaScript.

const [, , name, address, retries, ...kinds] = process.argv;
const exchanges = [];

async function recording(url, init) {
  const exchange = { sent: performance.now() / 1000 };
  exchanges.push(exchange);
  const response = await fetch(url, init);
  exchange.received = performance.now() / 1000;
  exchange.status = response.status;
  exchange.headers = Object.fromEntries(response.headers);
  return response;
}

const options = { apiKey: process.env.API_KEY ?? "secret", maxRetries: Number(retries), fetch: recording };

async function openai(library, kind, pieces) {
  const client = new library({ baseURL: `http://${address}/v1`, ...options });
  const request = { model: "gpt-4o", messages: [{ role: "user", content: "Say hello." }] };
  if (kind === "create") {
    const completion = await client.chat.completions.create(request);
    pieces.push(completion.choices[0].message.content);
    return completion.usage.completion_tokens;
  }
  let used = null;
  if (kind === "responses") {
    for await (const event of await client.responses.create({ model: "gpt-4o", input: "Say hello.", stream: true })) {
      if (event.type === "response.output_text.delta") pieces.push(event.delta);
      used = event.response?.usage?.output_tokens ?? used;
    }
    return used;
  }
  const asked = kind === "usage" ? { stream_options: { include_usage: true } } : {};
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true, ...asked })) {
    // Without being asked for, no chunk without choices comes.
    if (chunk.choices.length || kind !== "usage") pieces.push(chunk.choices[0].delta.content ?? "");
    used = chunk.usage?.completion_tokens ?? used;
  }
  return used;
}

async function anthropic(library, kind, pieces) {
  const client = new library({ baseURL: `http://${address}`, ...options });
  const request = { model: "claude", max_tokens: 5, messages: [{ role: "user", content: "Say hello." }] };
  if (kind === "create") {
    const message = await client.messages.create(request);
    pieces.push(message.content[0].text);
    return message.usage.output_tokens;
  }
  const stream = client.messages.stream(request);
  stream.on("text", (piece) => pieces.push(piece));
  return (await stream.finalMessage()).usage.output_tokens;
}

async function main() {
  const library = require(name === "openai" ? "openai" : "@anthropic-ai/sdk");
  const call = { openai, anthropic }[name];
  const results = [];
  for (const kind of kinds) {
    const pieces = [];
    const result = {};
    try {
      result.used = await call(library, kind, pieces);
    } catch (error) {
      if (!(error instanceof library.APIError)) throw error;
      // The Anthropic library has the whole body here, that of OpenAI what it says of the error.
      result.error = { class: error.constructor.name, body: error.error };
    }
    results.push({ ...result, text: pieces.join("") });
  }
  console.log(JSON.stringify({ results, exchanges }));
}

main();
