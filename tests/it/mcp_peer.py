"""A server of tools by the Model Context Protocol, and calls of them.

serve: listens on a free port, prints it, and serves. call URL TOOL...: calls these tools in order, and prints what came back.
"""

import asyncio
import json
import socket
import sys


def serve():
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("tools")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    def multiply(a: int, b: int) -> int:
        """Multiplies two numbers."""
        return a * b

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    uvicorn.Server(config).run(sockets=[listener])


async def call(url, tools):
    from mcp import Client, MCPError

    results = []
    async with Client(url) as client:
        for tool in tools:
            try:
                result = await client.call_tool(tool, {"a": 2, "b": 3})
                results.append(result.content[0].text)
            except MCPError as refused:
                results.append({"code": refused.error.code, "message": refused.error.message})
    print(json.dumps(results))


if sys.argv[1] == "serve":
    serve()
else:
    asyncio.run(call(sys.argv[2], sys.argv[3:]))
