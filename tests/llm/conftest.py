"""Servers on loopback: llmock and aimock, written by others, and one that says what it is told."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import itertools
import json
import os
import shutil
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
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_limiter_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openeqa_lab.llm.limits._limiters", {})


@pytest.fixture(scope="session")
def tiny_models() -> Any:
    """The module beside this one, which makes models of transformers; no network for them."""
    pytest.importorskip("transformers", reason="needs the extra [local]")
    import huggingface_hub.constants
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    spec = importlib.util.spec_from_file_location(
        "tiny_models", Path(__file__).with_name("tiny_models.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reading(tiny_models: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads text alone."""
    folder: Path = tiny_models.reading(tmp_path_factory.mktemp("models") / "reading")
    return folder


@pytest.fixture(scope="session")
def seeing(tiny_models: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees."""
    folder: Path = tiny_models.seeing(tmp_path_factory.mktemp("models") / "seeing")
    return folder


LLMOCK_PATHS = {"openai": "/v1", "anthropic": "/anthropic", "gemini": "/gemini/v1beta"}
WIRE_PATHS = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta", "hosted_vllm": "/v1"}


def pictures_in(body: Any) -> list[tuple[bytes, str]]:
    """Bytes and media type of each picture in the order sent, however a wire spells them."""
    if isinstance(body, list):
        return [picture for part in body for picture in pictures_in(part)]
    if not isinstance(body, dict):
        return []
    head, _, data = str(body.get("url", "")).partition(";base64,")
    if data:
        return [(base64.b64decode(data), head.removeprefix("data:"))]
    for name in ("media_type", "mime_type", "mimeType"):
        if name in body and "data" in body:
            return [(base64.b64decode(body["data"]), body[name])]
    return pictures_in(list(body.values()))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def call(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.loads(reply.read())


def wait_for(url: str, process: subprocess.Popen[bytes], method: str = "GET") -> None:
    """Return when a server that was just started replies."""
    for _ in range(300):
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            call(method, url)
            return
        assert process.poll() is None, f"{process.args!r} did not start"
        time.sleep(0.1)
    raise AssertionError(f"{process.args!r} did not answer within 30 s")


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

    def pictures(self) -> list[list[tuple[bytes, str]]]:
        """Of each request."""
        return [pictures_in(request["body"]) for request in self.requests()]

    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = self._call("GET", "verdict")
        return verdict

    def reset(self) -> None:
        self._call("POST", "reset")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        return call(method, f"{self.url}/_llmock/{path}", body)


@pytest.fixture(scope="session")
def _llmock_process() -> Iterator[Mock]:
    pytest.importorskip("llmock")
    port = free_port()
    command = [sys.executable, "-m", "llmock.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--log-level", "error", "--response-style", "static"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    mock = Mock(f"http://127.0.0.1:{port}")
    try:
        wait_for(f"{mock.url}/_llmock/reset", process, "POST")
        yield mock
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def mock(_llmock_process: Mock) -> Mock:
    _llmock_process.reset()
    return _llmock_process


# aimock takes these from a file only, as it holds a text of length 0 for a slip.
SILENT: dict[str, dict[str, str]] = {
    "says nothing": {"content": ""},
    "spends its limit": {"content": "", "finishReason": "length"},
    "is filtered": {"content": "", "finishReason": "content_filter"},
    "declines": {"content": "", "finishReason": "refusal"},
}
# In the words of all three vendors: aimock copies what it is given.
COUNTED = {
    "prompt_tokens": 100, "completion_tokens": 10,
    "input_tokens": 100, "output_tokens": 10,
    "promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110,
}  # fmt: skip
AIMOCK_PATHS = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}


@dataclass
class AiMock:
    """A running aimock: what it does is told by words in the prompt, requests are read back."""

    url: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def base(self, vendor: str) -> str:
        return self.url + AIMOCK_PATHS[vendor]

    def script(self, *faults: dict[str, Any], text: str = "A red one.") -> str:
        """Words for a prompt that meets these faults, one a request, and is then answered."""
        words = f"[script {next(self.numbers)}]"
        said = {"content": text, "usage": COUNTED}
        turns = [{"response": said, **fault} for fault in (*faults, {})]
        fixtures = [
            {"match": {"userMessage": words, "sequenceIndex": number}, **turn}
            for number, turn in enumerate(turns)
        ]
        added = call("POST", f"{self.url}/__aimock/fixtures", {"fixtures": fixtures})
        assert added == {"added": len(turns)}
        return words

    def requests(self, words: str) -> list[dict[str, Any]]:
        """What was asked with these words, in order; one that was given up is not among them."""
        journal = call("GET", f"{self.url}/__aimock/journal")
        return [entry for entry in journal if words in json.dumps(entry["body"])]

    def findings(self, words: str) -> list[str]:
        """What llmock's judge says of how our client dealt with these requests."""
        from llmock.journal import RequestRecord
        from llmock.verdict import judge

        records = [
            RequestRecord(
                number,
                "",
                entry["method"],
                entry["path"],
                entry["timestamp"] / 1000,
                entry["timestamp"] / 1000,
                entry["response"]["status"],
                json.dumps(entry["body"]),
                retry_after=1.0 if entry["response"]["status"] == 429 else None,
                completed=entry["response"]["status"] != 0,
            )
            for number, entry in enumerate(self.requests(words))
        ]
        return [finding.code for finding in judge(records).findings]


def aimock_command() -> str:
    """The executable; the test is skipped where it or a Node that runs it is missing."""
    package = (ROOT / ".ci" / "npm-packages.txt").read_text().strip()
    default = ROOT / "node_modules" / ".bin" / "llmock"
    command = os.environ.get("OPENEQA_AIMOCK") or str(default)
    node = shutil.which("node")
    if node is None or not Path(command).exists():
        pytest.skip(
            f"needs Node 20.15 or newer and `npm install --no-save {package}` in the checkout, or "
            "OPENEQA_AIMOCK, the path of the package's node_modules/.bin/llmock"
        )
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(int(part) for part in version.strip("v\n").split(".")[:2]) < (20, 15):
        pytest.skip(f"aimock needs Node 20.15 or newer, and {node} is {version.strip()}")
    return command


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AiMock]:
    command = aimock_command()
    file = tmp_path_factory.mktemp("aimock") / "silent.json"
    fixtures = [
        {"match": {"userMessage": f"[{words}]"}, "response": response | {"usage": COUNTED}}
        for words, response in SILENT.items()
    ]
    file.write_text(json.dumps({"fixtures": fixtures}))
    port = free_port()
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [command, "--port", str(port), "--fixtures", str(file), "--log-level", "silent"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = AiMock(f"http://127.0.0.1:{port}")
    try:
        wait_for(f"{server.url}/__aimock/health", process)
        yield server
    finally:
        process.terminate()
        process.wait(10)


@dataclass
class Wire:
    """A server that gives one scripted reply to whatever it is asked, and keeps what it was asked.

    `status` None drops the connection without a word. `first` holds what is said before that, one
    status and body a request. The first requests may also be dropped with their bodies unread,
    replied to after some seconds, or get fewer bytes than the reply announces.
    """

    url: str = ""
    status: int | None = 200
    body: str | bytes = ""
    content_type: str = "application/json"
    seconds: float = 0.0
    first: list[tuple[int | None, str | bytes]] = field(default_factory=list)
    unread: int = 0
    late: list[float] = field(default_factory=list)
    withheld: list[int] = field(default_factory=list)
    more_headers: dict[str, str] = field(default_factory=dict)
    under_way: int = 0
    most: int = 0
    replied: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: list[object] = field(default_factory=list)

    def base(self, vendor: str) -> str:
        return self.url + WIRE_PATHS[vendor]

    def pictures(self) -> list[list[tuple[bytes, str]]]:
        """Of each request."""
        return [pictures_in(request) for request in self.requests]

    def says(self, body: object, status: int | None = 200) -> None:
        self.body = body if isinstance(body, str | bytes) else json.dumps(body)
        self.status = status


@pytest.fixture
def wire() -> Iterator[Wire]:
    script = Wire()
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            if script.unread:
                script.unread -= 1
                self.close_connection = True
                return
            data = self.rfile.read(int(self.headers["content-length"]))
            script.requests.append(json.loads(data))
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            script.connections.append(self.client_address)
            status, said = script.first.pop(0) if script.first else (script.status, script.body)
            seconds = script.late.pop(0) if script.late else script.seconds
            withheld = script.withheld.pop(0) if script.withheld else 0
            with counting:
                script.under_way += 1
                script.most = max(script.most, script.under_way)
            time.sleep(seconds)
            with counting:
                script.under_way -= 1
            if status is None:
                self.close_connection = True
            else:
                self._say(status, said.encode() if isinstance(said, str) else said, withheld)
            with counting:
                script.replied += 1

        def _say(self, status: int, body: bytes, withheld: int) -> None:
            try:
                self.send_response(status)
                for name, value in script.more_headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", script.content_type)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - withheld])
            except OSError:  # the client has gone
                self.close_connection = True
            if withheld:
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # with the usual 5, a ninth connection at once waits a second

    with Server(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield script
        server.shutdown()
        thread.join()


@dataclass
class Vendor:
    """A server with two batch endpoints, OpenAI's (below /v1) and Anthropic's, as documented.

    Results come in the opposite order. A batch ends when it was looked at `looks` times after it
    began, and never while `held` is set. `results` gives what is said to a prompt's last text, in
    the vendor's form, None for nothing at all. `faults` holds what goes wrong with the next
    requests whose method and path begin like that: a status, None for a dropped connection, or
    ``lost`` for one that is dropped when all was done. Requests that begin with `slow` are replied
    to when `quick` is set.
    """

    url: str = ""
    looks: int = 1
    held: bool = False
    lists: bool = True
    status: str = "completed"
    refusal: list[dict[str, object]] = field(default_factory=list)
    results: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    faults: list[tuple[str, int | str | None]] = field(default_factory=list)
    slow: str = "-"
    quick: threading.Event = field(default_factory=threading.Event)
    calls: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)

    def base(self, vendor: str) -> str:
        return self.url + WIRE_PATHS[vendor]

    @property
    def bought(self) -> list[str]:
        """The custom ids of all requests of all batches."""
        return [each["custom_id"] for batch in self.batches.values() for each in batch["asked"]]

    def bodies(self) -> list[dict[str, Any]]:
        asked = [each for batch in self.batches.values() for each in batch["asked"]]
        return [each.get("body") or each["params"] for each in asked]

    def begin(self, asked: list[dict[str, Any]], name: str = "") -> dict[str, Any]:
        number = len(self.batches)
        batch = {"id": f"batch_{number}", "asked": asked, "name": name, "looked": 0}
        batch["created"] = time.time()
        self.batches[str(batch["id"])] = batch
        return batch

    def ended(self, batch: dict[str, Any]) -> bool:
        return not self.held and int(batch["looked"]) >= self.looks

    def said(self, asked: dict[str, Any], *, anthropic: bool) -> dict[str, Any] | None:
        content = (asked.get("body") or asked["params"])["messages"][-1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        if text in self.results:
            said = self.results[text]
            return None if said is None else {"custom_id": asked["custom_id"], **said}
        if anthropic:
            reply = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5-20250929",
                "content": [{"type": "text", "text": f"re: {text}"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 100, "output_tokens": 10},
            }
            result = {"type": "succeeded", "message": reply}
            return {"custom_id": asked["custom_id"], "result": result}
        message = {"role": "assistant", "content": f"re: {text}"}
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-4o-2024-08-06",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }
        response = {"status_code": 200, "request_id": "r", "body": body}
        return {"custom_id": asked["custom_id"], "response": response, "error": None}

    def openai(self, batch: dict[str, Any]) -> dict[str, Any]:
        status = self.status if self.ended(batch) else "in_progress"
        done = status != "in_progress"
        said = [self.said(each, anthropic=False) for each in batch["asked"]] if done else []
        told = [each for each in said if each is not None]
        good = [each for each in told if (each["response"] or {}).get("status_code") == 200]
        bad = [each for each in told if each not in good]
        files: dict[str, str | None] = {"output": None, "error": None}
        for kind, lines in (("output", good), ("error", bad)):
            if lines and not self.refusal:
                files[kind] = f"{kind}-{batch['id']}"
                text = "\n".join(json.dumps(line) for line in reversed(lines))
                self.files[f"{kind}-{batch['id']}"] = text.encode()
        return {
            "id": batch["id"],
            "object": "batch",
            "status": status,
            "errors": {"object": "list", "data": self.refusal} if self.refusal else None,
            "output_file_id": files["output"],
            "error_file_id": files["error"],
            "created_at": int(batch["created"]),
            "request_counts": {
                "total": len(batch["asked"]),
                "completed": len(good),
                "failed": len(bad),
            },
            "metadata": {"openeqa_lab": batch["name"]},
        }

    def anthropic(self, batch: dict[str, Any]) -> dict[str, Any]:
        ended, asked = self.ended(batch), len(batch["asked"])
        counts = dict.fromkeys(("processing", "errored", "canceled", "expired", "succeeded"), 0)
        counts["succeeded" if ended else "processing"] = asked
        return {
            "id": batch["id"],
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(batch["created"])),
            "results_url": "https://elsewhere.example/results" if ended else None,
        }

    def answer(self, method: str, path: str, data: bytes, kind: str) -> tuple[int, object]:
        """Status and body of a reply."""
        path, _, query = path.partition("?")
        if path.startswith("/v1/messages/batches"):
            return self.about(method, path.split("/")[4:], query, data, anthropic=True)
        if path.startswith("/v1/batches"):
            return self.about(method, path.split("/")[3:], query, data, anthropic=False)
        if method == "GET":
            name = path.split("/")[3]
            return (200, self.files[name]) if name in self.files else (404, {})
        border = b"--" + kind.partition("boundary=")[2].encode()
        [content] = [part for part in data.split(border) if b'name="file"' in part]
        name = f"file-{len(self.files)}"
        self.files[name] = content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        return 200, {"id": name}

    def about(
        self, method: str, parts: list[str], query: str, data: bytes, *, anthropic: bool
    ) -> tuple[int, object]:
        show = self.anthropic if anthropic else self.openai
        if method == "POST":
            wanted = json.loads(data)
            if anthropic:
                return 200, show(self.begin(wanted["requests"]))
            lines = self.files[wanted["input_file_id"]].splitlines()
            asked = [json.loads(line) for line in lines]
            return 200, show(self.begin(asked, wanted["metadata"]["openeqa_lab"]))
        if not parts:
            if not self.lists:
                return 405, {"error": {"message": "no"}}
            names = list(reversed(self.batches))  # the newest first, one a page
            after = dict(pair.split("=") for pair in query.split("&"))
            last = after.get("after_id" if anthropic else "after")
            names = names[names.index(last) + 1 :] if last else names
            page = [show(self.batches[name]) for name in names[:1]]
            return 200, {"data": page, "has_more": len(names) > 1}
        if parts[0] not in self.batches:
            return 404, {"error": {"message": "no such batch"}}
        batch = self.batches[parts[0]]
        if parts[1:] == ["results"]:
            said = [self.said(each, anthropic=True) for each in reversed(batch["asked"])]
            return 200, "\n".join(json.dumps(each) for each in said if each is not None).encode()
        batch["looked"] += 1
        return 200, show(batch)


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    script = Vendor()
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_call(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            call = f"{self.command} {self.path}"
            with one_at_a_time:
                script.calls.append(call)
                script.headers.append({name.lower(): text for name, text in self.headers.items()})
                fault = next((each for each in script.faults if call.startswith(each[0])), None)
                if fault is not None:
                    script.faults.remove(fault)
                status, body = 0, object()
                if fault is None or fault[1] == "lost":
                    kind = self.headers.get("content-type") or ""
                    status, body = script.answer(self.command, self.path, data, kind)
            if call.startswith(script.slow):
                script.quick.wait(60)
            if fault is not None and not isinstance(fault[1], int):
                self.close_connection = True
                return
            if fault is not None:
                status, body = int(str(fault[1])), {"error": {"message": "not now"}}
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)
            except OSError:  # the client has gone
                self.close_connection = True

        do_GET = do_POST = handle_one_call  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield script
        script.quick.set()
        server.shutdown()
        thread.join()
