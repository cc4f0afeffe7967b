"""Servers on loopback: llmock, which somebody else wrote, and one that says what it is told to."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_limiter_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openeqa_lab.llm.limits._limiters", {})


LLMOCK_PATHS = {"openai": "/v1", "anthropic": "/anthropic", "gemini": "/gemini/v1beta"}
WIRE_PATHS = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta", "hosted_vllm": "/v1"}


@dataclass
class Mock:
    """A running llmock: faults are queued, requests are read back."""

    url: str

    def base(self, vendor: str) -> str:
        return self.url + LLMOCK_PATHS[vendor]

    def queue(self, **behavior: object) -> None:
        self._call("POST", "scenario", {"behaviors": [behavior]})

    def requests(self) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = self._call("GET", "requests")["requests"]
        return requests

    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = self._call("GET", "verdict")
        return verdict

    def reset(self) -> None:
        self._call("POST", "reset")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_llmock/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.loads(reply.read())


@pytest.fixture(scope="session")
def _llmock_process() -> Iterator[Mock]:
    pytest.importorskip("llmock")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "llmock.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--log-level", "error", "--response-style", "static"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    mock = Mock(f"http://127.0.0.1:{port}")
    try:
        for _ in range(300):
            try:
                mock.reset()
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, "llmock did not start"
                time.sleep(0.1)
        yield mock
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def mock(_llmock_process: Mock) -> Mock:
    _llmock_process.reset()
    return _llmock_process


@dataclass
class Wire:
    """A server that gives one scripted reply to whatever it is asked, and keeps what it was asked.

    `status` None drops the connection without a word. `first` holds what is said before that, one
    status and body a request.
    """

    url: str = ""
    status: int | None = 200
    body: str = ""
    content_type: str = "application/json"
    seconds: float = 0.0
    first: list[tuple[int | None, str]] = field(default_factory=list)
    more_headers: dict[str, str] = field(default_factory=dict)
    under_way: int = 0
    most: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def base(self, vendor: str) -> str:
        return self.url + WIRE_PATHS[vendor]

    def says(self, body: object, status: int | None = 200) -> None:
        self.body = body if isinstance(body, str) else json.dumps(body)
        self.status = status


@pytest.fixture
def wire() -> Iterator[Wire]:
    script = Wire()
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            script.requests.append(json.loads(data))
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, text = script.first.pop(0) if script.first else (script.status, script.body)
            with counting:
                script.under_way += 1
                script.most = max(script.most, script.under_way)
            time.sleep(script.seconds)
            with counting:
                script.under_way -= 1
            if status is None:
                self.close_connection = True
                return
            body = text.encode()
            try:
                self.send_response(status)
                for name, value in script.more_headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", script.content_type)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client has gone
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield script
        server.shutdown()
        thread.join()
