/* Puts away the page's own dialogs about requests that met a session being suspended.
 *
 * Called by watch.js while it tells the same more calmly. A save that failed just then
 * is made again by the page, once the server is back.
 */
// What the Hub and the proxy answer meanwhile; some dialogs show the words only.
const AWAY = /\b(424|502|503|504)\b|JupyterHub server no longer running/;

/** `tracker` knows the open dialogs of the page (Dialog.tracker of JupyterLab). */
export function putAway(tracker) {
  tracker?.forEach((dialog) => {
    if (AWAY.test(dialog.node.textContent)) {
      dialog.reject();
    }
  });
}
