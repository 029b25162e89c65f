// The same server and client of gRPC as grpc_peer.py, with another implementation.

const grpc = require("@grpc/grpc-js");

const same = (bytes) => bytes;
const kinds = {
  Unary: [false, false],
  Fail: [false, false],
  Late: [false, true],
  ClientStream: [true, false],
  ServerStream: [false, true],
  Bidirectional: [true, true],
};
const methods = Object.fromEntries(Object.entries(kinds).map(([name, [requestStream, responseStream]]) => [name, {
  path: `/test.Echo/${name}`, requestStream, responseStream,
  requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same,
}]));

function serve() {
  const server = new grpc.Server();
  server.addService(methods, {
    Unary(call, reply) {
      const initial = new grpc.Metadata();
      initial.set("x-initial", call.metadata.get("x-sent")[0] ?? "");
      call.sendMetadata(initial);
      const trailing = new grpc.Metadata();
      trailing.set("x-trailing", "end");
      trailing.set("x-bytes-bin", Buffer.from([0, 0xff]));
      reply(null, Buffer.concat([call.request, Buffer.from("!")]), trailing);
    },
    Fail: (_, reply) => reply({ code: grpc.status.NOT_FOUND, details: "no such é%" }),
    Late(call) {
      call.write(Buffer.from("first"));
      call.on("cancelled", () => console.log("cancelled"));
    },
    ClientStream(call, reply) {
      const received = [];
      call.on("data", (message) => received.push(message.toString()));
      call.on("end", () => reply(null, Buffer.from(received.join(","))));
    },
    ServerStream(call) {
      for (let index = 0; index < Number(call.request.toString()); index += 1) call.write(Buffer.from(String(index)));
      call.end();
    },
    Bidirectional(call) {
      call.on("data", (message) => call.write(Buffer.from(`${message}!`)));
      call.on("end", () => call.end());
    },
  });
  server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, port) => {
    if (error) throw error;
    console.log(port);
  });
}

function call(address, method, count, seconds) {
  const client = new grpc.Client(address, grpc.credentials.createInsecure());
  const [requestStream, responseStream] = kinds[method];
  const metadata = new grpc.Metadata();
  metadata.set("x-sent", "value");
  const messages = [];
  let initial = {};
  const one = Buffer.from(responseStream ? String(count) : "hello");
  const common = [methods[method].path, same, same];
  const options = [metadata, { deadline: Date.now() + seconds * 1000 }];
  const keep = (_, message) => message && messages.push(message.toString());
  const made = requestStream
    ? (responseStream ? client.makeBidiStreamRequest(...common, ...options)
      : client.makeClientStreamRequest(...common, ...options, keep))
    : (responseStream ? client.makeServerStreamRequest(...common, one, ...options)
      : client.makeUnaryRequest(...common, one, ...options, keep));
  let sent = 0;
  // The next message is sent when the answer to the one before has come.
  const next = () => {
    if (sent === count) made.end();
    else made.write(Buffer.from(`m${sent++}`));
  };
  if (responseStream) {
    made.on("data", (message) => {
      messages.push(message.toString());
      if (requestStream) next();
    });
    // The status says the same.
    made.on("error", () => {});
  }
  if (requestStream && responseStream) next();
  else if (requestStream) while (sent <= count && !made.writableEnded) next();
  made.on("metadata", (metadata) => (initial = metadata.getMap()));
  made.on("status", (status) => {
    const entries = Object.entries(status.metadata.getMap());
    const text = (value) => (Buffer.isBuffer(value) ? value.toString("latin1") : value);
    const trailing = Object.fromEntries(entries.map(([key, value]) => [key, text(value)]));
    const code = grpc.status[status.code];
    console.log(JSON.stringify({ code, details: status.details, messages, initial, trailing }));
    client.close();
  });
}

const [, , mode, address, method, count, seconds] = process.argv;
if (mode === "serve") serve();
else call(address, method, Number(count), Number(seconds ?? 20));
