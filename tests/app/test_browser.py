"""The dashboard as people see it: a real server, a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

import pytest
from capacity_app.error_display import INTERNAL_ERROR
from capacity_app.example_files import example_server
from capacity_app.pages import PAGES
from long_forms import mostly_slow
from screenshots import leave_page, open_first_page, open_page, wait_until_drawn
from streamlit.proto.BackMsg_pb2 import BackMsg

import capacity
from capacity.hardware import parse_profile
from capacity.report.display import time_and_interval
from capacity.report.subject import describe_answer

pytestmark = pytest.mark.ci  # many seconds

PATHS = {page.name: "/" if page is PAGES[0] else f"/{page.name}" for page in PAGES}
# streamlit looks for its own paths below a page's before it looks at the root
PROBED = re.compile(r"/_stcore/(health|host-config)$")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "_name_or_path": "me/mine",
}


class Tab:
    """A page of the browser that remembers what went wrong in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.complaints: list[str] = []
        self.listeners = {
            "console": self._heard,
            "pageerror": lambda error: self.complaints.append(str(error)),
            "requestfailed": self._failed,
        }
        for event, listener in self.listeners.items():
            page.on(event, listener)

    def _heard(self, message: Any) -> None:
        if message.type == "error" and not PROBED.search(message.location.get("url", "")):
            self.complaints.append(message.text)

    def _failed(self, request: Any) -> None:  # `download` asks again for a file that was replaced
        if "/media/" not in request.url or request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {request.url} {request.failure}")

    def leave(self) -> None:
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        leave_page(self.page)

    def open(self, path: str) -> Tab:
        self.page.goto(self.address + path)
        wait_until_drawn(self.page)
        return self

    def open_from_menu(self, section: str, title: str) -> None:
        """Open a page from a menu."""
        self.page.get_by_test_id("stTopNavSection").filter(has_text=section).click()
        self.page.get_by_test_id("stTopNavDropdownLink").filter(has_text=title).click()

    def set(self, label: str, value: int) -> None:
        box = self.page.get_by_role("spinbutton", name=label)
        box.fill(str(value))
        box.press("Enter")

    def kpi(self, label: str) -> Any:
        return self.page.get_by_test_id("stMetric").filter(has=self.page.get_by_text(label, exact=True)).first

    def value(self, label: str) -> str:
        return str(self.kpi(label).get_by_test_id("stMetricValue").inner_text())

    def until(self, label: str, value: str) -> None:
        """Wait until a figure of merit says this."""
        self.kpi(label).get_by_test_id("stMetricValue").get_by_text(value, exact=True).wait_for()

    def download(self, name: str) -> bytes:
        """What a button gives; pressed again if its file was replaced meanwhile, by a page still being drawn."""
        for _ in range(2):
            with self.page.expect_download() as waited:
                self.page.get_by_role("button", name=name, exact=True).first.click()
            if waited.value.failure() != "canceled":
                break
            wait_until_drawn(self.page)
        return Path(waited.value.path()).read_bytes()


@pytest.fixture
def tab(chromium: Any, server: str) -> Iterator[Callable[..., Tab]]:
    """Open tabs of new sessions; at the end none may have complained."""
    tabs: list[Tab] = []

    def opened(path: str = "/fit", **looks: Any) -> Tab:
        tabs.append(Tab(open_page(chromium, **looks), server))
        return tabs[-1].open(path)

    yield opened
    for one in tabs:
        one.leave()
    assert [complaint for one in tabs for complaint in one.complaints] == []


@pytest.mark.parametrize("name", mostly_slow(PATHS, ["plan", "simulate"]))
def test_every_page_opens_from_its_address(tab: Callable[..., Tab], name: str) -> None:
    page = tab(PATHS[name]).page
    assert page.get_by_text(INTERNAL_ERROR).count() == 0
    assert page.get_by_test_id("stException").count() == 0
    assert page.get_by_role("heading", level=1).inner_text() == next(p.title for p in PAGES if p.name == name)
    for chart in page.get_by_test_id("stPlotlyChart").all():
        assert chart.locator("[aria-label]").count() or chart.get_attribute("aria-label")


@pytest.mark.parametrize(("path", "megabytes"), [("/", 2.0), ("/estimate", 3.0)])
def test_a_first_visit_transfers_few_bytes(chromium: Any, server: str, path: str, megabytes: float) -> None:
    """Measured: 1.6 MB for the start page, which has no chart, and 2.7 MB for a page with one."""
    page = open_first_page(chromium)
    received = [0]
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on(
        "Network.loadingFinished",
        lambda event: received.__setitem__(0, received[0] + event["encodedDataLength"]),
    )
    page.goto(server + path)
    wait_until_drawn(page)
    page.context.close()
    assert 0.5e6 < received[0] < megabytes * 1e6


def test_the_slider_moves_the_numbers_by_keyboard(tab: Callable[..., Tab]) -> None:
    here = tab("/estimate")
    slider = here.page.get_by_role("slider", name="Batch size")
    slider.focus()
    slider.press("ArrowRight")
    answer = capacity.estimate("llama-3.1-8b", gpu="h100", input_len=1024, output_len=256, batch_size=48)
    here.until("TPOT", time_and_interval(answer.tpot_s)[0])
    here.page.wait_for_url("**batch=48**")


def test_an_address_restores_the_view(tab: Callable[..., Tab]) -> None:
    first = tab("/fit")
    first.set("Tensor parallel", 2)
    first.page.wait_for_url("**tp=2**")
    first.page.get_by_role("radio", name="GB", exact=True).click()
    first.page.wait_for_url("**mem=GB**")
    first.kpi("KV cache").get_by_text(re.compile(r" GB$")).wait_for()
    wait_until_drawn(first.page)
    shown = first.value("KV cache")
    first.page.get_by_role("button", name="Copy link").click()
    copied = first.page.get_by_test_id("stPopoverBody").get_by_test_id("stCode").inner_text().strip()
    assert set(copied.partition("?")[2].split("&")) == set(first.page.url.partition("?")[2].split("&"))
    second = tab(copied.removeprefix(first.address))
    assert second.value("KV cache") == shown
    assert second.page.get_by_role("spinbutton", name="Tensor parallel").input_value() == "2"


@pytest.mark.slow
def test_inputs_survive_a_change_of_page(tab: Callable[..., Tab]) -> None:
    here = tab("/estimate")
    here.set("Input tokens", 2048)
    here.page.wait_for_url("**isl=2048**")
    here.page.get_by_role("link", name="Start").click()
    here.page.wait_for_url(lambda address: "/estimate" not in address)
    wait_until_drawn(here.page)
    tokens = here.page.get_by_role("spinbutton", name="Input tokens")
    assert tokens.is_disabled()  # the page does not read them
    assert "isl=2048" in here.page.url
    here.open_from_menu("Explore", "Estimate")
    here.kpi("TPOT").wait_for()
    assert tokens.input_value() == "2048"
    assert "isl=2048" in here.page.url


def test_a_wrong_link_says_what_it_could_not_take(tab: Callable[..., Tab]) -> None:
    page = tab("/fit?gpu=h1000&tp=2&colour=blue").page
    assert "gpu=h1000" in page.get_by_role("alert").inner_text()
    assert "colour=blue" in page.get_by_role("alert").inner_text()
    assert page.get_by_role("spinbutton", name="Tensor parallel").input_value() == "2"


@pytest.mark.slow
def test_an_example_sets_every_input(tab: Callable[..., Tab]) -> None:
    here = tab("/fit?tp=2&isl=77")
    here.page.get_by_role("button", name="Examples").click()
    here.page.get_by_role("link", name="DeepSeek-V3 on eight H200").click()
    here.page.wait_for_url("**deepseek-v3**")
    wait_until_drawn(here.page)
    assert here.page.get_by_role("spinbutton", name="Tensor parallel").input_value() == "8"
    assert here.page.get_by_role("spinbutton", name="Input tokens").input_value() == "1024"
    assert "deepseek-v3 fits" in here.page.get_by_test_id("stAlert").first.inner_text()


def test_an_uploaded_config_is_read_and_a_hostile_one_is_one_line(tab: Callable[..., Tab]) -> None:
    here = tab("/fit?source=config.json")
    chooser = here.page.get_by_test_id("stSidebar").locator("input[type=file]")
    chooser.set_input_files(
        [{"name": "config.json", "mimeType": "application/json", "buffer": json.dumps(CONFIG).encode()}]
    )
    here.page.get_by_text("mine fits").first.wait_for()
    here.page.wait_for_url("**config=**")
    assert (
        "mine fits"
        in tab(here.page.url.removeprefix(here.address)).page.get_by_test_id("stAlert").first.inner_text()
    )
    hostile = b'{"model_type": "llama", "hidden_size": 1e999, "x": ' + b"[" * 5000
    wait_until_drawn(here.page)  # a file that is chosen while the page is redrawn is lost
    chooser.set_input_files([{"name": "config.json", "mimeType": "application/json", "buffer": hostile}])
    refused = here.page.get_by_role("alert").filter(has_text="config.json")
    refused.wait_for()
    assert len(refused.inner_text().strip().splitlines()) <= 3


def test_downloads_hold_the_answer(tab: Callable[..., Tab]) -> None:
    here = tab("/fit")
    answer = capacity.fit("llama-3.1-8b", gpu="h100-sxm-80gb")
    assert json.loads(here.download("JSON")) == json.loads(json.dumps(answer.to_dict()))
    row = next(csv.DictReader(io.StringIO(here.download("CSV").decode())))
    assert int(row["kv_capacity_tokens"]) == answer.kv_capacity_tokens
    here.page.get_by_role("button", name="Data and files").first.click()
    html = here.download("HTML").decode()
    assert html.startswith("<!doctype html>")
    assert len(html) < 50_000
    assert "<script" not in html
    picture = here.download("SVG").decode()
    assert picture in html
    for said in ("Memory of one h100-sxm-80gb", "llama-3.1-8b, 1 x h100-sxm-80gb", date.today().isoformat()):
        assert said in picture


@pytest.mark.parametrize("theme", mostly_slow(["light", "dark"], ["dark"]))
def test_a_chart_is_saved_as_a_picture_on_white(tab: Callable[..., Tab], theme: str) -> None:
    from PIL import Image

    here = tab("/fit", theme=theme)
    here.page.get_by_role("button", name="Data and files").first.click()
    with here.page.expect_download() as waited:
        here.page.get_by_role("button", name="PNG").click()
    assert waited.value.suggested_filename == "memory.png"
    picture = Image.open(waited.value.path()).convert("L")
    levels = picture.histogram()
    assert picture.width == 1720
    assert picture.getpixel((0, 0)) == 255
    assert levels[255] > sum(levels) / 3
    assert sum(levels[:64]) > 500  # the words


def test_an_answer_is_a_page_to_print(tab: Callable[..., Tab]) -> None:
    here = tab("/estimate?load=a+closed+loop&concurrency=8")
    page = here.download("Printable page").decode()
    answer = capacity.estimate(
        "llama-3.1-8b",
        gpu="h100-sxm-80gb",
        input_len=1024,
        output_len=256,
        concurrency=8,
        price_tier="on-demand",
    )
    assert answer.ttft_s is not None
    for said in (*time_and_interval(answer.ttft_s), describe_answer(answer), "--concurrency 8"):
        assert escape(said) in page
    here.page.set_content(page)
    assert here.page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    pages = here.page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type /Page\b", pages)) <= 4


def test_a_redraw_of_progress_sent_after_a_click_on_a_link_does_not_undo_it(
    chromium: Any, server: str
) -> None:
    """A browser sends it if a busy server has not answered the click; here it is sent for the browser."""
    here, sent = Tab(open_page(chromium), server), []

    def forward(socket: Any) -> None:
        streamlit = socket.connect_to_server()

        def pass_on(message: bytes) -> None:
            asked = BackMsg.FromString(message).rerun_script
            if asked.fragment_id:
                sent.append(message)
            streamlit.send(message)
            if sent and asked.page_script_hash != BackMsg.FromString(sent[-1]).rerun_script.page_script_hash:
                streamlit.send(sent[-1])

        socket.on_message(pass_on)

    here.page.route_web_socket("**/_stcore/stream", forward)
    here.open("/plan?rate=300&plan_n=20000&plan_for=latency")
    here.page.get_by_role("button", name="Search", exact=True).click()
    here.page.get_by_role("progressbar").first.wait_for()
    here.page.wait_for_timeout(600)
    here.open_from_menu("Explore", "Fit")
    here.kpi("KV cache").wait_for()
    wait_until_drawn(here.page)
    assert sent
    assert here.page.get_by_role("heading", level=1).inner_text() == "Fit"
    here.leave()
    assert here.complaints == []


def test_a_search_reports_is_cancelled_and_is_found_stale(tab: Callable[..., Tab]) -> None:
    here = tab("/plan?rate=300&plan_n=20000&plan_for=latency")  # long enough to be cancelled
    here.page.get_by_role("button", name="Search", exact=True).click()
    here.page.get_by_role("progressbar").first.wait_for()
    here.set("Output tokens", 100)
    here.page.wait_for_url("**osl=100**")
    here.page.get_by_role("button", name="Cancel").click()
    here.page.get_by_text("Cancelled.").wait_for()
    assert here.page.get_by_role("button", name="Cancel").count() == 0


def test_a_plans_files_are_one_archive(tab: Callable[..., Tab]) -> None:
    here = tab("/plan?plan_n=50&plan_gpus=h100-sxm-80gb&plan_ttft=2000")
    here.page.get_by_role("button", name="Search", exact=True).click()
    here.page.get_by_text("Deployments that meet the SLO").wait_for()
    wait_until_drawn(here.page)
    files = zipfile.ZipFile(io.BytesIO(here.download("Report and launch commands")))
    assert {"report.html", "plan.json", "launch-vllm.sh"} <= set(files.namelist())
    printed = here.download("Printable page").decode()
    best = json.loads(files.read("plan.json"))["ranked"][0]["label"]
    assert escape(best) in printed
    assert "capacity plan" in printed
    assert "<svg" in printed
    here.set("Output tokens", 300)
    here.page.get_by_text("Stale: from earlier inputs").wait_for()
    here.page.get_by_role("button", name="Search", exact=True).first.click()
    here.page.get_by_text("Stale: from earlier inputs").wait_for(state="detached")
    wait_until_drawn(here.page)
    hourly = here.value("Per hour")
    here.page.get_by_role("button", name="Pin this as A").click()
    here.page.get_by_role("button", name="Unpin A").wait_for()
    box = here.page.get_by_role("textbox", name="What if")
    box.fill("l40s")
    box.press("Enter")  # a plan is pinned: the other is searched at once
    here.kpi("To rent").filter(has_text="l40s").wait_for()
    here.page.get_by_text("Comparison with A (B: current inputs)").wait_for()
    wait_until_drawn(here.page)
    assert here.value("Per hour") != hourly
    assert "vs. A" in here.kpi("Per hour").inner_text()


def test_a_servers_files_are_compared_calibrated_and_selected_on_every_page(
    tab: Callable[..., Tab], tmp_path: Path
) -> None:
    for name, content in example_server().items():
        (tmp_path / name).write_bytes(content)
    here = tab("/compare")
    uploader = here.page.get_by_test_id("stMain").locator("input[type=file]").first
    uploader.set_input_files(sorted(map(str, tmp_path.iterdir())))
    here.page.get_by_text("replayed request by request").first.wait_for()
    wait_until_drawn(here.page)
    assert float(here.value("TPOT error").removesuffix(" %")) < -10  # the simulated server is slower
    here.page.get_by_role("button", name="Copy as CLI").first.click()
    command = here.page.get_by_test_id("stPopoverBody").get_by_test_id("stCode").inner_text().split()
    names = ["metrics.txt", "result-c64.json", "result-c8.json", "server.log"]
    assert command == ["capacity", "compare", *names, "--gpu", "h100-sxm-80gb"]
    here.page.keyboard.press("Escape")
    here.page.get_by_role("button", name="Calibrate", exact=True).click()
    here.page.get_by_role("button", name="Use h100-sxm-80gb@mine on every page").click()
    here.page.get_by_text("is selected on every page").wait_for()
    profile = parse_profile(here.download("Profile as TOML").decode())
    assert profile.name == "h100-sxm-80gb@mine"
    here.open_from_menu("Explore", "Estimate")
    here.page.wait_for_url("**/estimate?gpu=h100-sxm-80gb%40mine**")
    here.kpi("TPOT").wait_for()
    wait_until_drawn(here.page)
    assert here.page.get_by_role("combobox", name="GPU").input_value() == "h100-sxm-80gb@mine"
    assert b"h100-sxm-80gb@mine" in here.download("Printable page")
    tpot = here.value("TPOT")
    here.page.reload()
    here.kpi("TPOT").wait_for()
    wait_until_drawn(here.page)
    assert here.page.get_by_role("combobox", name="GPU").input_value() == "h100-sxm-80gb@mine"
    assert here.value("TPOT") == tpot
    link, browser = here.page.url, here.page.context.browser
    stranger = browser.new_context()  # another browser, without the cookie
    try:
        page = stranger.new_page()
        page.goto(link)
        page.get_by_text("does not accept").first.wait_for()
    finally:
        stranger.close()
