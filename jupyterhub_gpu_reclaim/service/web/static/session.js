// One session in words: its state, its cards, and what it is at work with. The managers'
// page and the Hub's admin page say the same of it.

import { clock, duration, size } from "./words.js";
import { ORDERS } from "./orders.js"; // common/orders.py, as the service sends it

export const STATES = {
  running: ["Running", "good"],
  napping: ["Napping", "calm"],
  warned: ["Suspending soon", "warn"],
  suspending: ["Suspending", "busy"],
  releasing: ["Finishing suspend", "busy"],
  suspended: ["Suspended", "calm"],
  resuming: ["Resuming", "busy"],
  stopped: ["Stopped", "calm"],
};
const WORKING_PERCENT = 5; // totals.py has the same
export const RUNS = ORDERS.suspend.phases;

const IN_USE = 300; // seconds since the last use in which a suspend is asked twice

export const STOPS =
  "Programs stop until their session is resumed, and their connections to other machines are cut.";

/** Orders whose buttons are beside it, what cures its failure first: [kind, order]. */
export function offered(view) {
  const nap = view.facts?.nap;
  const fits = ([kind, { beside, cures, phases }]) => {
    if (!beside) return false;
    if (kind === "wake") return Boolean(nap) && RUNS.includes(view.phase);
    if (kind === "nap" && (nap || !view.gpus?.length)) return false;
    return cures.length ? cures.includes(view.failure?.code) : phases.includes(view.phase);
  };
  const found = Object.entries(ORDERS).filter(fits);
  return found.sort(([, a], [, b]) => b.cures.length - a.cures.length);
}

/** Whether its GPU works, even if untouched for long. */
export const worksOnGpu = (view) =>
  Math.max(view.usage?.gpu_percent ?? 0, busiest(view) ?? 0) >= WORKING_PERCENT;

/** What is worth a word beside the state. */
export function detailOf(view, now) {
  const { usage, phase } = view;
  if (phase === "warned" && view.suspends_at) return `at ${clock(view.suspends_at)}`;
  if (RUNS.includes(phase)) {
    if (usage?.busy_kernel) return "kernel busy";
    if (worksOnGpu(view)) return "GPU busy";
    if (usage?.last_active == null) return "use not known";
    const idle = now - usage.last_active;
    return idle < 60 ? "in use" : `idle ${duration(idle)}`;
  }
  if (phase === "suspended") {
    return view.failure ? "did not come back" : `for ${duration(now - view.since)}`;
  }
  const step = view.steps?.findLast((one) => one.state !== "done");
  if (!step) return "";
  return step.bytes ? `${step.title}, ${size(step.bytes)}` : step.title;
}

/** Its cards: model and memory used, the same models together. */
export function cardsOf(view) {
  const cards = view.gpus ?? [];
  const models = new Map();
  for (const { name, memory } of cards) {
    const model = (name || "GPU").replace(/^NVIDIA /, "");
    const [count, used] = models.get(model) ?? [0, 0];
    models.set(model, [count + 1, used === null || memory == null ? null : used + memory]);
  }
  return [...models].map(([model, [count, used]]) => {
    const many = count > 1 ? `${count} × ` : "";
    return `${many}${model}${used === null ? "" : ` · ${size(used)}`}`;
  });
}

export function busiest(view) {
  const known = (view.gpus ?? []).map((one) => one.sm_percent).filter((one) => one != null);
  return known.length ? Math.max(...known) : null;
}

/** What a person may be at work with there; empty: nothing. */
export function workOf(view, now) {
  const { usage } = view;
  if (!RUNS.includes(view.phase)) return "";
  if (usage?.busy_kernel) return `Kernel ${usage.busy_kernel} is busy.`;
  if (worksOnGpu(view)) return "Its GPU is busy.";
  if (view.phase === "napping") return "";
  if (usage?.last_active == null) return "It is not known whether it is in use.";
  const idle = now - usage.last_active;
  return idle < IN_USE ? `It was used ${duration(idle)} ago.` : "";
}
