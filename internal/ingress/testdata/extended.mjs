// SPDX-License-Identifier: Apache-2.0

// A client of WebSockets over HTTP/2 (RFC 8441), of Node's own HTTP/2 and a few lines for
// the frames. Usage: extended.mjs PROXY HOST CA PATH PROTOCOL SIZE...
// With HOST "" it speaks HTTP/2 in clear to PROXY itself. It sends a binary message of
// each size, prints how long the echo of each is, and closes.
import http from "node:http";
import http2 from "node:http2";
import tls from "node:tls";
import fs from "node:fs";
import crypto from "node:crypto";

const [proxy, host, ca, path, protocol, ...sizes] = process.argv.slice(2);
const [name, port] = proxy.split(":");

function frame(opcode, payload) {
  const key = crypto.randomBytes(4);
  let head;
  if (payload.length < 126) head = Buffer.from([0x80 | opcode, 0x80 | payload.length]);
  else if (payload.length < 65536) head = Buffer.from([0x80 | opcode, 0x80 | 126, payload.length >> 8, payload.length & 255]);
  else {
    head = Buffer.alloc(10);
    head[0] = 0x80 | opcode;
    head[1] = 0x80 | 127;
    head.writeBigUInt64BE(BigInt(payload.length), 2);
  }
  const masked = Buffer.from(payload);
  for (let i = 0; i < masked.length; i++) masked[i] ^= key[i & 3];
  return Buffer.concat([head, key, masked]);
}

// read takes whole frames off buf and returns what is left.
function read(buf, each) {
  for (;;) {
    if (buf.length < 2) return buf;
    let n = buf[1] & 127, at = 2;
    if (n === 126) {
      if (buf.length < 4) return buf;
      n = buf.readUInt16BE(2);
      at = 4;
    } else if (n === 127) {
      if (buf.length < 10) return buf;
      n = Number(buf.readBigUInt64BE(2));
      at = 10;
    }
    if (buf.length < at + n) return buf;
    each(buf[0] & 15, (buf[0] & 0x80) !== 0, buf.subarray(at, at + n));
    buf = buf.subarray(at + n);
  }
}

function talk(authority, options) {
  const session = http2.connect(authority, options);
  session.on("error", (err) => { console.log("session", err.code); process.exit(1); });
  session.on("remoteSettings", (settings) => {
    console.log("offered", settings.enableConnectProtocol);
    if (!settings.enableConnectProtocol) return session.destroy();
    const stream = session.request({":method": "CONNECT", ":protocol": protocol, ":scheme": authority.split(":")[0], ":path": path,
      ":authority": authority.split("//")[1], "sec-websocket-version": "13", "sec-websocket-protocol": "chat", ...(options.origin && {origin: options.origin})});
    let buf = Buffer.alloc(0), got = 0, open = false;
    const next = () => sizes.length ? stream.write(frame(2, crypto.randomBytes(Number(sizes.shift())))) : stream.write(frame(8, Buffer.from([3, 232])));
    stream.on("response", (head) => {
      console.log("status", head[":status"], head["sec-websocket-protocol"], head["upgrade"], head["connection"], head["sec-websocket-accept"]);
      open = head[":status"] === 200;
      if (open) next();
    });
    stream.on("data", (d) => {
      if (!open) return;
      buf = read(Buffer.concat([buf, d]), (opcode, fin, payload) => {
        if (opcode === 9) return stream.write(frame(10, payload));
        if (opcode === 8) return console.log("close", payload.length >= 2 ? payload.readUInt16BE(0) : 0);
        got += payload.length;
        if (fin && opcode < 8) { console.log("echo", got); got = 0; next(); }
      });
    });
    stream.on("error", (err) => console.log("stream", err.code));
    stream.on("close", () => { console.log("end", stream.rstCode); session.close(); });
    stream.on("end", () => stream.end());
  });
}

if (!host) talk("http://" + proxy, {origin: process.env.ORIGIN});
else http.request({host: name, port, method: "CONNECT", path: host + ":443"}).on("connect", (answer, socket) => {
  const secure = tls.connect({socket, servername: host, ca: fs.readFileSync(ca), ALPNProtocols: ["h2"]}, () =>
    talk("https://" + host, {createConnection: () => secure}));
}).end();
