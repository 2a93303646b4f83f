/* What the Hub's page of this server says, and how a person's click asks for a start.
 *
 * Asked by watch.js when the server does not answer. Looking wakes nothing: a fetch runs
 * no scripts, and it is those that resume a session for a visitor.
 */

const LOOK = { credentials: "same-origin", redirect: "manual" };

export class Hub {
  constructor({ hubHost = "", hubPrefix = "", hubUser, hubServerName }) {
    const server = [hubUser, hubServerName].filter(Boolean).map(encodeURIComponent);
    const hub = hubHost + hubPrefix.replace(/\/?$/, "/");
    this.spawnUrl = `${hub}spawn/${server.join("/")}`;
    this.pendingUrl = `${hub}spawn-pending/${server.join("/")}`;
    this.pageUrl = `${hub}user/${server.join("/")}/`;
  }

  /** {state: suspended, refused, coming, stopping, stopped, passing or away; why, code}.
   *
   * Of one that is coming also where the Hub tells its end: {events}.
   *
   * Redirects are not followed: a server that has just come up would lead through its
   * login, time and again.
   */
  async read() {
    let answer = await fetch(this.pageUrl, LOOK);
    if (answer.type === "opaqueredirect") {
      answer = await fetch(this.pendingUrl, LOOK);
    }
    if (answer.type === "opaqueredirect") {
      return { state: "passing" }; // it is just coming up, or the Hub's login has ended
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const reason = page.querySelector(".gpu-reclaim-reason");
    if (page.querySelector("[data-gpu-reclaim-resume]")) {
      return { state: "suspended" };
    }
    if (reason) {
      const heading = page.querySelector("h1")?.textContent.trim() || "";
      const why = reason.textContent.trim();
      return { state: "refused", heading, why, code: reason.dataset.code };
    }
    if (new URL(answer.url).pathname.includes("/spawn-pending/") && answer.ok) {
      const told = page.getElementById("gpu-reclaim-restore")?.dataset.events;
      const events = told && new URL(told, answer.url).href;
      return { state: page.querySelector("#progress-bar") ? "coming" : "stopping", events };
    }
    // the Hub says "not running" with 424; anything else is no answer of the Hub's
    return { state: answer.status === 424 ? "stopped" : "away" };
  }

  /** Begins to resume the session; the next look says how that goes. */
  async resume() {
    await fetch(this.spawnUrl, LOOK);
  }
}
