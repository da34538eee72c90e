# SPDX-License-Identifier: Apache-2.0
"""Shakes hands through a proxy, strictly: strict.py PROXY ROOTS HOST PORT [HOST PORT…].

Prints "ok HOST ISSUER" or "refused HOST WHY" for each.
"""

import socket
import ssl
import sys
from urllib.parse import urlsplit


def tunnel(proxy, authority):
    sock = socket.create_connection((proxy.hostname, proxy.port), 20)
    sock.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = sock.recv(1)
        if not data:
            raise RuntimeError("proxy closed after " + repr(head))
        head += data
    return sock


address, roots = urlsplit(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=roots)
context.verify_flags |= ssl.VERIFY_X509_STRICT
for host, port in zip(sys.argv[3::2], sys.argv[4::2]):
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with tunnel(address, authority) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host) as conn:
                issuer = dict(pair[0] for pair in conn.getpeercert()["issuer"])
                print("ok", host, issuer["commonName"])
        except ssl.SSLCertVerificationError as error:
            print("refused", host, error.verify_message)
