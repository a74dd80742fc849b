#!/usr/bin/env python3
"""page.py: opens the page of `thinwire compare` in a real browser and checks it.

    page.py COMMAND [FOLDER]

COMMAND is the built `thinwire`. FOLDER, if given, keeps the screenshots. Without Chromium the
test is skipped (exit code 77) and says so.
"""
# SPDX-License-Identifier: Apache-2.0
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


class Browser:
    """Chromium without a window, controlled over a pipe by its DevTools protocol."""

    def __init__(self, program: str, folder: str) -> None:
        self.to_read, to_write = os.pipe()
        from_read, self.from_write = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4.
        start = f'exec 3<&{self.to_read} 4>&{self.from_write}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", start, program, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--force-color-profile=srgb", f"--user-data-dir={folder}",
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=[self.to_read, self.from_write], stderr=subprocess.DEVNULL)
        os.close(self.to_read)
        os.close(self.from_write)
        self.out, self.answers = os.fdopen(to_write, "wb"), os.fdopen(from_read, "rb")
        self.count, self.session, self.events = 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.call(domain + ".enable")

    def message(self) -> dict:
        text = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser ended")
            text += byte
        return json.loads(text)

    def call(self, method: str, **parameters) -> dict:
        self.count += 1
        request = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        self.out.write(json.dumps(request).encode() + b"\0")
        self.out.flush()
        while (answer := self.message()).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, path: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url="file://" + path)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def look(self, width: int, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def value(self, expression: str):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def errors(self) -> list:
        return [event for event in self.events
                if event.get("method") == "Runtime.exceptionThrown"
                or (event.get("method") == "Log.entryAdded"
                    and event["params"]["entry"]["level"] == "error")]

    def screenshot(self) -> bytes:
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(picture["data"])

    def end(self) -> None:
        self.session = None
        self.call("Browser.close")
        self.process.wait(timeout=20)


def comparison() -> dict:
    """The stored comparison, with evaluations and a second seed."""
    kept = json.loads(pathlib.Path(__file__).with_name("comparison.json").read_text())
    for run in kept["runs"]:
        for row in run["rows"][4::5]:
            row["accuracy"] = run["final"]["accuracy"] * (1 - 20 / (20 + row["step"]))
        other = [{key: value * (1.05 if key in ("loss", "seconds_total") else 1)
                  for key, value in row.items()} for row in run["rows"]]
        run["seed_rows"] = [run["rows"], other]
        run["final"]["seeds"] = 2
    kept["runs"][1]["label"] = "naive: " + "a_name_without_any_break" * 3
    return kept


def interpolated(points: list, x: float) -> float:
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise ValueError(x)


def check(good: bool, text: str) -> None:
    if not good:
        sys.exit("page.py: " + text)


def check_width(browser: Browser, width: int) -> None:
    wide = browser.value(
        "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right >"
        f" {width + 1}).map(e => e.outerHTML.slice(0, 120))")
    check(browser.value("document.documentElement.scrollWidth") <= width and not wide,
          f"at {width} pixels these reach beyond the page: {wide}")


def check_crosshair(browser: Browser, kept: dict) -> None:
    """Moves the pointer to the middle of accuracy against steps: half of the 600 steps."""
    plot = "[...document.querySelectorAll('figure.plot')][2]"
    check(browser.value(plot + ".querySelector('h3').textContent") == "Accuracy against steps",
          "the third chart is another one")
    end = browser.value(plot + ".querySelector('.readings b').textContent")
    check(end == "94.35 %", f"at the end the first run reads {end}")
    browser.value(plot + ".scrollIntoView({block: 'center'})")
    box = browser.value("(({left, top, width, height}) => [left, top, width, height])"
                        f"({plot}.querySelector('svg').getBoundingClientRect())")
    left, right, whole = browser.value(
        f"(svg => [...svg.dataset.plot.split(' ').map(Number), svg.viewBox.baseVal.width])"
        f"({plot}.querySelector('svg'))")
    x, y = box[0] + box[2] * (left + right) / 2 / whole, box[1] + box[3] / 2
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    where = browser.value(plot + ".querySelector('.where').textContent")
    check(where == "at step 300", f"the crosshair in the middle of 600 steps is {where}")
    read = browser.value(f"[...{plot}.querySelectorAll('.readings b')].map(b => b.textContent)")
    check(len(read) == len(kept["runs"]), f"of {len(kept['runs'])} runs it reads {read}")
    for run, text in zip(kept["runs"], read):
        points = [(row["step"], row["accuracy"]) for row in run["rows"] if "accuracy" in row]
        expected = 100 * interpolated(points, 300)
        check(abs(float(text.removesuffix(" %")) - expected) < 0.02,
              f"{run['label']} at step 300: expected {expected:.2f} %, got {text}")
    shown = f"getComputedStyle({plot}.querySelector('.cross')).visibility"
    check(browser.value(shown) == "visible", "the crosshair is not shown")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    check(browser.value(shown) == "hidden", "the crosshair stays when the pointer has left")


def look(browser: Browser, page: str, kept: dict, folder: pathlib.Path) -> None:
    browser.open(page)
    grounds = set()
    for width, dark in [(1200, False), (1200, True), (400, False), (400, True)]:
        browser.look(width, dark)
        check_width(browser, width)
        grounds.add(browser.value("getComputedStyle(document.body).backgroundColor"))
        picture = browser.screenshot()
        check(len(picture) > 50000, f"a screenshot of {len(picture)} bytes shows nothing")
        (folder / f"page-{width}-{'dark' if dark else 'light'}.png").write_bytes(picture)
    for width in [700, 1000]:
        browser.look(width)
        check_width(browser, width)
    check(len(grounds) == 2, f"light and dark have the same ground: {grounds}")
    browser.look(1200)
    check_crosshair(browser, kept)
    paper = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    (folder / "page.pdf").write_bytes(paper)
    check(not browser.errors(), f"the page has errors: {browser.errors()}")

    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    hits = browser.value("document.querySelectorAll('.hit title').length")
    check(hits > 100, f"without scripts {hits} points have tooltips")


def main() -> int:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print("page.py: skipped, since no Chromium is installed")
        return SKIPPED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        kept, folder = comparison(), pathlib.Path(scratch)
        (folder / "kept.json").write_text(json.dumps(kept))
        page = str(folder / "page.html")
        subprocess.run([sys.argv[1], "compare", "--from", folder / "kept.json", "--report", page],
                       check=True, stdout=subprocess.DEVNULL)
        browser = Browser(program, scratch + "/profile")
        try:
            look(browser, page, kept, pathlib.Path(sys.argv[2]) if sys.argv[2:] else folder)
        finally:
            browser.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
