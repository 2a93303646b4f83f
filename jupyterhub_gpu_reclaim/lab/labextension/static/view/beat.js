/* One beat a second for all that counts on the page, so that no two counts of it differ.
 *
 * It begins with the first one that counts.
 */
const counts = new Set();
let timer = 0;

/** Calls it now and each second; returns what ends that. */
export function eachSecond(count) {
  counts.add(count);
  timer ||= setInterval(beat, 1000);
  beat();
  return () => counts.delete(count);
}

/** Has all count now: what one of them has learned meanwhile shows everywhere. */
export function beat() {
  for (const count of counts) {
    count();
  }
}
