// What needs attention, above every view: sessions that cannot get back, nodes that are
// closed, agents that are gone. Each line leads to its cure.
import { duration } from "../words.js";
import { inLocalTime, said } from "../times.js";
import { button, codeOf, count, el, page } from "./dom.js";
import { faultsOf, undrain } from "./nodes.js";
import { isLost, nameOf } from "./sessions.js";

/** How often each code comes, the most frequent first. */
function codes(views) {
  const many = new Map();
  for (const { failure } of views) many.set(failure.code, (many.get(failure.code) ?? 0) + 1);
  return [...many].sort((a, b) => b[1] - a[1]);
}

/** `look` shows sessions by their state and a word. */
function failed(views, words, state, look) {
  if (!views.length) return [];
  const parts = codes(views).map(([code, many]) =>
    el("li", {}, button(`${code} (${many})`, () => look(state, code), { class: "code", "data-focus": `code ${code}` })),
  );
  const show = button("Show them", () => look(state, ""), { "data-focus": `show ${state}` });
  const one = views.length === 1 ? ` (${nameOf(views[0].key)})` : "";
  return [
    el("div", { class: "failure" }, el("strong", {}, `${count(views.length, "session")} ${words}${one}`), el("ul", { class: "codes" }, ...parts), show),
  ];
}

function closed({ node, drain }, report) {
  const why = drain.why || `by ${drain.by}`;
  const left = report?.sessions.filter((one) => one.state !== "saved").length ?? 0;
  const goes = left ? ` ${count(left, "session")} still ${left === 1 ? "runs" : "run"} there.` : "";
  const name = node || "This machine";
  return el(
    "div",
    { class: "warning" },
    el("span", {}, el("strong", {}, name), ` has been drained since ${said(1000 * drain.since)} (${why}): no session can start here.${goes}`),
    button("Undrain", () => undrain(node), { "aria-label": `Undrain ${name}`, "data-focus": `undrain ${node}` }),
  );
}

function faults(node, now) {
  const { node: name, silent_since: since } = node;
  const gone = since != null && ` has been silent for ${duration(now - since)}.`;
  return faultsOf(node).map(({ message, hint, code }) =>
    inLocalTime(
      el(
        "div",
        { class: "failure" },
        el("span", {}, el("a", { href: page("nodes") }, name || "This machine"), gone ? el("strong", {}, gone) : ":", ` ${message} ${hint ?? ""} `, codeOf(code)),
      ),
    ),
  );
}

/** Draws all of it; the same is not touched. */
export function attention(place, { views, nodes, drains, away, look }) {
  const now = Date.now() / 1000;
  const reports = new Map(drains.map((one) => [one.drain.node, one]));
  const lost = views.filter(isLost);
  const others = views.filter((view) => view.failure && !isLost(view));
  const lines = [
    ...(away ? [el("div", { class: "failure" }, "The service does not answer: what is shown here is what it said last.")] : []),
    ...failed(lost, "cannot get back", "lost", look),
    ...nodes.filter((one) => one.drain).map((one) => closed(one, reports.get(one.node))),
    ...nodes.flatMap((one) => faults(one, now)),
    ...failed(others, others.length === 1 ? "has a failure" : "have failures", "failed", look),
  ];
  const shown = lines.map((one) => one.textContent).join("\n");
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  const had = place.contains(document.activeElement) && document.activeElement.dataset.focus;
  place.replaceChildren(...lines);
  if (had) [...place.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === had)?.focus();
}
