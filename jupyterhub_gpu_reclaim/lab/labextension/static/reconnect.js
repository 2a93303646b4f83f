/* Connects the kernels and terminals of a page again once the server answers.
 *
 * Called by watch.js. What a page shows (cells, outputs, what was typed) is not touched.
 */
const RECONNECT_MS = 5000;

/** Kernels and terminals of this page that are shown in its main area. */
function connectionsOf(app) {
  const found = [];
  for (const widget of app.shell.widgets("main")) {
    const kernel = widget.sessionContext?.session?.kernel;
    const terminal = widget.content?.session;
    found.push(...[kernel, terminal].filter((one) => one?.reconnect));
  }
  return found;
}

/** Whether all kernels are those that were there before. */
export async function reconnect(app) {
  const { kernels, sessions } = app.serviceManager;
  const mine = connectionsOf(app);
  const before = mine.map((one) => one.id).filter(Boolean);
  await Promise.allSettled([kernels.refreshRunning(), sessions.refreshRunning()]);
  const now = new Set([...kernels.running()].map((model) => model.id));
  const lost = mine.filter((one) => one.connectionStatus !== "connected");
  await Promise.race([
    Promise.allSettled(lost.map((one) => !one.isDisposed && one.reconnect())),
    new Promise((wake) => setTimeout(wake, RECONNECT_MS)),
  ]);
  return before.every((id) => now.has(id));
}
