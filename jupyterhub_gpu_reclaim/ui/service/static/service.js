// Keeps the cards of the sessions page up to date. The page works without it.
"use strict";

(() => {
  const mine = document.getElementById("mine");
  const others = document.getElementById("others");
  const { prefix, xsrf, user } = mine.dataset;
  const waiting = new Map(); // session -> timer: at most one look a second each

  const cardOf = (session) =>
    [...document.querySelectorAll("[data-session]")].find(
      (card) => card.dataset.session === session,
    );

  // user names may hold no slash, server names neither; "-" is the default server,
  // and a name of dashes gets one more (models.SessionKey.path)
  const urlOf = (session) => {
    const cut = session.indexOf("/");
    const server = session.slice(cut + 1).replace(/^-*$/, "$&-");
    return `${prefix}sessions/${encodeURIComponent(session.slice(0, cut))}/${encodeURIComponent(server)}/card`;
  };

  const sectionOf = (session) =>
    session.startsWith(`${user}/`) || !others ? mine : others;

  function replace(session, html) {
    const fresh = new DOMParser()
      .parseFromString(html, "text/html")
      .querySelector("[data-session]");
    if (!fresh) return;
    const old = cardOf(session);
    if (!old) {
      const section = sectionOf(session);
      section.querySelector(".empty")?.remove();
      section.append(fresh);
      return;
    }
    // what is open stays open, what has the focus keeps it
    for (const open of old.querySelectorAll("details[open]")) {
      for (const other of fresh.querySelectorAll("details")) {
        if (other.dataset.keep === open.dataset.keep) other.open = true;
      }
    }
    const focused = old.contains(document.activeElement)
      ? document.activeElement.dataset.focus
      : undefined;
    old.replaceWith(fresh);
    if (focused !== undefined) {
      [...fresh.querySelectorAll("[data-focus]")]
        .find((one) => one.dataset.focus === focused)
        ?.focus();
    }
  }

  async function look(session) {
    waiting.delete(session);
    if (document.hidden) return;
    try {
      const answer = await fetch(urlOf(session), {
        headers: { "X-XSRFToken": xsrf },
        signal: AbortSignal.timeout(20000),
      });
      if (answer.ok) replace(session, await answer.text());
      else if (answer.status === 404) cardOf(session)?.remove();
    } catch {
      // the service is away; its stream says when it is back
    }
  }

  function changed(session) {
    if (waiting.has(session)) return;
    waiting.set(session, setTimeout(look, 300, session));
  }

  function follow() {
    const events = new EventSource(
      `${prefix}api/events?_xsrf=${encodeURIComponent(xsrf)}`,
    );
    events.addEventListener("session", (event) => {
      const { key } = JSON.parse(event.data);
      changed(`${key.user}/${key.server ?? ""}`);
    });
    events.addEventListener("present", (event) => {
      const present = new Set(JSON.parse(event.data));
      for (const card of document.querySelectorAll("[data-session]")) {
        if (!present.has(card.dataset.session)) card.remove();
      }
    });
    events.addEventListener("error", () => {
      // a refusal (login ended, too many pages) is final for an EventSource
      if (events.readyState === EventSource.CLOSED) setTimeout(follow, 30000);
    });
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    for (const card of document.querySelectorAll("[data-session]")) {
      changed(card.dataset.session);
    }
  });
  setInterval(() => {
    // "12 min ago" grows old by itself
    for (const card of document.querySelectorAll("[data-session]")) {
      changed(card.dataset.session);
    }
  }, 60000);
  setTimeout(() => {
    // "is being saved" grows old, too; a reload shall not say it again
    document.getElementById("notice").textContent = "";
    history.replaceState(null, "", location.pathname);
  }, 8000);
  for (const time of document.querySelectorAll("time")) {
    time.title = new Date(time.dateTime).toLocaleString();
  }
  follow();
})();
