// SPDX-License-Identifier: Apache-2.0

// A client of CONNECT over HTTP/2 (RFC 9113 §8.5), of Node's own HTTP/2 and TLS. Usage:
// tunnel.mjs PROXY HOST CA PROTOCOL. It makes two calls, one after the other, in one tunnel.
import http2 from "node:http2";
import https from "node:https";
import tls from "node:tls";
import fs from "node:fs";

const [proxy, host, ca, protocol] = process.argv.slice(2);
const session = http2.connect("http://" + proxy);
session.on("error", (err) => console.log("session", err.code));
const stream = session.request({":method": "CONNECT", ":authority": host + (protocol === "clear" ? ":80" : ":443")});
const done = () => session.close();
stream.on("error", (err) => console.log("stream", err.code));
stream.on("close", () => { console.log("end", stream.rstCode); done(); });
stream.on("response", (head) => {
  console.log("connect", head[":status"]);
  if (head[":status"] !== 200) return stream.resume();
  if (protocol === "h2") {
    const secure = tls.connect({socket: stream, servername: host, ca: fs.readFileSync(ca), ALPNProtocols: ["h2"]}, () => {
      const inner = http2.connect("https://" + host, {createConnection: () => secure});
      const call = (then) => {
        const req = inner.request({":method": "POST", ":path": "/v1?q"});
        let body = "", status;
        req.on("response", (h) => status = h[":status"]).on("data", (d) => body += d).on("end", () => { console.log(status, JSON.parse(body).Body); then(); });
        req.end("question");
      };
      call(() => call(() => inner.close(() => stream.end())));
    });
    return secure.on("error", (err) => { console.log("tls", err.code); stream.close(); });
  }
  if (protocol === "odd") {
    const secure = tls.connect({socket: stream, servername: host, ca: fs.readFileSync(ca), ALPNProtocols: ["acme-tls/1"]});
    return secure.on("error", () => {});
  }
  if (protocol === "clear") { // Node 20 spoils heads that its http writes to a stream
    const ask = () => stream.write(Buffer.from(`POST /v1?q HTTP/1.1\r\nHost: ${host}\r\nContent-Length: 8\r\n\r\nquestion`));
    let got = "", left = 2;
    stream.on("data", (d) => {
      const m = (got += d).match(/HTTP\/1\.1 (\d+)[^]*"Body":"(\w+)"/);
      if (!m) return;
      console.log(+m[1], m[2]);
      got = "";
      --left ? ask() : stream.end();
    });
    return ask();
  }
  const agent = new https.Agent({keepAlive: true, maxSockets: 1});
  agent.createConnection = () => tls.connect({socket: stream, servername: host, ca: fs.readFileSync(ca), ALPNProtocols: ["http/1.1"]});
  const call = (then) => https.request({host, path: "/v1?q", method: "POST", agent}, (resp) => {
    let body = "";
    resp.on("data", (d) => body += d).on("end", () => { console.log(resp.statusCode, JSON.parse(body).Body); then(); });
  }).on("error", (err) => console.log("call", err.code)).end("question");
  call(() => call(() => { agent.destroy(); stream.end(); }));
});
