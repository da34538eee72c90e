// SPDX-License-Identifier: Apache-2.0

// A WebSocket peer of npm's `ws`: `node peer.mjs FOLDER server`, which prints its
// port and echoes, or `node peer.mjs FOLDER client URL`, which prints "ok" or what is
// wrong. FOLDER is where `ws` is installed. Both compress, and ping each other.
import { createRequire } from "node:module";
import { randomBytes } from "node:crypto";
import { resolve as absolute } from "node:path";

const [folder, role, url] = process.argv.slice(2);
const { WebSocket, WebSocketServer } = createRequire(absolute(folder) + "/")("ws");
const deflate = { threshold: 0, serverMaxWindowBits: 12, clientMaxWindowBits: 12 };

const ponged = (ws, payload) =>
  new Promise((resolve) => {
    const look = (got) => {
      if (got.equals(payload)) resolve(ws.off("pong", look));
    };
    ws.on("pong", look);
    ws.ping(payload);
  });

if (role === "server") {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1", perMessageDeflate: deflate });
  server.on("listening", () => console.log(server.address().port));
  server.on("connection", (ws) => {
    ws.on("message", (data, binary) => ws.send(data, { binary }));
    ws.on("close", (code, reason) => console.log(`closed ${code} ${reason}`));
    const timer = setInterval(() => ws.ping(randomBytes(5)), 5);
    ws.on("close", () => clearInterval(timer));
  });
} else {
  const ws = new WebSocket(url, { perMessageDeflate: deflate });
  const message = () => new Promise((resolve) => ws.once("message", (data, binary) => resolve([data, binary])));
  const check = (what, ok) => {
    if (!ok) throw new Error(what);
  };
  await new Promise((resolve, reject) => ws.on("open", resolve).on("error", reject));
  check("extensions " + ws.extensions, ws.extensions.startsWith("permessage-deflate"));
  for (const size of [0, 1, 125, 126, 4096, 65535, 65536, 70000, 1 << 20, 4 << 20]) {
    for (const text of [true, false]) {
      const sent = text ? Buffer.from("é".repeat(size / 2)) : randomBytes(size);
      const answer = message();
      ws.send(sent, { binary: !text });
      await ponged(ws, randomBytes(size % 126));
      const [got, binary] = await answer;
      check(`size ${size} text ${text}`, got.equals(sent) && binary === !text);
    }
  }
  const parts = [randomBytes(10), randomBytes(100_000), randomBytes(0), randomBytes(3)];
  const whole = message();
  for (const [i, part] of parts.entries()) {
    ws.send(part, { binary: true, fin: i === parts.length - 1 });
    await ponged(ws, Buffer.from("between"));
  }
  check("fragments", (await whole)[0].equals(Buffer.concat(parts)));
  const closed = new Promise((resolve) => ws.on("close", (code, reason) => resolve(`${code} ${reason}`)));
  ws.close(4002, "bye");
  check("close", (await closed).startsWith("4002")); // gorilla answers without the reason
  console.log("ok");
}
