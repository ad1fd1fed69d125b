"""The pages in a real browser."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.browsing import RUN, WAIT, Peopled, Visitor, picture
from support.living import Living
from tacit.corpora import customersim
from tacit.privacy.certificates.manifest import CERTIFICATE_FILES, SIGNATURE
from tacit.server.errors import Conflict
from tacit.server.pages.runs import frontier
from tacit.server.sharing import unpack_model
from tacit.verification.runs import verify

expect = pytest.importorskip("playwright.sync_api", reason="no playwright").expect

Open = Callable[..., Visitor]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


DROP = """(zone, text) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], "dialogs.jsonl"));
  zone.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""
"""What a browser does when somebody drops a file."""


def corpus_file(folder: Path) -> Path:
    """Made-up dialogs, as somebody has them in a file."""
    path = folder / "dialogs.jsonl"
    rows = [r.row() for r in customersim.generate(80, 3).records()]
    keep = ("user", "text", "label", "split")
    path.write_text("".join(json.dumps({k: r[k] for k in keep if k in r}) + "\n" for r in rows))
    return path


def test_from_serve_to_a_verified_model_through_the_browser_alone(
    visitor: Open, tmp_path: Path
) -> None:
    living = Living(tmp_path / "server", pages=True)
    try:
        _the_whole_way(visitor(living.address), living, tmp_path)
    finally:
        living.stop()


def _the_whole_way(me: Visitor, living: Living, folder: Path) -> None:
    page = me.page
    # The link that the first start printed signs in once.
    page.goto(living.link)
    me.press("Continue")
    page.wait_for_url("**/datasets")

    page.get_by_label("Name", exact=True).fill("customer dialogs")
    page.get_by_label("What it is (optional)").fill("Made up, to try the way once.")
    page.get_by_role("radio", name="Users and entities").click()
    page.get_by_label("Privacy budget (epsilon)").fill("8")
    picture(page, "datasets")
    me.press("Make the dataset")
    me.sees("Nothing yet. Add text below.")
    dropped = corpus_file(folder).read_text()
    page.locator(".drop").evaluate(DROP, dropped)
    expect(page.locator(".seen pre")).to_contain_text(dropped[:40])  # before it is sent
    me.press("Upload")
    me.sees("80 records are stored.")
    picture(page, "dataset")
    me.follow("Next: what is sensitive")
    me.press("Find")
    me.sees("different entities")
    finding = page.locator("section", has_text="Find what is sensitive")
    picture(page, "detected", of=finding)
    page.get_by_text("The text, with what was found marked").click()
    me.press("Show the text")
    expect(page.frame_locator("iframe.sheet").locator("mark").first).to_be_visible(timeout=WAIT)
    picture(page, "marked", of=page.locator("iframe.sheet"))

    me.go(page.url.removeprefix(living.address))
    me.follow("Next: whom to protect")
    me.sees("The protection is")
    picture(page, "whom")
    me.press("Next: price")
    page.get_by_label("Epsilon, exactly").fill("6")
    me.press("Next: train")
    page.get_by_text("Change the method, the model or the steps").click()
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="Trial").click()
    page.get_by_label("Steps", exact=True).fill("12")
    page.get_by_label("Share in a step").fill("0.3")
    plan = page.locator("section", has_text="What this run would do")
    expect(plan.locator(".figures b").first).to_have_text(
        re.compile(r"^(5\.99\d|6)$"), timeout=WAIT
    )
    expect(page.locator(".working")).to_have_count(0, timeout=WAIT)
    expect(plan.locator(".plot svg path").first).to_be_attached(timeout=WAIT)
    picture(page, "train", height=1180)
    page.get_by_text("The same as a command line").click()
    expect(page.locator("#the-command")).to_contain_text("tacit train run.yml")
    me.press("Start the run")
    page.wait_for_url("**/runs/*")
    run = page.url.rpartition("/")[2]
    with living.client() as admin, pytest.raises(Conflict, match="still running"):
        admin.call("DELETE", f"/models/{run}", again=False)
    page.reload()
    page.get_by_text(re.compile(r"^Step \d+ of ")).first.wait_for()
    expect(page.get_by_role("link", name="Open the result")).to_be_visible(timeout=WAIT)
    picture(page, "run", height=980)

    me.follow("Open the result")
    page.get_by_label("Your text").fill("my order number is")
    expect(page.locator(".chips button").first).to_be_visible(timeout=3 * WAIT)
    before = page.get_by_label("Your text").input_value()
    page.locator(".chips button").first.click()
    expect(page.get_by_label("Your text")).not_to_have_value(before)
    me.press("Verify the certificate")
    me.sees("Everything matches: the certificate holds.")
    picture(page, "model", height=1000)
    me.press("Show the report")
    expect(page.frame_locator("iframe.sheet").locator("h1")).to_be_visible(timeout=WAIT)
    picture(page, "report", of=page.locator("iframe.sheet"))
    with page.expect_download() as downloading:
        me.follow("Download the model")
    for path in ("runs", "models"):
        me.go(f"/{path}")
        picture(page, path, height=480)
    me.go("/docs#post-v1-datasets-dataset-runs")
    picture(page, "api", of=page.locator("details[open]"))
    archive = folder / "model.zip"
    downloading.value.save_as(archive)
    assert "certificate.json" in zipfile.ZipFile(archive).namelist()

    me.go("/check")
    page.get_by_label("Files of the model").set_input_files(archive)
    me.press("Check")
    me.sees("Everything matches: the certificate holds.")
    picture(page, "check", height=480)
    me.go("/datasets")
    me.follow("customer dialogs")
    me.follow("Run by run, over time")
    expect(page.locator(".plot svg path").first).to_be_attached(timeout=WAIT)
    me.sees("spent for users and entities together")
    page.wait_for_timeout(600)
    picture(page, "budget")
    me.go("/people")
    picture(page, "people")
    page.set_viewport_size({"width": 390, "height": 844})
    me.go(f"/runs/{run}")
    me.sees("Not private: keep it inside")
    page.wait_for_timeout(600)
    picture(page, "phone-run", height=844)
    page.emulate_media(color_scheme="dark")
    me.go(f"/models/{run}")
    picture(page, "phone-model-dark", height=844)

    me.press("Delete for good …")
    me.press("Yes, delete")
    page.wait_for_url("**/models")
    me.sees("None yet")
    left = {p.name for p in living.job_folder(run).rglob("*") if p.is_file()}
    assert left <= {*CERTIFICATE_FILES, SIGNATURE, "plan.yml", "alive.lock", "job.json"}
    me.go(f"/runs/{run}")
    me.sees("The model is gone; the list of what it released is kept.")
    with living.client() as admin:
        dataset = admin.run(run)["dataset"]
        assert admin.budget(dataset)["spent"]["users+entities"] > 5

    unpack_model(archive, folder / "model")
    assert all(check.ok for check in verify(folder / "model"))


def test_with_the_keyboard_alone_somebody_signs_in_and_starts_a_run(
    visitor: Open, site: Peopled
) -> None:
    me = visitor(site.address)
    page = me.page
    me.go("/sign-in")
    page.keyboard.type(site.tokens["analyst"])
    page.keyboard.press("Enter")
    page.wait_for_url("**/datasets")
    me.go(f"/datasets/{site.dataset}/new-run")
    me.sees("Say about how many users there are")
    _tab_to(me, "About how many users there are")
    page.keyboard.type("10")
    me.sees("The protection is")
    for step in ("Next: price", "Next: train"):
        _tab_to(me, step)
        page.keyboard.press("Enter")
    _tab_to(me, "Change the method, the model or the steps")
    page.keyboard.press("Enter")
    _tab_to(me, "Steps")
    page.keyboard.press("Control+A")
    page.keyboard.type("4000")
    start = page.get_by_role("button", name="Start the run")
    expect(start).to_be_enabled(timeout=WAIT)
    _tab_to(me, "Start the run")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")

    _tab_to(me, "Stop")
    page.keyboard.press("Enter")
    me.sees("Stopped. What was released so far stays charged")
    _tab_to(me, "Go on")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible(timeout=WAIT)
    me.press("Stop")
    me.sees("Stopped. What was released so far stays charged")


def _tab_to(me: Visitor, name: str) -> None:
    """Press Tab until that has the focus, which must be visible then."""
    focused = (
        "() => { const e = document.activeElement; return [e.getAttribute('aria-label') ?? "
        "e.innerText ?? '', getComputedStyle(e).outlineStyle, getComputedStyle(e).boxShadow, "
        "getComputedStyle(e.closest('.q-field__control') ?? e, '::after').borderTopStyle] }"
    )
    me.page.get_by_role("button", name=name, exact=True).or_(
        me.page.get_by_label(name, exact=True)
    ).or_(me.page.locator("summary", has_text=name)).locator("visible=true").first.wait_for()
    for _ in range(60):
        me.page.keyboard.press("Tab")
        label, outline, shadow, ring = me.page.evaluate(focused)
        if label.strip() == name:
            assert "solid" in (outline, ring) or shadow != "none"
            return
    raise AssertionError(f"the keyboard does not reach {name}")


def _pages_of(site: Peopled) -> list[str]:
    dataset, run = site.dataset, site.trained()
    return ["/datasets", f"/datasets/{dataset}", f"/datasets/{dataset}/sensitive",
            f"/datasets/{dataset}/new-run", f"/datasets/{dataset}/new-run?at=train",
            f"/datasets/{dataset}/budget", "/runs", "/runs/compare", f"/runs/{run}",
            "/models", f"/models/{run}", "/check", "/people"]  # fmt: skip


def test_every_page_fits_a_phone_and_is_accessible_in_light_and_in_dark(
    visitor: Open, site: Peopled
) -> None:
    me = visitor(site.address, color_scheme="dark", **PHONE)
    for path in ("/sign-in", "/welcome", "/docs"):
        me.go(path)
        assert not _overflow(me), path
        assert not serious(me), path
    me.sign_in(site.tokens["admin"])
    for path in _pages_of(site):
        me.go(path)
        me.page.wait_for_timeout(200)
        assert not _overflow(me), path
        assert _brightness(me) < 60, path
        assert not serious(me), f"dark {path}"
        me.press("Light or dark")
        assert not serious(me, "color-contrast"), f"light {path}"
        me.press("Light or dark")
    me.press("Light or dark")
    assert _brightness(me) > 200
    me.page.reload()
    me.page.locator("header.top").wait_for()
    assert _brightness(me) > 200  # somebody's choice outlasts the page


def serious(me: Visitor, *rules: str) -> list[str]:
    """What axe-core calls serious or critical by all its rules or some, with the first place."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core").Axe
    only = {"runOnly": list(rules)} if rules else {}
    found = axe().run(me.page, options={"resultTypes": ["violations"], **only})
    return [
        f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0]['any'][:1]}"
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def _overflow(me: Visitor) -> int:
    wide = me.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return max(0, int(wide))


def _brightness(me: Visitor) -> int:
    colour = me.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return max(int(part) for part in colour[4:-1].split(","))


def test_a_consumer_is_given_models_and_nothing_else(visitor: Open, site: Peopled) -> None:
    run = site.trained()
    me = visitor(site.address)
    me.sign_in(site.tokens["consumer"])
    assert me.page.url.endswith("/models")
    me.go(f"/models/{run}")
    me.page.get_by_label("Your text").fill("my order")
    expect(me.page.locator(".chips button").first).to_be_visible(timeout=WAIT)
    heard = [me.everything()]
    for path in (f"/datasets/{site.dataset}", "/datasets", f"/datasets/{site.dataset}/new-run",
                 f"/datasets/{site.dataset}/budget", f"/runs/{run}", "/runs", "/people",
                 "/my-text"):  # fmt: skip
        answer = me.page.goto(site.address + path)
        assert answer is not None
        assert answer.status == 403, path
        me.sees("does not allow")
        heard.append(me.everything())
    for path in (f"/runs/{run}/report", f"/detections/{run}/text"):
        said = me.context.request.get(site.address + path)
        assert said.status in (403, 404), path
        heard.append(said.text())
    assert not any(word in text for text in heard for word in (site.SECRET, "letters"))
    # That a loss is never shared is said; what it was is not.
    assert not any(re.search(r"loss\W{1,3}\d", text) for text in heard)


def test_a_contributor_is_given_their_own_text_and_nobody_elses(
    visitor: Open, site: Peopled
) -> None:
    me = visitor(site.address)
    me.sign_in(site.tokens["contributor"])
    assert me.page.url.endswith("/my-text")
    me.sees(site.OWN)
    me.page.get_by_label("Your text").fill("Something to take back, dear Mary Smith.")
    me.press("What is sensitive in it?")
    expect(me.page.locator("mark")).to_have_text("Mary Smith")
    picture(me.page, "my-text")
    me.page.get_by_label("Your text").fill("Something to take back.")
    me.press("Add the text")
    me.sees("Something to take back.")
    record = me.page.locator(".entry", has_text="Something to take back.")
    record.get_by_role("button", name="Delete").click()
    me.sees("no future run sees them")
    expect(record).to_have_count(0)
    me.page.set_viewport_size({"width": 390, "height": 844})
    assert not _overflow(me)
    heard = [me.everything()]
    for path in (f"/datasets/{site.dataset}", "/runs", "/models", "/people"):
        answer = me.page.goto(site.address + path)
        assert answer is not None
        assert answer.status == 403, path
        heard.append(me.everything())
    assert not any(site.SECRET in text for text in heard)


def test_an_analyst_is_given_counts_but_no_text(visitor: Open, site: Peopled) -> None:
    with site.living.client() as admin:
        admin.detect(site.dataset, detectors=["patterns"])
    me = visitor(site.address)
    me.sign_in(site.tokens["analyst"])
    me.go(f"/datasets/{site.dataset}/sensitive")
    me.sees("different entities")
    me.page.get_by_text("The ten that most users share").click()
    assert me.page.get_by_text("with what was found marked").count() == 0
    assert me.page.get_by_text("Somebody's text").count() == 0
    assert site.SECRET not in me.everything()
    assert "555-0147" not in me.everything()
    assert "5550147" not in me.everything()


def test_a_refusal_is_a_sentence_where_the_choice_was_made(visitor: Open, site: Peopled) -> None:
    me = visitor(site.address)
    me.sign_in(site.tokens["analyst"])
    me.go(f"/datasets/{site.dataset}/new-run")
    me.sees("Say about how many users there are")
    me.page.get_by_label("About how many users there are").fill("10")
    me.press("Next: price")
    me.page.get_by_label("Epsilon, exactly").fill("20")
    me.sees("over its budget of 8")
    me.press("Next: train")
    expect(me.page.get_by_role("button", name="Start the run")).to_be_disabled()
    me.page.get_by_text("Change the method, the model or the steps").click()
    me.page.get_by_label("Method", exact=True).click()
    me.page.get_by_role("option", name="Without protection").click()
    me.sees("Method plain has no proved promise")


def test_names_are_chosen_with_their_promise_beside(visitor: Open, site: Peopled) -> None:
    me = visitor(site.address)
    me.sign_in(site.tokens["analyst"])
    me.go(f"/datasets/{site.dataset}/new-run")
    me.page.get_by_role("radio", name="Users and names").click()
    me.sees("which name stood where one was marked")
    me.sees("This is not anonymisation.")
    expect(me.page.get_by_text("Only what a list names")).to_be_hidden()
    me.page.get_by_label("About how many users there are").fill("500")
    me.sees("0 are left out")
    me.sees("or on which name stood where any one of them was found")
    for width in (1280, 420):
        me.page.set_viewport_size({"width": width, "height": 900})
        assert me.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_classifier_is_chosen_from_what_is_declared(visitor: Open, site: Peopled) -> None:
    pytest.importorskip("wordllama")
    me = visitor(site.address)
    me.sign_in(site.tokens["analyst"])
    me.go(f"/datasets/{site.dataset}/new-run")
    labels = me.page.get_by_label("Labels, with commas between them")
    expect(labels).to_be_hidden()  # next words have none
    me.page.get_by_label("What the model is to do", exact=True).click()
    me.page.get_by_role("option", name="Say which label a text has").click()
    me.page.get_by_label("About how many users there are").fill("500")
    me.sees("needs the labels")
    labels.fill("work, home")
    me.sees("What to expect")
    me.sees("a classifier")
    expect(me.page.get_by_role("button", name="Start the run")).to_be_hidden()
    me.press("Next: price")
    picture(me.page, "new-run")
    me.page.get_by_text("At other epsilons").click()
    expect(me.page.locator(".expect tbody tr")).to_have_count(4)
    me.press("Next: train")
    expect(me.page.get_by_role("button", name="Start the run")).to_be_enabled(timeout=WAIT)


def test_runs_are_told_apart_compared_and_traced(visitor: Open, site: Peopled) -> None:
    first = site.trained()
    plan = RUN["plan"] | {"epsilon": 3.5, "steps": 2}
    asked = {"name": RUN["name"], "continue_from": first, "plan": plan, "context": 24}
    with site.living.client() as admin:
        second = admin.start_run(site.dataset, asked)["id"]
        admin.wait(second)
    me = visitor(site.address)
    me.sign_in(site.tokens["analyst"])
    me.go("/runs")
    for number in (1, 2):
        me.page.get_by_label(f"Compare first words ({number})").check()
    me.press("Compare the chosen ones")
    me.sees("Continued models")
    names = me.page.locator(".lineage a").all_inner_texts()
    assert names == ["first words (1)", "first words (2)"]
    expect(me.page.get_by_role("img", name=re.compile("perplexity .* at 3"))).to_be_visible()
    picture(me.page, "compare", height=1100)
    me.go("/runs")
    me.page.get_by_label("Search").fill("no such run")
    me.sees("No run fits.")
    me.go(f"/runs/{second}")
    me.sees("Asked by")
    expect(me.page.locator(".lineage li").last).to_contain_text("in all")
    me.go(f"/models/{second}")
    me.sees("Is it any good?")


def test_a_comparison_leaves_out_what_would_hide_all_others() -> None:
    def row(name: str, score: float, spent: float | None) -> dict[str, Any]:
        result = {"protect": "users", "epsilon": {"users": spent} if spent else {}}
        return {"called": name, "outcome": {"measure": "perplexity", "score": score},
                "result": result}  # fmt: skip

    rows = [row("plain", 20.0, None), row("good", 100.0, 3.0), row("lost", 1e7, 4.0)]
    made = frontier(rows, "perplexity")
    assert [one["name"] for one in made["series"]] == ["plain", "good"]
    assert made["series"][0]["markLine"]["data"] == [{"yAxis": 20.0}]
    assert made["series"][1]["data"] == [[3.0, 100.0]]
    assert (made["yAxis"]["type"], made["yAxis"]["min"], made["yAxis"]["max"]) == ("value", 0, 120)
    assert frontier([*rows, row("far", 300.0, 1.0)], "perplexity")["yAxis"]["type"] == "log"


def test_an_admin_gives_out_a_token_once_and_ends_it(visitor: Open, site: Peopled) -> None:
    me = visitor(site.address)
    me.sign_in(site.tokens["admin"])
    me.go("/people")
    me.page.get_by_label("Name", exact=True).fill("Grace")
    me.press("Add")
    token = me.page.locator("#new-token").inner_text()
    other = visitor(site.address)
    other.sign_in(token)
    entry = me.page.locator(".entry", has_text="Grace")
    entry.get_by_role("button", name="Revoke").click()
    expect(entry.get_by_role("button", name="Revoke")).to_have_count(0)
    other.page.goto(site.address + "/my-text")
    other.page.wait_for_url("**/sign-in**")
    other.page.get_by_label("Token").fill(token)
    other.press("Sign in with the token")
    other.sees("The token was revoked")
    me.go("/people")
    me.page.get_by_label("Search").fill("revoke")
    log = me.page.locator("section", has_text="Audit log")
    expect(log.locator("tbody tr")).to_have_count(1, timeout=WAIT)
    expect(log.locator("tbody tr")).to_contain_text("a token of Grace")


def test_a_call_is_tried_from_the_reference(visitor: Open, site: Peopled) -> None:
    me = visitor(site.address)
    me.go("/docs#get-v1-me")
    me.page.get_by_label("Your token").fill(site.tokens["analyst"])
    me.press("Send GET")
    me.sees("200 OK")
    me.sees('"role": "analyst"')


@pytest.mark.slow
def test_what_the_pages_say_stays_when_the_server_is_killed(visitor: Open, tmp_path: Path) -> None:
    living = Living(tmp_path / "server", pages=True)
    me = visitor(living.address)
    me.sign_in(living.token)
    living.kill()
    living.start()
    me.go("/datasets")  # the session is in the database
    me.sees("Make your first dataset")
    me.page.close()
    me.complaints.clear()  # that the channel was cut is what this is about
    living.stop()
