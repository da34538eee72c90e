// SPDX-License-Identifier: Apache-2.0
//
// Sends fetch, node:http and node:https through HTTP_PROXY and HTTPS_PROXY, as
// NODE_USE_ENV_PROXY=1 does in Node.js 24, and 22.21 and later. There, and in other
// runtimes, this file does nothing. It waits with its work until the first call, so
// that programs which make none start as fast as before.
'use strict';
(() => {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (process.versions.bun || process.versions.deno || major >= 24 || (major === 22 && minor >= 21)) return;
  const once = Symbol.for('warmwire.env-proxy');
  if (process[once]) return;
  Object.defineProperty(process, once, { value: true });

  const http = require('node:http');
  const https = require('node:https');
  const net = require('node:net');
  const tls = require('node:tls');

  const env = (name) => process.env[name.toLowerCase()] || process.env[name] || '';

  // proxyFor returns the proxy for a target, or null.
  function proxyFor(secure, host, port) {
    const value = env(secure ? 'HTTPS_PROXY' : 'HTTP_PROXY');
    if (!value || host === 'localhost' || host === '::1' || host.startsWith('127.') || excluded(host, port)) return null;
    try {
      const url = new URL(value.includes('://') ? value : `http://${value}`);
      return url.protocol === 'http:' ? url : null;
    } catch {
      return null;
    }
  }

  // excluded reads NO_PROXY as curl and Node.js 24 do: names with what is below them, *, :port.
  function excluded(host, port) {
    for (const entry of env('NO_PROXY').toLowerCase().split(/[\s,]+/)) {
      if (!entry) continue;
      if (entry === '*') return true;
      const [, name, only] = /^(.*?)(?::(\d+))?$/.exec(entry);
      if (only && Number(only) !== port) continue;
      const bare = name.replace(/^\*?\./, '');
      if (host === bare || host.endsWith(`.${bare}`)) return true;
    }
    return false;
  }

  // tunnel opens a connection to host:port through proxy, and calls done once with it.
  function tunnel(proxy, host, port, done) {
    const bare = host.includes(':') ? `[${host}]` : host;
    const headers = { host: `${bare}:${port}` };
    if (proxy.username) {
      const user = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`;
      headers['proxy-authorization'] = `Basic ${Buffer.from(user).toString('base64')}`;
    }
    const request = http.request({
      host: proxy.hostname.replace(/^\[|\]$/g, ''), port: proxy.port || 80, method: 'CONNECT', path: `${bare}:${port}`, headers,
      agent: false, createConnection: (options) => net.connect(options),
    });
    request.once('connect', (response, socket, head) => {
      if (response.statusCode !== 200) {
        socket.destroy();
        done(new Error(`the proxy ${proxy.host} answers CONNECT ${bare}:${port} with ${response.statusCode}`));
        return;
      }
      if (head.length > 0) socket.unshift(head);
      socket.setNoDelay(true);
      done(null, socket);
    });
    request.once('response', (response) => {
      response.resume();
      done(new Error(`the proxy ${proxy.host} answers CONNECT ${bare}:${port} with ${response.statusCode}`));
    });
    request.once('error', (error) => {
      error.message = `through the proxy ${proxy.host}: ${error.message}`;
      done(error);
    });
    request.end();
    return request;
  }

  // secured ends once TLS stands.
  function secured(options, done) {
    const socket = tls.connect(options);
    const failed = (error) => { socket.removeListener('secureConnect', ready); done(error); };
    const ready = () => { socket.removeListener('error', failed); done(null, socket); };
    socket.once('secureConnect', ready);
    socket.once('error', failed);
  }

  function intoAgents(Agent, secure) {
    return class extends Agent {
      createConnection(options, done) {
        const host = (options.host || options.hostname || 'localhost').toLowerCase();
        const port = Number(options.port) || (secure ? 443 : 80);
        const proxy = options.socketPath ? null : proxyFor(secure, host, port);
        if (!proxy) return super.createConnection(options, done);
        tunnel(proxy, host, port, (error, socket) => {
          if (error) return done(error);
          if (!secure) return done(null, socket);
          return done(null, tls.connect({ ...options, socket, host: undefined, port: undefined, servername: options.servername || (net.isIP(host) ? '' : host) }));
        });
        return undefined;
      }
    };
  }
  http.globalAgent = new (intoAgents(http.Agent, false))(http.globalAgent.options);
  https.globalAgent = new (intoAgents(https.Agent, true))(https.globalAgent.options);

  // fetch has a connection pool of its own. Its class is reached by the instance that the
  // runtime makes; npm's undici brings another one, with proxy settings of its own.
  const dispatcher = Symbol.for('undici.globalDispatcher.1');
  function intoFetch() {
    void globalThis.Headers; // loads it
    const direct = globalThis[dispatcher];
    if (!direct || direct.constructor.name !== 'Agent') return; // the program has set one
    const Agent = direct.constructor;
    function connect(options, done) {
      const secure = options.protocol === 'https:';
      const host = options.hostname.replace(/^\[|\]$/g, '').toLowerCase();
      const port = Number(options.port) || (secure ? 443 : 80);
      tunnel(proxyFor(secure, host, port), host, port, (error, socket) => {
        if (error) return done(error, null);
        if (!secure) return done(null, socket);
        return secured({ socket, servername: options.servername || (net.isIP(host) ? '' : host), ALPNProtocols: ['http/1.1'] }, done);
      });
    }
    class EnvProxyAgent extends Agent {
      dispatch(options, handler) {
        const origin = new URL(options.origin);
        const host = origin.hostname.replace(/^\[|\]$/g, '').toLowerCase();
        const secure = origin.protocol === 'https:';
        if (!proxyFor(secure, host, Number(origin.port) || (secure ? 443 : 80))) return direct.dispatch(options, handler);
        return super.dispatch(options, handler);
      }
    }
    globalThis[dispatcher] = new EnvProxyAgent({ connect });
  }
  const plain = globalThis.fetch;
  if (typeof plain !== 'function') return; // before 18
  let first = true;
  globalThis.fetch = function fetch(input, init) {
    if (first) {
      first = false;
      intoFetch();
    }
    return plain.call(this, input, init);
  };
})();
