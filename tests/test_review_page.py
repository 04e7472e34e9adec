"""The review page in a real browser: one session from opening it to exporting what came of it."""

import os
import time

import numpy as np
import pytest

from browser import find_reason_to_skip, open_browser
from reviewing import PATIENCE_S, get, save_world, start_server
from starfc.export import final_labels
from starfc.journal import name_journal, read_book
from starfc.labels import load_labels

REASON = find_reason_to_skip()
if REASON is not None and os.environ.get("STARFC_NEEDS_BROWSER") == "1":
    raise RuntimeError(f"STARFC_NEEDS_BROWSER is set, but {REASON}")
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no browser tests: {REASON}")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("page")
    clusters, features = save_world(folder)
    with start_server(clusters, features) as (_, url), open_browser() as driver:
        yield driver, url, clusters


class Page:
    """The page as a person meets it: what is there, keys, clicks."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, view=""):
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#{view}")
        self.wait("return document.querySelector('#summary').textContent !== ''")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, *arguments):
        """Wait until a script returns something true, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = self.run(script, *arguments)
            if found:
                return found
            time.sleep(0.03)
        raise AssertionError(
            f"never true: {script}; toast: {self.run('return document.querySelector(`#toast`).textContent')}"
        )

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def click(self, selector):
        """Click what a selector finds; the page may draw it anew between the finding and the click."""
        from selenium.common.exceptions import StaleElementReferenceException

        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.wait("return document.querySelector(arguments[0])", selector)
            try:
                return found.click()
            except StaleElementReferenceException:
                assert time.monotonic() < deadline, f"{selector} never stays"

    def labels(self):
        return self.wait(
            "const found = [...document.querySelectorAll('#wall .card')].map((card) => Number(card.dataset.label));"
            "return found.length ? found : null"
        )

    def cards(self):
        """Return (label, name, size) of the cards in sight."""
        self.labels()
        return self.run(
            "return [...document.querySelectorAll('#wall .card')].map((card) => [Number(card.dataset.label),"
            "card.querySelector('b').textContent,"
            "Number(card.querySelector('.line span').lastChild.textContent)]).sort()"
        )

    def download(self, name, folder):
        """Save a file by the export dialog and read the labels in it."""
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
        self.press("e")
        self.click(f"dialog a[download='{name}']")
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / name).exists():
            assert time.monotonic() < deadline, f"{name} was never saved"
            time.sleep(0.03)
        self.press("\ue00c")
        return load_labels(folder / name)

    def actions(self):
        return get(self.url, "api/summary")["n_actions"]

    def wait_for_actions(self, count):
        deadline = time.monotonic() + PATIENCE_S
        while self.actions() != count:
            assert time.monotonic() < deadline, f"{self.actions()} actions, not {count}"
            time.sleep(0.03)

    def complaints(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture
def page(world):
    driver, url, _ = world
    made = Page(driver, url)
    yield made
    assert made.complaints() == []


def test_a_session(page, world, tmp_path):
    _, _, clusters = world
    first = load_labels(clusters)
    expected = first.copy()
    page.open("wall")
    assert page.labels()[:3] == [0, 3, 6]
    assert "240 faces · 30 people" in page.run("return document.querySelector('#summary').textContent")
    assert page.wait(
        "return [...document.querySelectorAll('#wall img')].every((image) => image.complete && image.naturalWidth)"
    )

    # scroll to the end: other clusters are drawn, only those in sight
    page.run("document.querySelector('#wall').scrollTop = 1e9")
    page.wait("return [...document.querySelectorAll('#wall .card')].some((card) => Number(card.dataset.label) > 100)")
    assert page.run("return document.querySelectorAll('#wall .cell').length") <= 30
    page.run("document.querySelector('#wall').scrollTop = 0")

    # select two with the keyboard and merge them
    page.press("\ue015", "x", "\ue014", "x", "m")  # arrow down shows where one is
    page.wait_for_actions(1)
    expected[expected == 3] = 0  # of two clusters of one size the lower number stays

    # open a cluster and split it
    page.open("cluster/9")
    page.wait("return document.querySelectorAll('#faces .tile').length === 16")
    assert page.wait("return document.querySelectorAll('.near').length") == 12
    page.press("o", "s")
    page.wait("return document.querySelectorAll('dialog .part').length === 2")
    page.press("\ue007")
    page.wait_for_actions(2)
    page.wait("return document.querySelectorAll('#faces .tile').length === 8")
    truth = load_labels(clusters.with_name("truth.csv"))
    people = np.unique(truth[first == 9])
    assert len(people) == 2  # which of the two keeps the label is the page's choice, who is together is not
    kept = final_labels(read_book(name_journal(clusters), first))[truth == people[0]][0]
    gone = people[1] if kept == 9 else people[0]
    expected[(truth == gone) & (first == 9)] = first.max() + 1

    # name it; the name is text wherever it is shown
    page.press("n")
    page.press(*"<b>Ann</b>", "\ue007")
    page.wait_for_actions(3)
    page.press("\ue00c", "1")
    page.wait("return [...document.querySelectorAll('#wall b')].some((name) => name.textContent === '<b>Ann</b>')")

    # move one face to a person of its own, and one out
    page.open("cluster/12")
    page.wait("return document.querySelectorAll('#faces .tile').length === 16")
    row = page.run("return Number(document.querySelector('#faces .tile').dataset.row)")
    page.click("#faces .tile")
    page.press("p")
    page.wait_for_actions(4)
    page.wait("return document.querySelectorAll('#faces .tile').length === 15")
    expected[row] = first.max() + 2  # new people are numbered on
    row = page.run("return Number(document.querySelector('#faces .tile').dataset.row)")
    page.click("#faces .tile")
    page.press("d")
    page.wait_for_actions(5)
    expected[row] = -1

    np.testing.assert_array_equal(final_labels(read_book(name_journal(clusters), first)), expected)
    # the wall after a reload is the wall before; what the export dialog saves is what is expected
    page.open("wall")
    seen = page.cards()
    page.open("wall")
    assert page.cards() == seen and ["<b>Ann</b>", 8] in [card[1:] for card in seen]
    np.testing.assert_array_equal(page.download("labels.csv", tmp_path), expected)
    np.testing.assert_array_equal(page.download("labels.npy", tmp_path), expected)


def test_questions_undo_and_reload(page, world):
    _, url, clusters = world
    first = load_labels(clusters)
    before = page.actions()
    start = read_book(name_journal(clusters), first)
    page.open("questions")
    for number in range(10):
        page.wait("return window.shown = document.querySelector('.pair')")
        page.press("y" if number % 3 == 0 else "n")
        page.wait_for_actions(before + number + 1)
        page.wait("return !window.shown.isConnected && document.querySelector('.half img')")
    answered = read_book(name_journal(clusters), first)
    assert len(answered.answers) >= len(start.answers) + 5

    # reload: the same state
    page.open("history")
    page.wait("return document.querySelectorAll('#history div').length >= 10")
    assert get(url, "api/summary")["n_answers"] == len(answered.answers)

    # undo everything: the labels of the file; redo everything: the answers again
    count = page.actions()
    while get(url, "api/summary")["can_undo"]:  # the button follows a moment later
        page.press("u")
        count += 1
        page.wait_for_actions(count)
        page.wait("return !document.querySelector('#redo').disabled")
    np.testing.assert_array_equal(read_book(name_journal(clusters), first).labels, first)
    while get(url, "api/summary")["can_redo"]:
        page.press("r")
        count += 1
        page.wait_for_actions(count)
        page.wait("return !document.querySelector('#undo').disabled")
    again = read_book(name_journal(clusters), first)
    np.testing.assert_array_equal(again.labels, answered.labels)
    assert (again.names, again.answers) == (answered.names, answered.answers)


def test_moving_to_someone_by_name_and_skipping(page, world):
    _, _, clusters = world
    page.open("cluster/18")
    page.wait("return document.querySelectorAll('#faces .tile').length")
    before, row = page.actions(), page.run("return Number(document.querySelector('#faces .tile').dataset.row)")
    page.click("#faces .tile")
    page.press("g")
    page.wait("return document.querySelectorAll('dialog .choice').length === 12")
    page.press(*"24")
    page.wait("return document.querySelectorAll('dialog .choice').length === 1")
    page.press("\ue007")
    page.wait_for_actions(before + 1)
    assert read_book(name_journal(clusters), load_labels(clusters)).labels[row] == 24
    page.open("questions")
    asked = page.wait("return document.querySelector('.half img')?.src")
    page.press("s")
    page.wait_for_actions(before + 2)
    page.wait("const image = document.querySelector('.half img'); return image && image.src !== arguments[0]", asked)
    page.press("u")
    page.wait_for_actions(before + 3)
    page.wait("return document.querySelector('.half img')?.src === arguments[0]", asked)
    page.press("u")
    page.wait_for_actions(before + 4)
    assert read_book(name_journal(clusters), load_labels(clusters)).labels[row] == 18


def test_the_same_wall_from_another_server(world, tmp_path):
    driver, _, _ = world
    clusters, features = save_world(tmp_path)
    walls = []
    for number in range(2):
        with start_server(clusters, features) as (_, url):
            page = Page(driver, url)
            page.open("wall")
            if not number:
                page.labels()
                page.press("\ue015", "x", "\ue014", "x", "m")
                page.wait_for_actions(1)
                page.open("wall")
            walls.append(page.cards())
            assert page.complaints() == []
            driver.get("about:blank")
    assert walls[0] == walls[1] and [0, "person 0", 32] in walls[0]


def test_search_strictness_and_help(page):
    page.open("wall")
    page.labels()
    page.press("/")
    page.press(*"27")
    page.wait("return document.querySelectorAll('#wall .card').length === 1")
    page.press("\ue00c")
    page.press("?")
    page.wait("return document.querySelector('dialog').open && document.querySelectorAll('dialog kbd').length > 10")
    page.press("\ue00c")
    page.wait("return !document.querySelector('dialog').open")
    before = page.actions()
    page.press("t")
    page.wait("return document.querySelector('dialog input[type=range]')")
    page.run(
        "const slider = document.querySelector('dialog input'); slider.value = 0.6;"
        "slider.dispatchEvent(new Event('input'))"
    )
    page.wait("return /about [0-9]+ people there, [0-9]+ now/.test(document.querySelector('dialog').textContent)")
    page.click("dialog button.main")
    page.wait_for_actions(before + 1)
    page.wait("return !document.querySelector('dialog').open")
    page.press("u")
    page.wait_for_actions(before + 2)


ESCAPE, ENTER = "\ue00c", "\ue007"


def test_escape_leaves_a_field_and_nothing_else(page):
    page.open("wall")
    page.labels()
    page.press("\ue015", "x", "/")  # one is selected
    page.press(*"zzz")
    page.wait("return document.querySelector('#main .empty')?.checkVisibility()")
    page.press(ESCAPE)
    page.wait("return document.querySelectorAll('#wall .card').length > 5")
    assert page.run("return document.querySelector('.bar input').value") == ""
    assert not page.run("return document.querySelector('#main .empty').checkVisibility()")
    assert page.run("return document.activeElement.id") == "wall"
    assert page.run("return document.querySelectorAll('.chosen').length") == 1
    page.press("/")
    page.press(*"27")
    page.wait("return document.querySelectorAll('#wall .card').length === 1")
    page.press(ENTER)  # leaves the field as it is
    assert page.run("return [document.activeElement.id, document.querySelector('.bar input').value]") == ["wall", "27"]
    before = page.actions()
    page.open("cluster/21")
    page.wait("return document.querySelectorAll('#faces .tile').length")
    page.press("n")
    page.press(*"Somebody", ESCAPE)
    assert page.run("return [location.hash, document.querySelector('.title input').value]") == ["#cluster/21", ""]
    assert page.actions() == before  # not named
    page.press(ESCAPE)
    page.wait("return location.hash === '#wall'")


def test_nobody_found_can_be_left_again(page):
    page.open("wall")
    page.labels()
    page.press("/")
    page.press(*"nobody at all", ENTER)
    page.wait("return document.querySelector('#main .empty').checkVisibility()")
    page.click("#main .empty button")
    page.wait("return document.querySelectorAll('#wall .card').length > 5")
    assert page.run("return document.querySelector('.bar input').value") == ""


def test_history_strikes_out_what_was_taken_back(page):
    page.open("cluster/24")
    page.wait("return document.querySelectorAll('#faces .tile').length")
    before = page.actions()
    for name in ("First", "Second"):
        page.press("n")
        page.press(*name, ENTER)
        before += 1
        page.wait_for_actions(before)
    page.press("3")
    page.wait("return document.querySelector('#history div')")
    page.press("u")
    page.wait_for_actions(before + 1)
    page.wait("return document.querySelector('#history div:nth-of-type(2)').className === 'undone'")
    page.press("1")
    page.labels()
    page.press("\ue015", "n", *"Third", ENTER)
    page.wait_for_actions(before + 2)
    page.press("3")
    rows = page.wait(
        "const rows = [...document.querySelectorAll('#history div')].slice(0, 4);"
        "return rows.length === 4 && rows.map((row) => [row.lastChild.textContent, row.className])"
    )
    assert [row[1] for row in rows] == ["", "", "undone", ""] and "Second" in rows[2][0]
    page.press("u", "u")
    page.wait_for_actions(before + 4)


def test_a_server_that_is_gone_and_a_tab_that_is_old(world, tmp_path):
    driver, _, _ = world
    clusters, features = save_world(tmp_path)
    toast = "const toast = document.querySelector('#toast'); return toast.className === 'on bad' && toast.textContent"
    with start_server(clusters, features) as (process, url):
        page = Page(driver, url)
        page.open("wall")
        page.labels()
        process.kill()
        process.wait()
        page.press("\ue015", "x", "\ue014", "x", "m")
        assert "has stopped. Nothing is lost: run the same starfc review" in page.wait(toast)
        page.press("3")
        time.sleep(0.5)
        assert "has stopped" in page.run(toast)
        page.press("1")
    port = url.split(":")[2].split("/")[0]
    with start_server(clusters, features, "--port", port):
        page.press("2")
        page.wait("return document.querySelector('#questions')?.textContent.includes('an earlier starfc review')")
        page.press("3")
        page.wait("return document.querySelector('#toast').textContent.includes('an earlier starfc review')")
        driver.get("about:blank")
        driver.get(url)
        assert "an earlier starfc review" in page.run("return document.body.textContent")
        driver.get("about:blank")
    driver.get_log("browser")  # the browser itself notes what it could not load


def test_nothing_to_undo_is_no_failure(page):
    page.open("history")
    page.wait("return document.querySelector('#history')")
    while get(page.url, "api/summary")["can_redo"]:
        before = page.actions()
        page.press("r")
        page.wait_for_actions(before + 1)
    page.press("r")
    page.wait("return document.querySelector('#toast').textContent === 'there is nothing to redo'")


def test_steps_are_told_in_the_order_they_were_taken(page):
    page.open("cluster/0")
    page.wait("return document.querySelectorAll('#faces .tile').length > 1")
    before = page.actions()
    page.click("#faces .tile")
    page.press("d")
    page.wait_for_actions(before + 1)
    page.press("u")
    page.wait_for_actions(before + 2)  # an undo is an action
    page.wait("return document.querySelector('#toast').textContent.startsWith('undo: ')")
    # The server has long redone it when the page is told.
    page.run(
        "const now = window.fetch;"
        "window.fetch = async (path, options) => {"
        "  const answer = await now(path, options);"
        "  if (path === 'api/do') await new Promise((done) => setTimeout(done, 700));"
        "  return answer;"
        "};"
        "window.told = [];"
        "new MutationObserver(() => window.told.push(document.querySelector('#toast').textContent))"
        "  .observe(document.querySelector('#toast'), { childList: true });"
    )
    page.press("r", "r")
    told = page.wait("return window.told.length >= 2 && window.told")
    assert told[0].startswith("redo: ")
    assert told[1] == "there is nothing to redo"
    page.press("u")
    page.wait_for_actions(before + 4)


def test_faces_that_were_left_out(page, world):
    _, url, _ = world
    page.open("cluster/27")
    page.wait("return document.querySelectorAll('#faces .tile').length > 4")
    before, people = page.actions(), get(url, "api/summary")["n_clusters"]
    for tile in (1, 2):
        page.click(f"#faces .cell:nth-child({tile}) .tile")
    page.press("d")
    page.wait_for_actions(before + 1)
    page.press("1")
    page.click(".bar button:not([hidden])")
    page.wait("return location.hash === '#cluster/-2' && document.querySelectorAll('#faces .tile').length >= 2")
    page.click("#faces .tile")
    page.run(
        "[...document.querySelectorAll('.bar button')].find((one) => one.textContent === 'Each a person (1)').click()"
    )
    page.wait_for_actions(before + 2)
    assert get(url, "api/summary")["n_clusters"] == people + 1
    page.press("u", "u")
    page.wait_for_actions(before + 4)
    page.wait("return location.hash !== '#cluster/-2' && document.querySelector('#faces .tile')")


def test_a_phone(page):
    page.driver.set_window_size(390, 844)
    for view, sign in (("wall", "#wall .card"), ("cluster/15", "#faces .tile"), ("questions", ".half img")):
        page.open(view)
        page.wait("return document.querySelector(arguments[0])", sign)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), view
    page.driver.set_window_size(1200, 900)


def test_foreign_pages_cannot_reach_it(page, world):
    driver, url, _ = world
    driver.get("data:text/html,<h1>evil</h1>")
    outcome = driver.execute_async_script(
        "const done = arguments[1]; fetch(arguments[0] + 'api/do', {method: 'POST', mode: 'no-cors', body: '{}'})"
        ".then((answer) => done(answer.type)).catch(() => done('refused'))",
        url,
    )
    assert outcome in ("opaque", "refused")
    driver.get_log("browser")
    page.open("wall")
    assert page.labels()
