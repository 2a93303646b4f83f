// Keeps the cards of one's own sessions up to date. The page works without it.
import {
  begin,
  calmly,
  fetched,
  follow,
  nowAndThen,
  replaced,
  sendForms,
} from "./live.js";
import { urlOf } from "./words.js";

const mine = document.getElementById("mine");
const { prefix, xsrf, user } = mine.dataset;
const looks = new Map(); // session -> a look at it, soon

const cards = () => [...mine.querySelectorAll("[data-session]")];
const cardOf = (session) =>
  cards().find((card) => card.dataset.session === session);

async function look(session) {
  if (document.hidden) return;
  const part = await fetched(`${urlOf(prefix, session)}/card`, xsrf);
  const old = cardOf(session);
  if (part === undefined) old?.remove();
  const fresh = part?.querySelector("[data-session]");
  if (!fresh) return;
  if (old) {
    replaced(old, fresh);
    return;
  }
  mine.querySelector(".empty")?.remove();
  mine.append(fresh);
}

function changed(session) {
  if (!looks.has(session)) looks.set(session, calmly(() => look(session)));
  looks.get(session)(300);
}

const all = () => cards().forEach((card) => changed(card.dataset.session));

begin();
sendForms(mine, (session) => session && changed(session));
nowAndThen(all, 60000); // "12 min ago" grows old by itself
const query = new URLSearchParams({ user });
void follow(`${prefix}api/events?${query}`, xsrf, {
  changed,
  present: (known) =>
    cards().forEach((card) => known.has(card.dataset.session) || card.remove()),
});
