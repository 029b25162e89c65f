"""A headless Chromium with an empty profile, driven by Selenium, which scripts/test installs."""

import contextlib, json, shutil, sys, tempfile

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
]


@contextlib.contextmanager
def chromium(width, height):
    """A browser with a window of this size; it ends with the block."""
    # Selenium would download one.
    path = shutil.which("chromedriver") or sys.exit("there is no chromedriver: scripts/test installs it")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        for option in [*OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]:
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(path))
        try:
            # The page that the browser begins with has asked for much.
            driver.get("about:blank")
            requested(driver)
            resize(driver, width, height)
            yield driver
        finally:
            driver.quit()


def resize(driver, width, height, scale=1):
    """Gives the page this size, whatever the window has around it."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver, **features):
    """Lets the page see these preferences of its user: prefers_color_scheme="dark"."""
    named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})


def requested(driver):
    """The addresses that the page has asked for since this was called last."""
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
