"""The Hub's home page says what its buttons do: resume what is saved, or start."""

import re

PERSONS = "small-amy"


def buttons(person) -> dict[str, tuple[str, str]]:
    """The links of the home page that start something: id to (words, address)."""
    page = person.http.get(f"{person.base}/hub/home", timeout=30)
    assert page.status_code == 200
    links = re.findall(r"<a\b([^>]*)>(.*?)</a>", page.text, re.DOTALL)
    found = {}
    for attributes, text in links:
        id_ = re.search(r'id="(start[^"]*)"', attributes)
        href = re.search(r'href="([^"]*)"', attributes)
        if id_ and href:
            found[id_[1]] = (" ".join(text.split()), href[1])
    return found


def test_home_of_a_suspended_session_says_resume_and_since_when(suspended):
    words, href = buttons(suspended)["start"]
    said = r"Resume my session \(suspended (just now|\d+ (s|min) ago)\)"
    assert re.fullmatch(said, words)
    assert href == f"/hub/spawn/{suspended.name}"


def test_home_without_a_saved_session_says_start(hub, name):
    assert buttons(hub.user(name))["start"][0] == "Start My Server"


def test_home_says_resume_for_the_named_servers_that_are_saved(hub, service, amy):
    for server in ("small", "small-2"):
        amy.start_server(server)
    service.capture(amy.name, "small-2")
    for server in ("small", "small-2"):
        hub.stop_server(amy.name, server)

    found = buttons(amy)

    assert found["start"][0] == "My Server"
    assert found["start-small"] == ("start", f"/hub/spawn/{amy.name}/small")
    words, href = found["start-small-2"]
    assert re.fullmatch(r"resume \(suspended (just now|\d+ s ago)\)", words)
    assert href == f"/hub/spawn/{amy.name}/small-2"


def test_pages_of_the_site_are_under_ours_and_hide_none(hub, suspended, name):
    """Whichever folder of ``template_paths`` has them (``hub/pages.py``)."""
    home = suspended.http.get(f"{suspended.base}/hub/home", timeout=30).text
    assert '<meta name="site" content="home">' in home
    assert "Resume my session" in home
    away = suspended.http.get(f"{suspended.base}/hub/user/{suspended.name}/lab")
    assert '<meta name="site" content="not_running">' in away.text
    assert "Your session is suspended" in away.text
    person = hub.user(name)
    lost = person.http.get(f"{person.base}/hub/error/503", timeout=30).text
    assert '<meta name="site" content="error">' in lost
    assert "gpu-reclaim-again" in lost
