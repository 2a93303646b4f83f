// Keeps the page of one's own sessions, or of one session, up to date. It works without it.
import { begin, calmly, fetched, follow, nowAndThen, replaced, sendForms } from "./live.js";

const shown = () => document.getElementById("own");
const { prefix, xsrf, user, only } = shown().dataset;

const look = calmly(async () => {
  if (document.hidden) return;
  const part = await fetched(location.pathname, xsrf);
  const fresh = part?.querySelector("#own");
  if (fresh) replaced(shown(), fresh);
});

begin();
sendForms(document.getElementById("main"), () => look(300));
nowAndThen(() => look(300), 60000); // "12 min ago" grows old by itself
const query = new URLSearchParams({ user, state: "0" });
void follow(`${prefix}api/events?${query}`, xsrf, {
  changed: (session) => (only === undefined || session === only) && look(300),
  missed: () => look(300),
});
