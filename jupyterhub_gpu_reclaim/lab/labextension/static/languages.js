/* Connects the language servers of a page again once the server answers.
 *
 * Installed by plugins.js. JupyterLab has one websocket for each language server, and
 * makes no other when that is lost: until the page is loaded again, no new line would be
 * checked, and nothing completed.
 *
 * It takes the way of a document that is renamed, whose connection JupyterLab does make
 * again. The lost ones are forgotten first, all of them: else the second document of a
 * language would be given what is lost, or close what the first has just opened.
 */

/** `manager` is JupyterLab's LSP document connection manager. */
export function connectLanguages(manager) {
  const lost = new Map([...manager.connections].filter(([, one]) => !one.isConnected));
  for (const [uri, connection] of lost) {
    manager.connections.delete(uri);
    manager.disconnect(connection.serverIdentifier);
  }
  for (const adapter of manager.adapters.values()) {
    if (lost.has(adapter.virtualDocument?.uri)) {
      adapter.reloadConnection();
    }
  }
}
