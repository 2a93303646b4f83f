// One session in its row: state, GPU and the buttons. What stays the same is not
// touched, so that a click or the focus is never lost.

import { busiest, cardsOf, detailOf, offered, RUNS, STATES } from "../session.js";
import { nameOf } from "./words.js";

/** The buttons that make sense: [action, label, words for a screen reader, style]. */
function actionsOf(view) {
  const name = nameOf(view.key);
  const actions = offered(view).map(([kind, { label, stops }]) => [
    kind,
    label,
    `${label}: ${name}`,
    stops ? "btn-warning" : kind === "nap" ? "plain" : "btn-success",
  ]);
  const runs = RUNS.includes(view.phase);
  if (runs || (view.phase === "suspended" && view.failure)) {
    const why = runs && view.phase !== "warned" ? "Why not?" : "Why?";
    actions.push(["why", why, `${why} Reasons of ${name}`, "plain"]);
  }
  return actions;
}

const part = (name) => {
  const made = document.createElement("div");
  made.className = name;
  return made;
};

export class Cell {
  constructor(act) {
    this.node = document.createElement("td");
    this.node.className = "gpu-reclaim";
    this.node.addEventListener("click", ({ target }) => {
      const button = target.closest("button[data-action]");
      if (button) act(button.dataset.action, this.view.key);
    });
    this.parts = new Map();
    this.session = "";
  }

  /** Shows a session, or nothing where there is none. */
  show(session, view, now) {
    if (this.session !== session) {
      this.session = session;
      this.node.dataset.session = session;
      this.parts.clear();
      this.node.replaceChildren();
    }
    this.view = view;
    if (!view) {
      this.parts.clear();
      this.node.replaceChildren();
      return;
    }
    const [state, tone] = STATES[view.phase] ?? [view.phase, "calm"];
    const detail = detailOf(view, now);
    this.#put("state", [tone, state, detail], (place) => this.#state(place, state, tone, detail));
    const [cards, use] = [cardsOf(view), busiest(view)];
    this.#put("gpu", [cards, use], (place) => this.#gpu(place, cards, use));
    const actions = actionsOf(view);
    this.#put("choices", actions, (place) => this.#buttons(place, actions));
  }

  focus(action) {
    const button =
      this.node.querySelector(`button[data-action="${action}"]`) ??
      this.node.querySelector("button") ??
      this.node.querySelector(".state");
    button?.focus({ preventScroll: true });
  }

  /** Draws a part again if its content has changed. */
  #put(name, shown, draw) {
    const text = JSON.stringify(shown);
    const known = this.parts.get(name);
    if (known?.text === text) return;
    const place = known?.place ?? part(name);
    const focused = place.contains(document.activeElement);
    if (!known) this.node.append(place);
    this.parts.set(name, { text, place });
    draw(place);
    if (focused) this.focus("");
  }

  #state(place, state, tone, detail) {
    const badge = document.createElement("span");
    badge.className = `badge ${tone}`;
    badge.textContent = state;
    const words = document.createElement("span");
    words.className = "detail";
    words.textContent = detail;
    place.tabIndex = -1;
    place.replaceChildren(badge, " ", words);
  }

  #gpu(place, cards, use) {
    const lines = cards.map((words) => {
      const line = part("card-line");
      line.textContent = words;
      return line;
    });
    if (use !== null) {
      const line = part("use");
      line.textContent = `${Math.round(use)} %`;
      lines.push(line);
    }
    place.replaceChildren(...lines);
  }

  #buttons(place, actions) {
    place.replaceChildren(
      ...actions.map(([action, label, spoken, style]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = `btn btn-sm ${style}`;
        button.dataset.action = action;
        button.textContent = label;
        button.setAttribute("aria-label", spoken);
        return button;
      }),
    );
  }
}

