"""The LLM process: the only one that holds keys and the only one that imports LiteLLM.

Requests arrive as frames and are answered as they finish, several at once. Each reply is on disk
before it is passed on, so a kill between the two costs nothing. `python -m forge_tui.llm.process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import time
from pathlib import Path
from typing import Any

from forge_tui.llm.redact import redact, secrets_of
from forge_tui.llm.spool import write_reply
from forge_tui.records.codec import from_json, to_json
from forge_tui.records.frames import FrameError, encode, read_stream
from forge_tui.records.llm import LlmReply, LlmRequest
from forge_tui.records.serving import die_with_parent, problem_of

PR_SET_DUMPABLE = 4
# Another attempt may succeed: the engine decides whether to pay for it.
RETRYABLE = (
    "RateLimitError",
    "Timeout",
    "APITimeoutError",
    "APIConnectionError",
    "ServiceUnavailableError",
    "InternalServerError",
    "MidStreamFallbackError",
)


class LlmProcess:
    """Answers "hello", "complete" and "price" over the frame socket."""

    def __init__(self) -> None:
        self._secrets = secrets_of(os.environ)
        self._spool = Path()
        self._prices: dict[str, tuple[float, float]] = {}
        self._dropped: dict[str, set[str]] = {}

    async def run(self) -> None:
        """Serve until the parent closes the socket."""
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(os.environ["FORGE_FD"])))
        tasks: set[asyncio.Task[None]] = set()
        while True:
            try:
                request = await read_stream(reader)
            except (EOFError, FrameError, ConnectionError):
                break
            task = asyncio.create_task(self._answer(request, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for task in tasks:
            task.cancel()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = request["id"]
        try:
            body = await self._handle(request["verb"], request.get("body"))
            frame = {"id": number, "body": to_json(body)}
        except Exception as error:  # noqa: BLE001 - the border: the engine waits for one answer to every request
            frame = {"id": number, "problem": to_json(problem_of(error))}
        with contextlib.suppress(ConnectionError):
            writer.write(encode(frame))
            await writer.drain()

    async def _handle(self, verb: str, body: Any) -> Any:
        if verb == "hello":
            self._spool = Path(body["spool"])
            self._prices = {model: (float(pair[0]), float(pair[1])) for model, pair in body.get("prices", {}).items()}
            version = await asyncio.to_thread(_import_litellm)
            return {"litellm": version}
        if verb == "price":
            return self._price(body["model"])
        if verb == "complete":
            return await self._complete(from_json(LlmRequest, body))
        raise KeyError(f"unknown verb {verb!r}")

    def _price(self, model: str) -> dict[str, Any]:
        """Dollars per token, or nulls: an unknown price is not zero."""
        if model in self._prices:
            return {"input": self._prices[model][0], "output": self._prices[model][1]}
        import litellm

        try:
            info = litellm.get_model_info(model)
        except Exception:  # noqa: BLE001 - LiteLLM raises plain Exception for a model it doesn't know
            return {"input": None, "output": None}
        return {"input": info.get("input_cost_per_token"), "output": info.get("output_cost_per_token")}

    async def _complete(self, request: LlmRequest) -> LlmReply:
        import litellm
        import openai

        started = time.monotonic()
        settings: dict[str, Any] = {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            **(request.extra or {}),
        }
        for name in self._dropped.get(request.model, set()):
            settings.pop(name, None)
        settings = {k: v for k, v in settings.items() if v is not None}
        if request.api_base:
            settings["api_base"] = request.api_base
            settings.setdefault("api_key", os.environ.get("FORGE_LLM_KEY", os.environ.get("OPENAI_API_KEY", "none")))
        if request.model in self._prices:
            settings["input_cost_per_token"], settings["output_cost_per_token"] = self._prices[request.model]
        try:
            call = litellm.acompletion(
                model=request.model,
                messages=[dict(m) for m in request.messages],
                timeout=request.timeout_s,
                max_retries=0,
                num_retries=0,
                **settings,
            )
            response = await asyncio.wait_for(call, request.timeout_s + 5)
            reply = self._replied(request, response, time.monotonic() - started)
        except (openai.OpenAIError, TimeoutError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            reply = self._failed(request, error, time.monotonic() - started)
            if type(error).__name__ == "UnsupportedParamsError" and "temperature" in settings:
                self._dropped.setdefault(request.model, set()).add("temperature")
        await asyncio.to_thread(write_reply, self._spool, reply)
        return reply

    def _replied(self, request: LlmRequest, response: Any, seconds: float) -> LlmReply:
        choice = response.choices[0]
        usage = getattr(response, "usage", None)
        prompt = getattr(usage, "prompt_tokens", None)
        completion = getattr(usage, "completion_tokens", None)
        price = self._price(request.model)
        cost = None
        if None not in (prompt, completion, price["input"], price["output"]):
            cost = prompt * price["input"] + completion * price["output"]
        text = _encodable(redact(choice.message.content or "", self._secrets))
        return LlmReply(
            request.call_id, "replied", text, str(choice.finish_reason or ""), prompt, completion, cost, seconds
        )

    def _failed(self, request: LlmRequest, error: BaseException, seconds: float) -> LlmReply:
        kind = type(error).__name__
        message = str(error) or ("no answer within the time limit" if isinstance(error, TimeoutError) else kind)
        line = _encodable(redact(" ".join(message.split())[:400], self._secrets))
        retryable = kind in RETRYABLE or isinstance(error, TimeoutError)
        return LlmReply(request.call_id, "failed", seconds=seconds, line=f"{kind}: {line}", retryable=retryable)


def _encodable(text: str) -> str:
    """Text without lone surrogates, which no file and no frame can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _import_litellm() -> str:
    """Import LiteLLM quietly and offline (its price map, catalogues and .env search stay off)."""
    os.environ |= {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_OFFLINE_MODE": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_COLOR": "1",
    }
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    import importlib.metadata

    return importlib.metadata.version("litellm")


def main() -> None:
    die_with_parent()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    asyncio.run(LlmProcess().run())


if __name__ == "__main__":
    main()
