"""A model's endpoint on loopback that answers after a fixed time and throws away what it is sent.

    python experiments/bench/endpoint.py --latency 0.2

Prints its port and ends when its standard input does. Paths below `/judge` get a mark, all others
an answer, each in the shape of its vendor; `GET /count` says how many requests and bytes came.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

USAGE = {"prompt_tokens": 9000, "completion_tokens": 8, "total_tokens": 9008}


def reply(path: str) -> bytes:
    """What the vendor that has this path says."""
    text = "Your mark: 4" if path.startswith("/judge") else "A red sofa under the window."
    body: dict[str, object]
    if path.endswith("/messages"):
        body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
                "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
                "usage": {"input_tokens": 9000, "output_tokens": 8}}  # fmt: skip
    elif "generateContent" in path:
        content = {"role": "model", "parts": [{"text": text}]}
        body = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
                "usageMetadata": {"promptTokenCount": 9000, "candidatesTokenCount": 8,
                                  "totalTokenCount": 9008}}  # fmt: skip
    else:
        message = {"role": "assistant", "content": text}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE,
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}  # fmt: skip
    return json.dumps(body).encode()


class Endpoint(asyncio.Protocol):
    """One connection; requests come one after the other."""

    latency = 0.2
    requests = 0
    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._head = b""
        self._left = 0
        self._path = ""

    def data_received(self, data: bytes) -> None:
        if self._left == 0:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = b""
            lines = head.decode("latin-1").split("\r\n")
            self._path = lines[0].split()[1]
            named = dict(line.lower().split(":", 1) for line in lines[1:])
            self._left = int(named.get("content-length", 0))
            if self._path == "/count":
                self._send(json.dumps([Endpoint.requests, Endpoint.received]).encode())
                return
        self._left -= len(data)
        Endpoint.received += len(data)
        if self._left == 0:
            Endpoint.requests += 1
            body = reply(self._path)
            asyncio.get_running_loop().call_later(self.latency, self._send, body)

    def _send(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)


async def serve(latency: float) -> None:
    Endpoint.latency = latency
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    server = await loop.create_server(Endpoint, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop.add_reader(sys.stdin, ended.set)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds from the last byte")
    asyncio.run(serve(parser.parse_args().latency))
