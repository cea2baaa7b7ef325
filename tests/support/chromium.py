"""A headless Chromium by its DevTools protocol, over a pipe: it opens pages, and finds their faults."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
# Elements that stick out of the window, and that no element around them scrolls or hides.
_CUT = """
(() => {
  const wide = document.documentElement.clientWidth, cut = [];
  for (const element of document.body.querySelectorAll('*')) {
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || box.right <= wide + 2 || box.left >= wide) continue;
    let around = element, held = false;
    for (; around && around !== document.body; around = around.parentElement) {
      const style = getComputedStyle(around);
      if (style.overflowX !== 'visible' || style.position === 'fixed') held = true;
      if (style.clip !== 'auto') held = true;
    }
    const name = element.tagName + '.' + element.className;
    if (!held) cut.push(name + ': ' + element.textContent.slice(0, 60));
  }
  return [document.documentElement.scrollWidth - wide, cut.slice(0, 3)];
})()
"""


class Chromium:
    """A browser with one page."""

    def __init__(self, read, write):
        self._read, self._write, self._number, self.errors = read, write, 0, []
        target = self._send("Target.createTarget", {"url": "about:blank"}, session=False)
        attached = {"targetId": target["targetId"], "flatten": True}
        self._session = self._send("Target.attachToTarget", attached, session=False)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def open(self, url, size, scheme="light"):
        """Opens a page in a window of a size, `phone` or `desktop`; scheme: `light` or `dark`."""
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self._send("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._send("Emulation.setEmulatedMedia", {"features": [feature]})
        self.errors.clear()
        self._loaded = False
        self._send("Page.navigate", {"url": url})
        while not self._loaded:
            self._event(self._message())

    def value(self, script):
        """What a script of JavaScript returns."""
        how = {"expression": script, "returnByValue": True, "awaitPromise": True}
        return self._send("Runtime.evaluate", how)["result"].get("value")

    def faults(self):
        """What is wrong with the page: errors of its console, and what is cut at its right edge."""
        too_wide, cut = self.value(_CUT)
        wide = [f"{too_wide} px wider than the window"] if too_wide > 0 else []
        return [*self.errors, *wide, *cut]

    def picture(self, path):
        data = self._send("Page.captureScreenshot", {"format": "png"})["data"]
        path.write_bytes(base64.b64decode(data))

    def _send(self, method, parameters=None, session=True):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                return answer["result"]
            self._event(answer)

    def _message(self):
        parts = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser has ended"
            parts += byte
        return json.loads(parts)

    def _event(self, message):
        kind, fields = message.get("method"), message.get("params", {})
        self._loaded = getattr(self, "_loaded", False) or kind == "Page.loadEventFired"
        if kind == "Runtime.exceptionThrown":
            self.errors.append(fields["exceptionDetails"]["text"])
        if kind == "Log.entryAdded" and fields["entry"]["level"] == "error":
            self.errors.append(f"{fields['entry']['text']} {fields['entry'].get('url', '')}")
        if kind == "Runtime.consoleAPICalled" and fields["type"] == "error":
            self.errors.append(str([one.get("value") for one in fields["args"]]))


@contextmanager
def browser():
    """A browser; its profile is deleted behind it, but for what a process of it writes while it ends."""
    to_read, to_write = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command = [PROGRAM, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        shell = f'exec "$@" 3<&{to_read[0]} 4>&{to_write[1]}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *command],
            pass_fds=(to_read[0], to_write[1]),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read[0])
        os.close(to_write[1])
        try:
            with os.fdopen(to_write[0], "rb") as read, os.fdopen(to_read[1], "wb") as write:
                yield Chromium(read, write)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes of its pages
            process.wait()
