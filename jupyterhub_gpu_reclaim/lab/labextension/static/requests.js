/* Marks the requests that change something and that a person has caused.
 *
 * Installed by plugins.js. The session's server cannot tell a commit from the status
 * that a panel asks for every few seconds: both are POSTs. The browser can: it knows
 * whether a person has just clicked or typed in this page. What is marked counts as use
 * of the session (lab/status.py); what the page sends by itself does not.
 *
 * It wraps makeRequest of JupyterLab's ServerConnection, which extensions send with.
 */
const HEADER = "X-GPU-Reclaim-Person";
const CHANGES = ["DELETE", "PATCH", "POST", "PUT"];

export function markRequests(connection) {
  const { makeRequest } = connection;

  connection.makeRequest = (url, init, settings) => {
    const caused = navigator.userActivation?.isActive; // for some seconds
    if (caused && CHANGES.includes(init?.method?.toUpperCase())) {
      const headers = new Headers(init.headers);
      headers.set(HEADER, "1");
      return makeRequest(url, { ...init, headers }, settings);
    }
    return makeRequest(url, init, settings);
  };
}
