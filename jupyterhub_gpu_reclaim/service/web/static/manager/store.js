// The checkpoints of all sessions: how large, how old, why each is kept.
import { ask } from "../dialogs.js";
import { duration, keyOf, size } from "../words.js";
import { say } from "../live.js";
import { button, count, el } from "./dom.js";
import { each, pathOf, send } from "./orders.js";
import { linkOf, nameOf } from "./sessions.js";

const KEEPING = {
  current: "the session is suspended in it",
  superseded: "the session was resumed from it",
  aside: "it was put aside",
};

export const idOf = ({ key, id }) => `${keyOf(key)} ${id}`;

/** Every checkpoint, with its session. */
export const stored = (views) => views.flatMap(({ key, kept }) => kept.map((one) => ({ ...one, key })));

const what = (one) => (one.save_point ? "save point" : one.keeping === "current" ? "suspended session" : "checkpoint");

function why(one) {
  if (!one.save_point) return KEEPING[one.keeping] ?? one.keeping;
  return one.name ? `save point “${one.name}”` : "save point";
}

/** Deletes them for good, once that is confirmed. */
export async function deleteAll(chosen) {
  const fit = chosen.filter((one) => one.deletable);
  if (!fit.length) {
    say("They are in use.", true);
    return;
  }
  const current = fit.filter((one) => one.keeping === "current" && !one.save_point);
  const lost = current.length
    ? `${count(current.length, "suspended session")} of these ${current.length === 1 ? "loses" : "lose"} programs, variables and terminals for good.`
    : "What they hold cannot be brought back; the sessions themselves stay as they are.";
  const left = chosen.length - fit.length;
  const told = [`${lost} Files in the home folder stay.`];
  if (left) told.push(`${left} of the ${chosen.length} selected are in use, and stay.`);
  const bytes = fit.reduce((sum, one) => sum + one.stored_bytes, 0);
  const name = fit.length === 1 ? `the ${what(fit[0])} of ${keyOf(fit[0].key)}` : count(fit.length, "checkpoint");
  if (!(await ask(`Delete ${name} (${size(bytes)})?`, told, "Delete for good"))) return;
  const refused = await each(fit, (one) => send(pathOf(one.key, "delete"), "POST", { checkpoint: one.id }));
  const done = fit.length - refused.length;
  say(`${count(done, "checkpoint")} deleted for good. ${refused.join("; ")}`.trim(), refused.length > 0);
}

export const columns = (box) => [
  { field: "pick", title: "", width: 40, text: idOf, by: () => null, print: (one) => box(idOf(one), `the ${what(one)} of ${nameOf(one.key)}`) },
  { field: "session", title: "Session", grow: 2, text: ({ key }) => keyOf(key), print: (one) => linkOf(one, { "data-focus": `one ${idOf(one)}` }) },
  { field: "age", title: "Made", grow: 1, text: ({ created }, now) => `${duration(now - created)} ago`, by: ({ created }) => created },
  { field: "held", title: "Held", width: 110, most: true, text: ({ logical_bytes: bytes }) => size(bytes), by: (one) => one.logical_bytes },
  { field: "stored", title: "In the store", width: 120, most: true, text: ({ stored_bytes: bytes }) => size(bytes), by: (one) => one.stored_bytes },
  { field: "why", title: "Kept because", grow: 2, text: why },
  {
    field: "until",
    title: "Deleted automatically",
    grow: 1,
    text: ({ expires }, now) => (expires == null ? "never" : expires > now ? `in ${duration(expires - now)}` : "now"),
    by: ({ expires }) => expires,
  },
  {
    field: "acts",
    title: "",
    width: 110,
    text: (one) => `${one.deletable}`,
    print: (one) =>
      one.deletable
        ? button("Delete…", () => deleteAll([one]), { class: "danger", "data-focus": `delete ${idOf(one)}`, "aria-label": `Delete the ${what(one)} of ${nameOf(one.key)}` })
        : el("span", { class: "soft" }, "in use"),
  },
];

export const byUser = ({ key }) => key.user;

export function headOf(user, all) {
  const mine = all.filter((one) => one.key.user === user);
  const bytes = mine.reduce((sum, one) => sum + one.stored_bytes, 0);
  return [user, el("span", { class: "soft" }, `${count(mine.length, "checkpoint")}, ${size(bytes)}`)];
}
