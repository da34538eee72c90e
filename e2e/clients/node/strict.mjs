// SPDX-License-Identifier: Apache-2.0

// Shakes hands through a proxy: node strict.mjs PROXY ROOTS HOST PORT [HOST PORT…]. Prints
// "ok HOST ISSUER" or "refused HOST WHY" for each. Only what is in ROOTS is trusted.
import { readFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import process from "node:process";
import tls from "node:tls";

const [proxy, roots, ...targets] = process.argv.slice(2);
const { hostname, port: proxyPort } = new URL(proxy);
const ca = readFileSync(roots);

function shake(host, port) {
  const path = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
  return new Promise((resolve, reject) => {
    const request = http.request({ host: hostname, port: proxyPort, method: "CONNECT", path, headers: { host: path } });
    request.on("error", reject).on("connect", (_, socket) => {
      const conn = tls.connect({ socket, host, servername: net.isIP(host) ? "" : host, ca }, () => {
        resolve(`ok ${host} ${conn.getPeerCertificate().issuer.CN}`);
        conn.destroy();
      });
      conn.on("error", (error) => resolve(`refused ${host} ${error.code}`));
    });
    request.end();
  });
}

for (let i = 0; i < targets.length; i += 2) console.log(await shake(targets[i], targets[i + 1]));
