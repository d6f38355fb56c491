"""A headless Chromium that tells what it asked for and what its console said."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_SECONDS = 30
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1360,900", "--disable-dev-shm-usage")
SCREENS = Path("build/pages")
"""Folder for a picture of every page that a run saw."""


def missing() -> str | None:
    """Return what this machine lacks for browser tests; None where they can run."""
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return (
        f"no {' and no '.join(lacks)} on the PATH (Debian: apt-get install chromium chromium-driver)" if lacks else None
    )


class Browser:
    """One window on a service."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        """Go to a page of the service."""
        self.driver.get(self.url + path)

    def sign_in(self, key: str) -> None:
        """Type the key where a person would."""
        self.driver.delete_all_cookies()
        self.open("/ui/login")
        self.find("#key").send_keys(key)
        self.press("Sign in")
        self.wait_for("h1", "Jobs")

    def find(self, selector: str) -> WebElement:
        """Return an element once it is there."""
        found = WebDriverWait(self.driver, PATIENCE_SECONDS).until(
            lambda driver: driver.find_elements(By.CSS_SELECTOR, selector), f"no {selector}"
        )
        return found[0]

    def press(self, words: str) -> None:
        """Press the first button or link of exactly these words."""
        path = f"//*[self::button or self::a or self::summary][normalize-space()='{words}']"
        WebDriverWait(self.driver, PATIENCE_SECONDS).until(lambda driver: driver.find_elements(By.XPATH, path), words)
        element = self.driver.find_element(By.XPATH, path)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def wait_for(self, selector: str, words: str) -> None:
        """Wait until an element holds these words, without any reload by the test."""

        def there(driver: Any) -> bool:
            text = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent).join('\\n')"
            return words in driver.execute_script(text, selector)

        WebDriverWait(self.driver, PATIENCE_SECONDS).until(there, f"{words!r} never stood in {selector}")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression of the page's script is true."""
        WebDriverWait(self.driver, PATIENCE_SECONDS).until(
            lambda driver: driver.execute_script(f"return Boolean({condition})"), f"never true: {condition}"
        )

    def text(self) -> str:
        """Return what the page says."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def picture(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        width = self.driver.execute_script("return window.innerWidth")
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        shot = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
        (SCREENS / f"{name}.png").write_bytes(base64.b64decode(data))

    def resize(self, width: int, height: int = 900) -> None:
        """Have the page laid out for a window of this width, a phone's too."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def theme(self, name: str) -> None:
        """Have the browser ask for a light or a dark page."""
        feature = {"features": [{"name": "prefers-color-scheme", "value": name}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)

    def complaints(self) -> list[str]:
        """Return what the console complained of since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def hosts(self) -> set[str]:
        """Return the hosts that were asked since the last call."""
        asked = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.add(urlsplit(message["params"]["request"]["url"]).netloc)
        return asked - {""}


@contextmanager
def chromium(url: str, downloads: Path) -> Iterator[Browser]:
    """Run a browser on the service at this address."""
    options = webdriver.ChromeOptions()
    for argument in FLAGS:
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    service = Service(shutil.which("chromedriver") or "", log_output=os.devnull)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver, url)
    finally:
        driver.quit()
