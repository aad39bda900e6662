"""A real Chromium, driven by its own driver."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

WAIT_S = 30
DESK, PHONE = (1100, 1000), (375, 740)


@contextmanager
def browsing(
    size: tuple[int, int] = DESK, *, is_dark: bool = False, has_cookies: bool = True
) -> Iterator["Browser"]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.add_argument("--lang=en")
    if not has_cookies:  # nor any other storage
        blocked = {"profile.default_content_setting_values.cookies": 2}
        options.add_experimental_option("prefs", blocked)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = Chrome(options=options, service=ChromeService(driver))
    try:
        # A window is never narrower than 500; what a page sees can be.
        opened.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield Browser(opened)
    finally:
        opened.quit()


class Browser:
    """What a person does with the page."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)
        self.wait("[role=tab]")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return [one.text for one in found]

    def wait(self, selector: str) -> WebElement:
        """Until such an element is there and shows something."""
        redrawn = [StaleElementReferenceException]
        waiting = WebDriverWait(self.driver, WAIT_S, ignored_exceptions=redrawn)
        waiting.until(lambda _: any(self.texts(selector)))
        return self.find(selector)

    def wait_for(self, selector: str, begin: str) -> None:
        """Until the first such element's text begins so."""
        redrawn = [StaleElementReferenceException]
        waiting = WebDriverWait(self.driver, WAIT_S, ignored_exceptions=redrawn)
        waiting.until(lambda _: (self.texts(selector) or [""])[0].startswith(begin))

    def choose(self, selector: str, value: str) -> None:
        Select(self.find(selector)).select_by_value(value)

    def tab(self, verb: str) -> None:
        self.find(f"#tab-{verb}").click()

    def write(self, field: str, text: str) -> None:
        area = self.find(f"#field-{field}")
        area.clear()
        area.send_keys(text)

    def ask(self, awaited: str = "#result > *") -> WebElement:
        self.find("#run").click()
        return self.wait(awaited)

    def width(self) -> tuple[int, int]:
        """Of what there is, and of the window."""
        script = "return [document.documentElement.scrollWidth, innerWidth]"
        needed, there = self.driver.execute_script(script)
        return needed, there

    def complaints(self) -> list[str]:
        """What the browser itself found wrong; answers that are refusals do not count."""
        lines = [entry["message"] for entry in self.driver.get_log("browser")]
        return [line for line in lines if "the server responded with a status of" not in line]
