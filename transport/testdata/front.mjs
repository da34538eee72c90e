// SPDX-License-Identifier: Apache-2.0

// A reverse proxy of Node's own servers, HTTP/2 and HTTP/1.1 on one port:
// node front.mjs PORT BACKEND-PORT CERTIFICATE KEY
// It keeps no connections to the backend: Node's agent hands out ones that the
// backend has just closed.
import { readFileSync } from "node:fs";
import { request } from "node:http";
import { createSecureServer } from "node:http2";

const [port, backend, cert, key] = process.argv.slice(2);
const connection = new Set(["connection", "keep-alive", "transfer-encoding", "upgrade", "te"]);
const endToEnd = (h) => Object.fromEntries(Object.entries(h).filter(([k]) => !k.startsWith(":") && !connection.has(k)));

createSecureServer({ allowHTTP1: true, cert: readFileSync(cert), key: readFileSync(key) }, (req, res) => {
  const onward = request({ agent: false, host: "127.0.0.1", port: backend, method: req.method, path: req.url, headers: endToEnd(req.headers) });
  onward.on("response", (answer) => {
    res.writeHead(answer.statusCode, endToEnd(answer.headers));
    res.flushHeaders();
    answer.pipe(res);
    answer.on("error", () => (res.stream ? res.stream.close(2) : res.destroy())); // INTERNAL_ERROR
  });
  onward.on("error", () => {
    if (!res.headersSent) res.writeHead(502).end();
    else if (res.stream) res.stream.close(2);
    else res.destroy();
  });
  req.pipe(onward);
  res.on("close", () => onward.destroy());
}).listen(Number(port), "127.0.0.1");
