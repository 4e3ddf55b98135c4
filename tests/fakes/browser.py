"""A headless Chromium for tests of pages, spoken to over a pair of pipes.

Nothing but the browser is needed: its debugging protocol is one JSON object after another, each
ended by a zero byte. A page remembers every request it made and every error it met, so a test can
say that there were none.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fetch_browser import Unavailable, browser_path

_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--no-first-run",
)
# Puts the pipes where the protocol wants them: 3 to read, 4 to write.
_EXEC = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
_ANSWER_S = 30.0
_MAX_ANSWER_BYTES = 64 << 20


async def find_browser() -> str:
    """Path of a Chromium; skips the test, and says what is missing, where there is none."""
    try:
        return str(await asyncio.to_thread(browser_path))
    except Unavailable as error:
        pytest.skip(f"NO BROWSER, THE STATUS PAGE IS NOT LOOKED AT: {error}")


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return await self._browser.call(method, self._session, **parameters)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Waits until an expression is true; gives up after seconds."""
        for _ in range(300):
            if await self.evaluate(f"Boolean({expression})"):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never true: {expression}")

    async def text(self, selector: str) -> str:
        """What an element says."""
        return str(await self.evaluate(f"document.querySelector({selector!r}).textContent"))

    async def click(self, selector: str) -> None:
        """A click with the mouse into the middle of an element."""
        x, y = await self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); "
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def press(self, key: str) -> None:
        """A key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=_KEYS[key],
            )

    async def resize(self, width: int, height: int = 900, *, scale: float = 1.0) -> None:
        """The size of the window, in pixels of the page."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    async def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def picture(self, path: Path, *, height: int | None = None) -> None:
        """Writes the page as PNG: all of it, or so many of its upper pixels."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "scale": 1, "width": size["width"]}
        clip["height"] = height or size["height"]
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        """An event of this tab."""
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(str(parameters["args"]))


class Browser:
    """A running browser; belongs to one event loop."""

    def __init__(self, commands: int) -> None:
        self._commands = commands
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; AssertionError if the browser refuses it."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(_ANSWER_S):
            return await answer

    async def open(self, url: str, *, width: int = 1280, scheme: str = "light") -> Page:
        """A new tab with this page, begun to load."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        await page.resize(width)
        await page.prefer(scheme)
        await page.call("Page.navigate", url=url)
        await page.until("location.href !== 'about:blank' && document.readyState === 'complete'")
        return page

    async def listen(self, answers: asyncio.StreamReader) -> None:
        """Takes what the browser says until it ends."""
        while True:
            try:
                raw = await answers.readuntil(b"\0")
            except asyncio.IncompleteReadError:
                return
            message = json.loads(raw[:-1])
            if "id" in message:
                waiting = self._waiting.pop(message["id"])
                if waiting.done():
                    continue
                if "error" in message:
                    waiting.set_exception(AssertionError(message["error"]))
                else:
                    waiting.set_result(message["result"])
            elif page := self._pages.get(message.get("sessionId", "")):
                page.take(message["method"], message["params"])


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser with a profile of its own; skips the test where there is none."""
    program = await find_browser()
    flags = [*_FLAGS, *(("--no-sandbox",) if os.geteuid() == 0 else ())]
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _EXEC, str(theirs_in), str(theirs_out), program, *flags),
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        answers = asyncio.StreamReader(limit=_MAX_ANSWER_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(answers), os.fdopen(ours_in, "rb")
        )
        made = Browser(ours_out)
        listening = asyncio.create_task(made.listen(answers))
        try:
            yield made
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await listening
            transport.close()
            os.close(ours_out)
