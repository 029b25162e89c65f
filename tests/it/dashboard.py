"""The dashboard in a browser: what it shows while requests arrive, and what its buttons do.

Arguments: the address of an admin listener, that of one with the token "the-token", that of one with 50 limits, that of one without
limits, a text that must never become HTML, and of the first gateway the configuration file and the number of its process.
"""

import http.client, json, os, re, signal, sys, time
from pathlib import Path

from browser import chromium, prefer, requested, resize
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

ADMIN, GUARDED, MANY, NONE, HOSTILE, CONFIG, PROCESS = sys.argv[1:]

# What the gateway may answer beyond what it answers in this test: keys that clients have chosen.
KEYS = """
const asked = window.fetch;
window.fetch = async (path, options) => {
  const response = await asked(path, options);
  if (path !== "/api/limits") return response;
  const body = await response.json();
  const first = body.limits.find((limit) => limit.name === "per-key");
  first.most_refused = [{ key: HOSTILE, count: 12345, error: 0 }, { key: "bu…sy", count: 7, error: 2 }, { key: "bu…sy", count: 6, error: 0 }];
  const model = { model: HOSTILE, input: 34567, cached: 8, output: 9, settled: 45678 };
  first.tokens = { reserved: 98765, settled: 45678, estimated: 2, cut: 1, models: [model] };
  first.bans = [{ key: HOSTILE, until: "2126-01-02T03:04:05Z", times: 3 }];
  first.most_busy = [{ key: "busy", count: 99, error: 0 }];
  return new Response(JSON.stringify(body), { status: response.status });
};
"""


def ask(method, path):
    """What the API of the first gateway answers: the status and the body."""
    connection = http.client.HTTPConnection(ADMIN)
    connection.request(method, path)
    response = connection.getresponse()
    text = response.read().decode()
    return response.status, json.loads(text) if text.startswith("{") else text


class Page:
    def __init__(self, driver):
        self.driver = driver

    def open(self, address):
        self.driver.get(f"http://{address}/")

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        # At once, since elements may be replaced meanwhile.
        return self.driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def wait(self, what, wanted, seconds=15):
        end = time.monotonic() + seconds
        while not wanted():
            if time.monotonic() > end:
                body = self.driver.execute_script("return document.body.innerText")
                raise AssertionError(f"{what}: not within {seconds} s. The page:\n{body}")
            time.sleep(0.05)

    def wait_text(self, selector, wanted):
        self.wait(f"{selector} has {wanted!r}", lambda: wanted in self.text(selector))

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self):
        return self.driver.execute_script("return document.activeElement.id")

    def tab_to(self, name):
        """Moves the focus with the tabulator only."""
        for _ in range(60):
            self.press(Keys.TAB)
            if self.focused() == name:
                visible = "return getComputedStyle(document.activeElement).outlineStyle"
                assert self.driver.execute_script(visible) != "none", f"the focus on {name} is not visible"
                return
        raise AssertionError(f"the tabulator does not reach {name}")


def number(text):
    return float(text.replace(",", ""))


def follows(page):
    page.open(ADMIN)
    page.wait_text("#state-text", "ready")
    page.wait("requests are counted", lambda: number(page.text("#tile-requests .big").replace("–", "0")) > 5)
    page.wait_text("#limits .limit-name", "per-key")
    page.wait_text("#limits .limit-name", "5/h tokens per header:x-api-key")
    refused = page.text("#limits dl div:nth-child(3) dd")
    page.wait("refusals grow", lambda: number(page.text("#limits dl div:nth-child(3) dd")) > number(refused))
    page.wait("the chart is drawn", lambda: len(page.find("#requests-chart path.line.limited").get_attribute("d")) > 40)
    label = page.find("#requests-chart svg").get_attribute("aria-label")
    assert "over a limit" in label and "at most" in label, label
    page.wait("bars are drawn", lambda: page.find("#limits .bars path").get_attribute("d") != "")
    page.wait_text("#upstreams", "healthy")
    page.wait_text("#tile-store", "memory")
    page.wait_text("#config", "limits")


def certificates(page):
    """Those that expire first, and what to look after."""
    shown = lambda: [item.text.replace("\n", " ") for item in page.driver.find_elements("css selector", "#certificates li")]
    page.wait("certificates are shown", lambda: len(shown()) == 3)
    for item, left, name in zip(shown(), ["▲ expired", "▲ 9 d", "99 d"], ["over.test", "soon.test", "later.test"]):
        assert item.startswith("valid until ") and f" {left}" in item and item.endswith(f"{name}.pem, {name}"), item


def keys_of_clients(page):
    page.wait_text("#limits .limit-keys", HOSTILE)
    rows = lambda: page.driver.execute_script("return [...document.querySelectorAll('#limits > li:first-child tbody')].map((body) => body.rows.length)")
    assert "12,345" in page.text("#limits .limit-keys") and "≈ 7" in page.text("#limits .limit-keys")
    # Overrides, of which there is none, have a table too.
    assert rows() == [1, 1, 0, 3, 1], rows()
    used = page.text("#limits .limit-tokens")
    assert all(part in used for part in [HOSTILE, "34,567", "45,678 charged of 98,765 reserved", "2 responses estimated"]), used
    # The configuration has the text too.
    page.driver.execute_script("document.querySelectorAll('#config details').forEach((one) => { one.open = true; })")
    page.wait_text("#config", HOSTILE)
    page.driver.execute_script("document.querySelectorAll('#config details').forEach((one) => { one.open = false; })")
    banned = page.text("#limits .limit-bans")
    assert all(part in banned for part in [HOSTILE, "2126-01-0", "more than 10000 refusals within 1m"]), banned
    chosen = [found for found in page.driver.find_elements("css selector", "#limits .limit-keys button")]
    chosen[0].click()
    page.wait_text("#key-result", "The next request is admitted")
    assert page.find("#key-key").get_property("value") == HOSTILE
    page.wait_text("#key-rates tbody", "5/h")
    # Keys that are shown in part look alike.
    # Overrides, of which there is none, have a table too.
    assert rows() == [1, 1, 0, 3, 1], rows()


def by_keyboard(page):
    """Looks up a key, resets it, drains and reloads without a pointer."""
    page.open(ADMIN)
    page.wait_text("#state-text", "ready")
    page.wait("limits can be chosen", lambda: page.find("#key-limit").text != "")
    page.tab_to("key-key")
    page.press("busy", Keys.ENTER)
    page.wait_text("#key-result", "The next request is refused. A request passes in")
    page.wait_text("#key-rates tbody tr", "5/h")
    status, banned = ask("GET", "/api/limits/strict/bans")
    assert (status, [ban["key"] for ban in banned["bans"]]) == (200, ["scraper"]), banned
    page.wait_text("#limits > li:nth-child(2) .limit-bans", "scraper")
    page.find("#limits > li:nth-child(2) .limit-bans button").send_keys(Keys.ENTER)
    page.wait_text("#notice", "The ban of scraper is lifted")
    assert ask("GET", "/api/limits/strict/bans")[1] == {"bans": []}
    page.wait("it is not shown any more", lambda: not page.find("#limits > li:nth-child(2) .limit-bans").is_displayed())
    page.find("#notice button").send_keys(Keys.ENTER)
    page.driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    page.tab_to("key-reset")
    page.press(Keys.SPACE)
    page.wait_text("#key-result", "Its counters are reset, and it has no override.")
    page.find("#key-block").click()
    status, _ = ask("GET", "/api/limits/per-key/keys/busy")
    assert status == 200
    page.wait("the answer is shown", lambda: "reset" not in page.text("#key-result"))

    page.driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    page.tab_to("drain")
    page.press(Keys.ENTER)
    page.wait("it is asked for", lambda: page.find("#drain-dialog").is_displayed())
    assert ask("GET", "/readyz")[0] == 200, "it must not drain before it is confirmed"
    page.press(Keys.ESCAPE)
    page.wait("it is cancelled", lambda: not page.find("#drain-dialog").is_displayed())
    assert ask("GET", "/readyz")[0] == 200
    assert page.focused() == "drain"
    page.press(Keys.ENTER)
    page.wait("it is asked for", lambda: page.find("#drain-dialog").is_displayed())
    assert page.focused() == "drain-cancel", "the safe choice comes first"
    page.press(Keys.TAB, Keys.ENTER)
    page.wait_text("#state-text", "draining")
    assert ask("GET", "/readyz")[0] == 503
    page.wait_text("#drain", "End drain")
    page.find("#drain").send_keys(Keys.ENTER)
    page.wait_text("#state-text", "ready")
    assert ask("GET", "/readyz")[0] == 200

    before = Path(CONFIG).read_text()
    Path(CONFIG).write_text(before.replace("[limits.per-key]", f'[limits.per-key]\n"{HOSTILE}" = 1\nkeyy = 2'))
    page.find("#reload").send_keys(Keys.ENTER)
    page.wait_text("#notice", "The file is not valid")
    items = page.driver.find_elements("css selector", "#notice li")
    assert len(items) == 2 and all("gateway.toml:" in item.text for item in items), [item.text for item in items]
    assert "key" in items[1].find_element("class name", "help").text
    assert HOSTILE in page.text("#notice")
    page.wait_text("#reloads", "refused")
    page.wait_text("#reloads", HOSTILE)
    Path(CONFIG).write_text(before)
    page.find("#reload").send_keys(Keys.ENTER)
    page.wait_text("#notice", "is in force")
    assert page.focused() == "reload", "who uses the keyboard goes on from there"
    page.wait_text("#reloads", "applied")


def contrasts(page):
    """The lowest contrast of text to what is behind it, in this scheme (WCAG 2.2, success criterion 1.4.3)."""
    return page.driver.execute_script("""
      const parts = (color) => color.match(/[0-9.]+/g).map(Number);
      const light = (color) => {
        const [r, g, b] = parts(color).map((part) => { const x = part / 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
          const color = getComputedStyle(at).backgroundColor;
          if ((parts(color)[3] ?? 1) === 1) return color;
        }
        return getComputedStyle(document.documentElement).backgroundColor;
      };
      let worst = [99, ""];
      for (const element of document.querySelectorAll("body *")) {
        const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== "");
        if (!isText || element.closest("svg, :disabled, option, noscript") || element.getClientRects().length === 0) continue;
        const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 200)];
      }
      return worst;
    """)


def schemes_and_sizes(page):
    backgrounds = set()
    for scheme in ["light", "dark"]:
        prefer(page.driver, prefers_color_scheme=scheme)
        contrast, where = contrasts(page)
        assert contrast >= 4.5, f"{contrast:.2f} in {scheme}: {where}"
        backgrounds.add(page.find("body").value_of_css_property("background-color"))
    assert len(backgrounds) == 2, backgrounds
    for width, height in [(1920, 1080), (1280, 800), (390, 844)]:
        resize(page.driver, width, height)
        wide = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} wide in a window of {width}"
    resize(page.driver, 1280, 800)


def says_names(page):
    """Everything that can be operated has a name, and each table has headings."""
    unnamed = page.driver.execute_script("""
      const named = (element) => element.labels?.length > 0 || element.textContent.trim() !== "" || element.ariaLabel;
      return [...document.querySelectorAll("button, input, select, summary, svg[role=img], section, dialog")]
        .filter((element) => !named(element) && !element.getAttribute("aria-labelledby")).map((element) => element.outerHTML.slice(0, 200))
        .concat([...document.querySelectorAll("table")].filter((table) => !table.caption || !table.querySelector("thead th[scope=col]")).map((table) => table.id));
    """)
    assert unnamed == [], unnamed
    landmarks = page.driver.execute_script("return ['header', 'main', 'h1'].map((name) => document.querySelectorAll(name).length)")
    assert landmarks == [1, 1, 1], landmarks


def stays_in_place(page):
    """Nothing moves while numbers change."""
    places = "return ['#tile-store', '#limits', '#upstreams', '#store'].map((at) => document.querySelector(at).getBoundingClientRect().top)"
    before = page.driver.execute_script(places)
    seen = page.text("#time")
    page.wait("another event", lambda: page.text("#time") != seen)
    assert page.driver.execute_script(places) == before


def away_and_back(page):
    """The page says since when the gateway is silent, and follows it again without being asked."""
    os.kill(int(PROCESS), signal.SIGSTOP)
    try:
        page.wait_text("#state-text", "no data since")
        assert page.find("#drain").get_property("disabled") and "no data since" in page.driver.title
    finally:
        os.kill(int(PROCESS), signal.SIGCONT)
    page.wait_text("#state-text", "ready")
    assert not page.find("#drain").get_property("disabled")


def token(page):
    page.open(GUARDED)
    page.wait("the token is asked for", lambda: page.find("#token-dialog").is_displayed())
    page.wait("it can be typed at once", lambda: page.focused() == "token")
    page.press("wrong", Keys.ENTER)
    page.wait_text("#token-problem", "does not accept")
    page.press("the-token", Keys.ENTER)
    page.wait_text("#state-text", "ready")
    page.wait_text("#config", "limits")
    assert not page.find("#certificates-card").is_displayed(), "it has none"
    page.wait_text("#store-type", "in Valkey")
    page.wait_text("#store", "decided without Valkey")
    # The tab remembers it.
    page.driver.refresh()
    page.wait_text("#state-text", "ready")
    assert not page.find("#token-dialog").is_displayed()


def many(page):
    """Of 50 limits, those that refuse come first, and the others are folded; a filter finds any."""
    page.open(MANY)
    page.wait_text("#state-text", "ready")
    names = lambda at: [item.text for item in page.driver.find_elements("css selector", f"{at} > li .limit-name span")]
    page.wait("those that refuse are shown", lambda: names("#limits") == ["limit-40", "limit-07", "limit-23", "limit-11"])
    page.wait_text("#limits-quiet summary", "46 quiet limits")
    assert names("#limits-folded") == []
    high = page.driver.execute_script("return document.querySelector('#limits').closest('section').scrollHeight")
    assert high < 1300, f"the limits are {high} high"
    colour = lambda selector: page.find(selector).value_of_css_property("color")
    # An override shows a limit that has refused nothing; its zeros are not highlighted.
    override = page.text("#limits > li:nth-child(4) .limit-overrides")
    assert re.search(r"overrides.*partner100/s and 5000/d(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\dRemove$", override), override
    numbers = "#limits > li:nth-child({}) .limit-numbers div:nth-child(3) dd"
    weights = [page.find(numbers.format(number)).value_of_css_property("font-weight") for number in [1, 4]]
    assert weights == ["600", "400"] and colour(numbers.format(1)) != colour(numbers.format(4)), weights
    page.find("#limits-quiet summary").click()
    page.wait("they open", lambda: len(names("#limits-folded")) == 46)
    high = page.driver.execute_script("return document.documentElement.scrollHeight")
    assert high < 5000, f"all are {high} high"
    page.find("#limits-filter").send_keys("LIMIT-3")
    page.wait("it filters", lambda: sorted(names("#limits")) == [f"limit-3{number}" for number in range(10)])
    assert not page.find("#limits-quiet").is_displayed()
    page.find("#limits-filter").send_keys("x")
    page.wait("nothing is found", lambda: page.find("#limits-none").is_displayed())
    rows = [row.text.split() for row in page.driver.find_elements("css selector", "#routes tbody tr")]
    assert len(rows) == 50 and [rows[0][0], *rows[0][2:]] == ["/40", "9", "8", "0"], rows[:2]
    page.driver.execute_script("const filter = document.querySelector('#limits-filter'); filter.value = ''; filter.dispatchEvent(new Event('input'))")
    page.wait("all are back", lambda: len(names("#limits")) == 4)
    page.find("#limits > li:nth-child(4) .limit-more summary").click()
    page.find("#limits > li:nth-child(4) .limit-overrides button").click()
    page.wait_text("#notice", "The override of partner is removed")
    page.wait_text("#limits-quiet summary", "47 quiet limits")
    # Any limit can be looked up.
    Select(page.find("#key-limit")).select_by_visible_text("limit-23")
    page.find("#key-key").send_keys("*")
    page.find("#key-show").click()
    page.wait_text("#key-result", "The next request is refused")


def nothing(page):
    """Without limits there is nothing to look up."""
    page.open(NONE)
    page.wait_text("#limits-empty", "No route uses a limit.")
    page.wait_text("#config", "routes")
    assert not page.find("#key-card").is_displayed() and page.find("#limits-empty").is_displayed()


def check_log(driver, but=()):
    """No error in the console, and no request to elsewhere."""
    errors = [entry for entry in driver.get_log("browser") if not any(text in entry["message"] for text in but)]
    assert errors == [], errors
    own = (f"http://{ADMIN}/", f"http://{GUARDED}/", f"http://{MANY}/", f"http://{NONE}/", "data:image/svg+xml,")
    elsewhere = [url for url in requested(driver) if not url.startswith(own)]
    assert elsewhere == [], elsewhere
    assert "broken" not in driver.title
    assert driver.execute_script("return document.querySelectorAll('body img').length") == 0


with chromium(1280, 800) as driver:
    page = Page(driver)
    script = KEYS.replace("HOSTILE", json.dumps(HOSTILE))
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    for step in [follows, certificates, keys_of_clients, schemes_and_sizes, says_names, stays_in_place]:
        step(page)
        check_log(driver)
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    by_keyboard(page)
    # The browser itself notes each answer that is no success.
    check_log(driver, but=["status of 422", "status of 405"])
    away_and_back(page)
    check_log(driver)
    many(page)
    nothing(page)
    check_log(driver)
    token(page)
    check_log(driver, but=["status of 401"])
print("done")
