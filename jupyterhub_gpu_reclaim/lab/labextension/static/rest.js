/* The waits of a tab: one that is hidden never looks, and a click ends a wait early. */

export class Rest {
  constructor() {
    this.nudge = () => {};
    document.addEventListener("visibilitychange", () => this.nudge());
  }

  /** Waits so long, and for as long as nobody looks at this tab. */
  async pause(milliseconds) {
    do {
      await new Promise((wake) => {
        const timer = setTimeout(wake, milliseconds);
        this.nudge = () => {
          clearTimeout(timer);
          wake();
        };
      });
    } while (document.hidden);
  }
}
