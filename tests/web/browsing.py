"""A headless Chromium that opens pages from the disk, and what it says of them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDE, PHONE = (1280, 900), (390, 844)
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
_EVERYTHING = """
const last = document.querySelector("nav li:last-child a"); // it builds all that is above its section
last.addEventListener("click", (event) => event.preventDefault(), { once: true });
last.click();
for (const one of document.querySelectorAll("details")) one.open = true;
return document.querySelectorAll("section").length;
"""


def missing() -> str:
    """Why no page can be opened here; empty where one can."""
    if not (_chromium() and shutil.which("chromedriver")):
        return "no Chromium here: apt-get install chromium chromium-driver"
    try:
        import selenium  # noqa: F401
        import selenium_axe_python  # noqa: F401
    except ImportError as error:
        return f"no {error.name} here: pip install 'prunewald[dev]'"
    return ""


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One Chromium, for one page after the other."""

    def __init__(self, driver: Any, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads

    def open(self, path: Path, size: tuple[int, int] = WIDE, scheme: str = "light", everything: bool = True) -> None:
        """Open a page, by default with all its sections built."""
        width, height = size
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        seen = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", seen)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what was said of another page
        self.driver.get(path.resolve().as_uri())
        if everything:
            assert self.run(_EVERYTHING) == 6
            self.settle()

    def run(self, script: str, *args: Any) -> Any:
        """What a script gives."""
        return self.driver.execute_script(script, *args)

    def settle(self) -> None:
        """Wait until what was asked for is drawn, two frames on."""
        wait = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)));"
        self.driver.execute_async_script(wait)

    def complaints(self) -> list[str]:
        """What the console says since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened, the page's own first."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2.2 AA."""
        import selenium_axe_python

        self.run((Path(str(selenium_axe_python.__file__)).parent / "axe-core/axe.min.js").read_text(encoding="utf-8"))
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        found = self.driver.execute_async_script(
            "const [tags, done] = arguments; axe.run({ runOnly: { type: 'tag', values: tags } }).then(done)", tags
        )
        return [f"{one['id']}: {node['html'][:120]}" for one in found["violations"] for node in one["nodes"]]


@contextmanager
def chromium(downloads: Path) -> Iterator[Browser]:
    """A Chromium that writes what it saves into a folder."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(_chromium())
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(120)  # of a busy machine
    try:
        allowed = {"behavior": "allow", "downloadPath": str(downloads)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
        yield Browser(driver, downloads)
    finally:
        driver.quit()
