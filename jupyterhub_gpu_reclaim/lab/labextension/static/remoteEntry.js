/* The module-federation container that JupyterLab (>= 4) and Notebook (>= 7) load.
 *
 * Written by hand: plugins that use four modules of the page need no bundler, and what
 * is read here, and in the modules beside it, is what runs.
 */
(() => {
  "use strict";
  const NAME = "jupyterhub-gpu-reclaim";
  const PLUGINS = new URL("plugins.js", document.currentScript.src).href;
  let shared = {};

  /** A module that the page shares with its extensions. */
  async function load(name) {
    const [version] = Object.values(shared[name] || {});
    if (!version) {
      throw new Error(`${NAME}: this page has no ${name}`);
    }
    return (await version.get())();
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
      // now, and all of them: later, the server may be away
      const { makePlugins } = await import(PLUGINS);
      const plugins = await makePlugins(load);
      return () => plugins;
    },
  };
})();
