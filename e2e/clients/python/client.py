# SPDX-License-Identifier: Apache-2.0
"""One real client a run: client.py NAME. Everything else is in the environment.

E2E_ORIGIN is what the base URL starts with; E2E_MODEL, E2E_KEY; E2E_PROXY and
E2E_MODE (forward or tunnel) for a proxy; E2E_CA for trust. With the modes intercepted
and exec neither is given, and the libraries find HTTPS_PROXY, SSL_CERT_FILE and
REQUESTS_CA_BUNDLE by themselves. E2E_TRACEPARENT is a field for each request. Prints "first" at the
first piece of the answer, and at the end one line of JSON.
"""

import asyncio
import hashlib
import json
import os
import socket
import ssl
import sys
from urllib.parse import quote, urlsplit

ORIGIN = os.environ["E2E_ORIGIN"]
MODEL = os.environ["E2E_MODEL"]
KEY = os.environ["E2E_KEY"]
PROXY = os.environ.get("E2E_PROXY") or None
MODE = os.environ["E2E_MODE"]
CA = os.environ.get("E2E_CA")
BY_ENVIRONMENT = MODE in ("intercepted", "exec")

URL = ORIGIN + "/v1/chat/completions"
WS_URL = ORIGIN.replace("http", "ws", 1) + "/v1/realtime?model=" + quote(MODEL)
BODY = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
HEADERS = {"Authorization": "Bearer " + KEY, "Traceparent": os.environ["E2E_TRACEPARENT"]}


class Answer:
    """Counts and hashes the pieces of one answer."""

    def __init__(self):
        self.hash = hashlib.sha256()
        self.chunks = 0
        self.protocol = ""

    def piece(self, data):
        if not data:
            return
        self.hash.update(data)
        self.chunks += 1
        if self.chunks == 1:
            print("first", flush=True)

    def event(self, text):
        """Takes one message of a realtime session; true when it was the last."""
        event = json.loads(text)
        if event["type"] == "error":
            raise RuntimeError(text)
        if event["type"] == "response.output_text.delta":
            self.piece(event["delta"].encode())
        return event["type"] == "response.done"


def run_requests(answer):
    import requests

    session = requests.Session()
    session.trust_env = BY_ENVIRONMENT
    if PROXY:
        session.proxies = {"http": PROXY, "https": PROXY}
    with session.post(URL, json=BODY, headers=HEADERS, stream=True, verify=CA or True) as response:
        response.raise_for_status()
        answer.protocol = "HTTP/1.1"
        for data in response.iter_content(chunk_size=None):
            answer.piece(data)


def run_httpx(answer, http2=False):
    import httpx

    with httpx.Client(http2=http2, verify=CA or True, proxies=PROXY, trust_env=BY_ENVIRONMENT) as client:
        with client.stream("POST", URL, json=BODY, headers=HEADERS) as response:
            response.raise_for_status()
            answer.protocol = response.http_version
            for data in response.iter_bytes():
                answer.piece(data)


async def run_aiohttp(answer):
    import aiohttp

    trust = ssl.create_default_context(cafile=CA)
    async with aiohttp.ClientSession(trust_env=BY_ENVIRONMENT) as session:
        async with session.post(URL, json=BODY, headers=HEADERS, proxy=PROXY, ssl=trust) as response:
            response.raise_for_status()
            answer.protocol = "HTTP/%d.%d" % response.version
            async for data in response.content.iter_any():
                answer.piece(data)


async def run_aiohttp_ws(answer):
    import aiohttp

    trust = ssl.create_default_context(cafile=CA)
    async with aiohttp.ClientSession(trust_env=BY_ENVIRONMENT) as session:
        async with session.ws_connect(
            WS_URL, headers=HEADERS, proxy=PROXY, ssl=trust, protocols=["realtime"]
        ) as ws:
            answer.protocol = ws.protocol or ""
            await ws.send_json({"type": "response.create"})
            async for message in ws:
                if answer.event(message.data):
                    break


def connect_through_proxy():
    """Opens a tunnel as PySocks and others do; Debian's websockets has no proxy."""
    address = os.environ["HTTPS_PROXY"] if BY_ENVIRONMENT else PROXY
    if not address:
        return None
    proxy, target = urlsplit(address), urlsplit(ORIGIN)
    authority = "%s:%d" % (target.hostname, target.port)
    sock = socket.create_connection((proxy.hostname, proxy.port))
    sock.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = sock.recv(1)
        if not data:
            raise RuntimeError("proxy closed after " + repr(head))
        head += data
    if head.split(b" ", 2)[1] != b"200":
        raise RuntimeError("proxy answered " + repr(head))
    return sock


async def run_websockets(answer):
    import websockets

    more = {}
    if WS_URL.startswith("wss:"):
        more["ssl"] = ssl.create_default_context(cafile=CA)
        more["server_hostname"] = urlsplit(ORIGIN).hostname
    sock = connect_through_proxy()
    if sock:
        more["sock"] = sock
    async with websockets.connect(WS_URL, extra_headers=HEADERS, subprotocols=["realtime"], **more) as ws:
        answer.protocol = ws.subprotocol or ""
        await ws.send(json.dumps({"type": "response.create"}))
        async for text in ws:
            if answer.event(text):
                break


CLIENTS = {
    "requests": run_requests,
    "httpx": run_httpx,
    "httpx-h2": lambda answer: run_httpx(answer, http2=True),
    "aiohttp": lambda answer: asyncio.run(run_aiohttp(answer)),
    "aiohttp-ws": lambda answer: asyncio.run(run_aiohttp_ws(answer)),
    "websockets": lambda answer: asyncio.run(run_websockets(answer)),
}

if __name__ == "__main__":
    result = Answer()
    CLIENTS[sys.argv[1]](result)
    print(json.dumps({"text_sha256": result.hash.hexdigest(), "chunks": result.chunks, "protocol": result.protocol}))
