// Orders from the managers' page: calls of the API, one session's or many sessions'.
import { ask } from "../dialogs.js";
import { ask as get, say } from "../live.js";
import { ORDERS } from "../orders.js";
import { STOPS, workOf } from "../session.js";
import { keyOf, urlOf } from "../words.js";
import { count, several } from "./dom.js";

const { prefix, xsrf } = document.getElementById("manager").dataset;
const AT_ONCE = 4;

/** Asks the service and answers its JSON. */
export async function read(path) {
  const answer = await get(`${prefix}api/${path}`, xsrf, AbortSignal.timeout(60000));
  if (!answer.ok) throw new Error(`the service: ${answer.status}`);
  return answer.json();
}

/** Has something done; answers why it was not, in a sentence, or nothing. */
export async function send(path, method = "POST", body = undefined) {
  try {
    const url = path.startsWith(prefix) ? path : `${prefix}api/${path}`;
    const answer = await fetch(url, {
      method,
      body: body && JSON.stringify(body),
      headers: { "X-XSRFToken": xsrf },
      credentials: "omit",
      signal: AbortSignal.timeout(60000),
    });
    if (answer.ok) return "";
    const { message, hint } = await answer.json();
    return `${message} ${hint ?? ""}`.trim();
  } catch {
    return "The service does not answer. Try again in a moment.";
  }
}

/** The API's address of a session. */
export const pathOf = (key, more = "") =>
  urlOf(`${prefix}api/`, keyOf(key)) + (more && `/${more}`);

/** Has it done, and says what became of it. */
export async function order(path, done, method, body) {
  const refused = await send(path, method, body);
  say(refused || done, Boolean(refused));
  return !refused;
}

/** Has one order done for each of these sessions, once that is confirmed. */
export async function orderAll(kind, views, { always = true } = {}) {
  const { label, phases, many, body, stops } = ORDERS[kind];
  const now = Date.now() / 1000;
  const fit = views.filter((view) => phases.includes(view.phase));
  if (!fit.length) {
    say(`None of these sessions is in a state for “${label}”.`, true);
    return false;
  }
  const busy = stops ? fit.filter((view) => workOf(view, now)) : [];
  let meant = fit;
  if (always || busy.length) {
    const told = [];
    if (busy.length) {
      const work = fit.length === 1 ? workOf(fit[0], now) : atWork(busy);
      told.push(`${work} ${STOPS}`);
    }
    if (fit.length < views.length) {
      const left = views.length - fit.length;
      told.push(`It does not apply to ${left} of the ${views.length} selected now.`);
    }
    const calm = fit.length - busy.length;
    const others = busy.length && calm ? `Only the ${calm} at rest` : "";
    const what = fit.length === 1 ? keyOf(fit[0].key) : count(fit.length, "session");
    const yes = fit.length === 1 ? label : `${label}: all ${fit.length}`;
    const answer = await ask(`${label}: ${what}?`, told, yes, others);
    if (!answer) return false;
    if (answer === "others") meant = fit.filter((view) => !busy.includes(view));
  }
  const refused = await each(meant, (view) => send(pathOf(view.key, kind), "POST", body));
  const done = meant.length - refused.length;
  const sentence = `${count(done, "session")} ${done === 1 ? "is" : "are"} ${many}.`;
  const why = refused.length ? ` ${refused.length} not: ${several(refused, 5)}` : "";
  say(sentence + why, refused.length > 0);
  return true;
}

const atWork = (busy) =>
  `${busy.length} of them ${busy.length === 1 ? "is" : "are"} at work: ` +
  `${several(busy.map((one) => keyOf(one.key)))}.`;

/** A few at once; answers what was refused, by its session. */
export async function each(views, act) {
  const waiting = [...views];
  const refused = [];
  const worker = async () => {
    for (let view; (view = waiting.shift()); ) {
      const why = await act(view);
      if (why) refused.push(`${keyOf(view.key)}: ${why}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return refused;
}
