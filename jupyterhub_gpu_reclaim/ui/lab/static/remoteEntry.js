/* An open tab of a suspended session says so, and brings it back on a click.
 *
 * Loaded by JupyterLab (>= 4) and Notebook (>= 7) as a prebuilt extension. It takes the
 * place of "@jupyterlab/hub-extension:connectionlost", whose dialog calls a saved
 * session "not running" and offers to restart it. It never resumes by itself: an open
 * tab polls for ever, and only a person's click may wake a session.
 *
 * This is the module-federation container itself, written by hand: one plugin that uses
 * two modules of the page needs no bundler, and what is read here is what runs.
 */
(() => {
  "use strict";
  const NAME = "jupyterhub-gpu-reclaim";
  const POLL_MS = 1000;
  const GIVE_UP_MS = 180000;
  let shared = {};

  /** A module that the page shares with its extensions. */
  async function load(name) {
    const [version] = Object.values(shared[name] || {});
    if (!version) {
      throw new Error(`${NAME}: this page has no ${name}`);
    }
    return (await version.get())();
  }

  /** What the Hub says in place of the server: "running", "saved" or "stopped". */
  async function stateOf(baseUrl) {
    // A fetch of the page runs none of its scripts, so it wakes nothing.
    const page = await fetch(baseUrl, { credentials: "same-origin" });
    if (page.status < 400 && !new URL(page.url).pathname.includes("/hub/")) {
      return "running";
    }
    const saved = (await page.text()).includes("data-gpu-reclaim-resume");
    return saved ? "saved" : "stopped";
  }

  async function makePlugin() {
    const { IConnectionLost, JupyterFrontEnd, JupyterLab } = await load(
      "@jupyterlab/application"
    );
    const { Dialog, Notification, showDialog } = await load("@jupyterlab/apputils");

    function activate(app, paths, info) {
      const { hubHost = "", hubPrefix = "", hubUser, hubServerName, base } = paths.urls;
      const parts = ["spawn", hubUser, hubServerName].filter(Boolean);
      const spawnUrl =
        hubHost + hubPrefix.replace(/\/?$/, "/") + parts.map(encodeURIComponent).join("/");
      let asking = false;
      let notice = "";

      function say(message, type, actions = []) {
        if (notice) {
          Notification.dismiss(notice);
        }
        notice = Notification.emit(message, type, { autoClose: false, actions });
      }

      function done(message) {
        Notification.dismiss(notice);
        notice = "";
        Notification.success(message, { autoClose: 4000 });
      }

      function offer(message) {
        say(message, "info", [{ label: "Resume", callback: () => void resume() }]);
      }

      async function resume() {
        say("Bringing your session back …", "in-progress");
        const until = Date.now() + GIVE_UP_MS;
        try {
          await fetch(spawnUrl, { credentials: "same-origin" });
          while (Date.now() < until) {
            if ((await stateOf(base)) === "running") {
              await app.serviceManager.sessions.refreshRunning();
              done("Your session is back.");
              return;
            }
            await new Promise((wake) => setTimeout(wake, POLL_MS));
          }
        } catch (error) {
          console.warn(`${NAME}: ${error}`);
        }
        // The Hub's own page has the reason, and the choices.
        say("Your session did not come back yet.", "warning", [
          { label: "Show why", callback: () => void window.open(spawnUrl, "_blank") },
        ]);
      }

      async function ask(state) {
        const saved = state === "saved";
        const result = await showDialog({
          title: saved ? "Your session is saved" : "Your server is not running",
          body: saved
            ? "It was suspended. Its kernels, variables and terminals come back as " +
              "they were: click Resume."
            : `The server at ${base} was stopped. Start it again?`,
          buttons: [
            Dialog.cancelButton({ label: "Not now" }),
            Dialog.okButton({ label: saved ? "Resume" : "Start" }),
          ],
        });
        if (!result.button.accept) {
          offer(saved ? "Your session is saved." : "Your server is not running.");
        } else if (saved) {
          await resume();
        } else {
          window.open(spawnUrl, "_blank");
        }
      }

      // Called by the page for every request that found no server.
      return async function connectionLost() {
        if (!hubPrefix || asking || notice) {
          return;
        }
        asking = true;
        if (info) {
          info.isConnected = false;
        }
        try {
          const state = await stateOf(base);
          if (state !== "running") {
            await ask(state);
          }
        } catch (error) {
          console.warn(`${NAME}: ${error}`); // no Hub, no network: the next poll asks
        } finally {
          asking = false;
          if (info) {
            info.isConnected = true;
          }
        }
      };
    }

    return {
      id: `${NAME}:connectionlost`,
      description: "Says that a suspended session is saved, and resumes it on a click.",
      requires: [JupyterFrontEnd.IPaths],
      optional: [JupyterLab.IInfo],
      provides: IConnectionLost,
      autoStart: true,
      activate,
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
