/* An open tab of a suspended session says so, and brings it back on a click.
 *
 * Loaded by JupyterLab (>= 4) and Notebook (>= 7) as a prebuilt extension. It takes the
 * place of "@jupyterlab/hub-extension:connectionlost", whose dialog calls a saved
 * session "not running" and offers to restart it. It never resumes by itself: an open
 * tab polls for ever, and only a person's click may wake a session.
 *
 * This is the module-federation container itself, written by hand: one plugin that uses
 * three modules of the page needs no bundler, and what is read here (and in watch.js
 * and notice.js) is what runs.
 */
(() => {
  "use strict";
  const NAME = "jupyterhub-gpu-reclaim";
  const WATCH = new URL("watch.js", document.currentScript.src).href;
  let shared = {};

  /** A module that the page shares with its extensions. */
  async function load(name) {
    const [version] = Object.values(shared[name] || {});
    if (!version) {
      throw new Error(`${NAME}: this page has no ${name}`);
    }
    return (await version.get())();
  }

  async function makePlugin() {
    const { ConnectionLost, IConnectionLost, JupyterFrontEnd, JupyterLab } = await load(
      "@jupyterlab/application"
    );
    const { Dialog } = await load("@jupyterlab/apputils");
    const { ServerConnection } = await load("@jupyterlab/services");
    const { Watch } = await import(WATCH); // now: later, the server may be away
    return {
      id: `${NAME}:connectionlost`,
      description: "Says that a suspended session is saved, and resumes it on a click.",
      requires: [JupyterFrontEnd.IPaths],
      optional: [JupyterLab.IInfo],
      provides: IConnectionLost,
      autoStart: true,
      activate(app, paths, info) {
        if (!paths.urls.hubPrefix) {
          return ConnectionLost; // no Hub here: the page's own words
        }
        const parts = { Dialog, ServerConnection };
        const watch = new Watch(app, paths, info, parts);
        // JupyterLab asks the service that is provided here, Notebook asks nobody
        app.serviceManager.connectionFailure.connect(() => void watch.lost());
        return () => watch.lost();
      },
    };
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init(scope) {
      shared = scope;
    },
    async get(module) {
      if (module !== "./extension") {
        throw new Error(`${NAME}: there is no module ${module}`);
      }
      const plugin = await makePlugin();
      return () => plugin;
    },
  };
})();
