"""A page by the keyboard alone: what Tab reaches, in which order, and how it shows."""

from playwright.sync_api import Page

#: Notes what can have the focus, and how each looks without it.
_NOTE = """() => {
  const all = 'a[href], button, input, select, textarea, summary, [tabindex]';
  const looks = (one) => {
    const style = getComputedStyle(one);
    return [style.outlineStyle, style.outlineWidth, style.boxShadow,
            style.backgroundColor, style.borderColor].join();
  };
  const seen = (one) => one.checkVisibility({visibilityProperty: true});
  const usable = [...document.querySelectorAll(all)].filter(
    (one) => one.tabIndex >= 0 && !one.disabled && seen(one));
  const named = (one) => `${one.localName} ${(
    one.ariaLabel || one.title || one.textContent || one.name || one.id).trim()}`;
  const plain = new Map(usable.map((one) => [one, looks(one)]));
  window.tabbed = {usable, looks, plain};
  return usable.map(named);
}"""
#: Where the focus is: its number, and what is wrong with how it shows.
_FOCUS = """() => {
  const {usable, looks, plain} = window.tabbed;
  const one = document.activeElement;
  const number = usable.indexOf(one);
  if (number < 0) return [number, ""];
  const [box] = one.getClientRects();
  const hit = box && document.elementFromPoint(
    box.left + box.width / 2, box.top + box.height / 2);
  if (!hit) return [number, "is out of sight"];
  if (!one.contains(hit) && !hit.contains(one)) return [number, "is covered"];
  return [number, looks(one) === plain.get(one) ? "does not show the focus" : ""];
}"""


def walk(page: Page) -> list[str]:
    """Press Tab through a page that was just opened; what is wrong."""
    # Else the Hub's own style glides to what has the focus.
    page.emulate_media(reduced_motion="reduce")
    names = page.evaluate(_NOTE)
    wrong, order = [], []
    for _ in range(len(names) + 1):
        page.keyboard.press("Tab")
        number, fault = page.evaluate(_FOCUS)
        if number < 0 or number in order:
            break
        order.append(number)
        if fault:
            wrong.append(f"{names[number]} {fault}")
    missing = [name for n, name in enumerate(names) if n not in order]
    wrong += [f"{name} is not reached" for name in missing]
    return wrong if order == sorted(order) else [*wrong, f"order: {order}"]


def tab_to(page: Page, label: str) -> None:
    name = "document.activeElement.ariaLabel || document.activeElement.textContent"
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate(name).strip() == label:
            return
    raise AssertionError(f"{label} is not reached by Tab")


def press(page: Page, label: str, key: str = "Enter") -> None:
    tab_to(page, label)
    page.keyboard.press(key)
