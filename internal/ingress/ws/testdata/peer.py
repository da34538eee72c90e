# SPDX-License-Identifier: Apache-2.0
"""A WebSocket peer of Python's `websockets`, with its keepalive scaled down.

`peer.py server INTERVAL TIMEOUT` prints its port, sends ten messages at once and
then echoes; it prints how each connection was closed. `peer.py client INTERVAL
TIMEOUT URL SIZE` sends SIZE bytes in messages of 1000 and wants their number back;
it prints "ok", or how it was closed.
"""
import asyncio
import sys

import websockets

role, interval, timeout = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
keepalive = {"ping_interval": interval, "ping_timeout": timeout, "close_timeout": timeout}


async def serve(ws):
    try:
        for i in range(10):
            await ws.send("x" * 1000)
        async for message in ws:
            await ws.send(message)
    except websockets.ConnectionClosed:
        pass
    print("closed", ws.close_code, ws.close_reason, flush=True)


async def server():
    async with websockets.serve(serve, "127.0.0.1", 0, **keepalive) as s:
        print(s.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


async def client(url, size):
    async with websockets.connect(url, **keepalive) as ws:
        try:
            for _ in range(size // 1000):
                await ws.send(b"x" * 1000)
            got = await ws.recv()
            print("ok" if got == str(size // 1000) else got, flush=True)
        except websockets.ConnectionClosed:
            print("closed", ws.close_code, ws.close_reason, flush=True)


if role == "server":
    asyncio.run(server())
else:
    asyncio.run(client(sys.argv[4], int(sys.argv[5])))
