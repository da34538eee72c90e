// SPDX-License-Identifier: Apache-2.0

// What a person gives to clients that are npm ws underneath: options for its socket.
import net from "node:net";
import process from "node:process";

const { E2E_MODE: mode } = process.env;
const proxy = process.env.E2E_PROXY || process.env.HTTPS_PROXY;

// OpenAI's realtime client makes wss: of every base URL. For one that begins with
// http: the plain connection has to be opened for it.
export async function agentFor(origin) {
  if (!proxy) {
    const url = new URL(origin);
    return url.protocol === "http:" ? { createConnection: () => net.connect(Number(url.port), url.hostname) } : {};
  }
  if (mode === "forward") {
    const { HttpProxyAgent } = await import("http-proxy-agent");
    return { agent: new HttpProxyAgent(proxy) };
  }
  const { HttpsProxyAgent } = await import("https-proxy-agent");
  return { agent: new HttpsProxyAgent(proxy) };
}
