// Calls tools by the Model Context Protocol. call URL TOOL...: in this order. Prints what came back.

const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");

async function call(url, tools) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const results = [];
  for (const name of tools) {
    try {
      const result = await client.callTool({ name, arguments: { a: 2, b: 3 } });
      results.push(result.content[0].text);
    } catch (refused) {
      results.push({ code: refused.code, message: refused.message });
    }
  }
  await client.close();
  console.log(JSON.stringify(results));
}

call(process.argv[3], process.argv.slice(4));
