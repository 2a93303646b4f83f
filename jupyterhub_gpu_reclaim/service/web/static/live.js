// What the pages share: following the service's events, taking fresh parts of a page in,
// and sending forms without leaving the page. The pages work without it.
import { inLocalTime } from "./times.js";

/** Ask the service, with the proof that stands in the page. It has no cookie here: the
    page has an origin of its own, so that no other page can look into it. */
export async function ask(url, xsrf, signal) {
  const answer = await fetch(url, {
    headers: { "X-XSRFToken": xsrf },
    credentials: "omit",
    signal,
  });
  // the login has ended: a visit makes a new proof
  if (answer.status === 401 && !document.hidden) location.reload();
  return answer;
}

/** A part of the page as HTML; undefined where it is gone, null without an answer. */
export async function fetched(url, xsrf) {
  try {
    const answer = await ask(url, xsrf, AbortSignal.timeout(20000));
    if (answer.ok) return parsed(await answer.text());
    return answer.status === 404 ? undefined : null;
  } catch {
    return null; // the service is away; its stream says when it is back
  }
}

const parsed = (html) =>
  inLocalTime(new DOMParser().parseFromString(html, "text/html").body);

/** Put a fresh element in the place of an old one: what is open stays open, what was
    typed stays typed, what has the focus keeps it, and what is the same is not touched. */
export function replaced(old, fresh) {
  keepOpen(old, fresh);
  if (old.outerHTML === fresh.outerHTML) return;
  const had = document.activeElement;
  const within = old.contains(had);
  old.replaceWith(fresh);
  if (within) takeFocus(fresh, had);
}

const sessionOf = (one) => one.closest("[data-session]")?.dataset.session;

/** Focus what had it, of the same session. A button that is gone leaves it to the session,
    so that the next Tab goes on there and a second Enter does nothing else. */
function takeFocus(fresh, had) {
  const session = sessionOf(had);
  const same = [...fresh.querySelectorAll("[data-focus]")].find(
    (one) =>
      one.dataset.focus === had.dataset.focus && sessionOf(one) === session,
  );
  const around = [fresh, ...fresh.querySelectorAll("[data-session]")].find(
    (one) => session && one.dataset.session === session,
  );
  if (!same && around) around.tabIndex = -1;
  (same ?? around)?.focus({ preventScroll: true });
}

function keepOpen(old, fresh) {
  for (const mine of fresh.querySelectorAll("[data-keep]")) {
    const same = [...old.querySelectorAll("[data-keep]")].find(
      (other) => other.dataset.keep === mine.dataset.keep,
    );
    if (same?.matches("details")) mine.open = same.open;
    if (same?.matches("input")) mine.value = same.value;
  }
}

const STILL_MS = 60000; // the stream says something every 15 s
const AGAIN_MS = 3000;
const REFUSED_MS = 30000; // too many pages, or the login has ended

/** Call back for every change, and whenever some may have been missed.
    "changed" gets the session's key and view. */
export async function follow(url, xsrf, told) {
  for (;;) {
    const refused = await streamed(url, xsrf, told).catch(() => false);
    await new Promise((wake) => setTimeout(wake, refused ? REFUSED_MS : AGAIN_MS));
  }
}

/** Read the stream until it ends; whether it was refused. */
async function streamed(url, xsrf, { changed, missed }) {
  const left = new AbortController();
  let timer = setTimeout(() => left.abort(), STILL_MS);
  try {
    const answer = await ask(url, xsrf, left.signal);
    if (!answer.ok) return answer.status < 500;
    missed?.();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return false;
      clearTimeout(timer);
      timer = setTimeout(() => left.abort(), STILL_MS);
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) heard(block.split("\n"), changed);
    }
  } finally {
    clearTimeout(timer);
    left.abort();
  }
}

function heard([event, data], changed) {
  if (event === "event: session") {
    const view = JSON.parse(data.slice(6));
    changed(`${view.key.user}/${view.key.server ?? ""}`, view);
  }
}

/** Calls a function soon, and at most once in that time. */
export function calmly(act) {
  let timer;
  let due = Infinity;
  return (milliseconds) => {
    const at = Date.now() + milliseconds;
    if (at >= due) return;
    clearTimeout(timer);
    due = at;
    timer = setTimeout(() => {
      due = Infinity;
      act();
    }, milliseconds);
  };
}

/** Send the forms inside an element by script, and say how that went. */
export function sendForms(root, done) {
  root.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.elements.page?.value === "start") return; // it leads to the Hub's page
    event.preventDefault();
    if (form.ariaBusy) return; // it is on its way
    form.ariaBusy = "true";
    say("");
    const session = form.closest("[data-session]").dataset.session;
    const sentence = await sent(form);
    form.ariaBusy = null;
    closeMenus(root, session);
    say(...sentence);
    done(session);
  });
}

/** The one that a form was in may have been replaced while it was on its way. */
function closeMenus(root, session) {
  const around = [...root.querySelectorAll("[data-session]")].find(
    (one) => one.dataset.session === session,
  );
  const open = around?.querySelectorAll("details[open]") ?? [];
  const had = around?.contains(document.activeElement);
  for (const menu of open) menu.open = false;
  if (had && open.length) open[0].querySelector("summary").focus();
}

async function sent(form) {
  try {
    const answer = await fetch(form.action, {
      method: "POST",
      body: new URLSearchParams(new FormData(form)),
      headers: { Accept: "application/json" },
      credentials: "omit",
      signal: AbortSignal.timeout(60000),
    });
    const told = await answer.json();
    if (answer.ok) return [told];
    return [`${told.message} ${told.hint ?? ""}`.trim(), true];
  } catch {
    return ["The service does not answer. Try again in a moment.", true];
  }
}

let silence;

/** Tell the person something, in the page's line for it. */
export function say(text, bad = false) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.classList.toggle("bad", bad);
  clearTimeout(silence);
  // "is being suspended" grows old; why something was refused may be read at leisure
  if (text && !bad) silence = setTimeout(say, 8000, "");
}

/** What such a page does once: a notice that a reload does not repeat. */
export function begin() {
  const notice = document.getElementById("notice");
  if (notice.textContent) say(notice.textContent);
  const here = new URL(location.href);
  if (here.searchParams.has("done")) {
    here.searchParams.delete("done");
    history.replaceState(null, "", here);
  }
}

/** Do something now and then, and when the person looks at the page again. */
export function nowAndThen(act, milliseconds) {
  setInterval(() => document.hidden || act(), milliseconds);
  document.addEventListener("visibilitychange", () => document.hidden || act());
}
