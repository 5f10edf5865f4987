"""An OpenAI-compatible server on loopback with scripted behaviour, counting what it is asked.

`python openai_server.py PORT_FILE COUNT_FILE SCRIPT.json` serves a script as a process of its own (kill tests);
`serve(script)` is the in-process form. A script is a list of behaviours used in turn (the last one repeats):
{"text": ..., "finish": "stop", "delay": s, "status": 200, "usage": [prompt, completion], "raw": bytes-as-text}.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Served:
    """What a running server saw. base: address for api_base."""

    base: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def reply_text(
    source: str, technique: str = "scripted", plan: str = '{"version": 1, "steps": [{"kind": "host"}]}'
) -> str:
    """A well-formed answer with a C++ source block."""
    return f'Here it is.\n```cpp\n{source}\n```\n```json\n{{"plan": {plan}, "technique": "{technique}", "target": "memory", "expected_gain": 1.2}}\n```\n'


def handler_class(
    script: list[dict[str, Any]], served: Served, count_file: Path | None
) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            with lock:
                number = len(served.requests)
                served.requests.append(body)
                served.headers.append(dict(self.headers))
                if count_file is not None:
                    with count_file.open("a") as handle:
                        handle.write(json.dumps({"messages": body.get("messages")}) + "\n")
            behaviour = script[min(number, len(script) - 1)]
            time.sleep(behaviour.get("delay", 0))
            status = behaviour.get("status", 200)
            if "raw" in behaviour:
                payload = behaviour["raw"].encode()
            elif status != 200:
                payload = json.dumps(
                    {
                        "error": {
                            "message": behaviour.get("text", "scripted failure"),
                            "type": "x",
                            "code": behaviour.get("code", "x"),
                        }
                    }
                ).encode()
            else:
                usage = behaviour.get("usage", [100, 50])
                choice = {
                    "index": 0,
                    "message": {"role": "assistant", "content": behaviour.get("text", "")},
                    "finish_reason": behaviour.get("finish", "stop"),
                }
                total = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
                payload = json.dumps(
                    {
                        "id": f"r{number}",
                        "object": "chat.completion",
                        "created": 1,
                        "model": body.get("model"),
                        "choices": [choice],
                        "usage": total,
                    }
                ).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)
            except (BrokenPipeError, ConnectionResetError):
                return

        def log_message(self, *arguments: Any) -> None:
            return

    return Handler


@contextmanager
def serve(script: list[dict[str, Any]], count_file: Path | None = None) -> Iterator[Served]:
    """Serve a script on a free loopback port until the block ends."""
    served = Served("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_class(script, served, count_file))
    server.daemon_threads = True
    served.base = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    port_file, count_file, script_file = (Path(argument) for argument in sys.argv[1:4])
    with serve(json.loads(script_file.read_text()), count_file) as served:
        port_file.write_text(served.base)
        threading.Event().wait()


if __name__ == "__main__":
    main()
