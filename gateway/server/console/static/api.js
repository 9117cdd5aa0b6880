// The admin API and the public one, as this console's pages call them.
import { t } from "./language.js";
import { hasInput } from "./touched.js";

// Where a reverse proxy serves the gateway: "/ai" of https://example.com/ai, mostly nothing.
const PREFIX = document.documentElement.dataset.prefix ?? "";

// The address of one of the gateway's own paths.
export const at = (path) => PREFIX + path;

export class Fault extends Error {
  constructor(status, error) {
    super(tell(status, error.message));
    this.status = status;
    this.code = error.code ?? "";
    this.param = error.param ?? null;
  }
}

// The request's id says nothing about what a reader has done wrong; where it is the gateway that is, it helps to ask.
function tell(status, message) {
  if (typeof message !== "string" || !message) return t("The gateway gave no reason");
  return status >= 400 && status < 500 ? message.replace(/ \(request id: req_\w+\)$/, "") : message;
}

async function readFault(response) {
  try {
    return new Fault(response.status, (await response.json()).error ?? {});
  } catch {
    return new Fault(response.status, { message: t("The gateway answered {status}", { status: response.status }) });
  }
}

export async function send(path, options) {
  let response;
  try {
    response = await fetch(at(path), { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault(0, { message: t("The gateway cannot be reached") });
  }
  if (response.ok) return response;
  const fault = await readFault(response);
  if (fault.code === "signed_out" && !location.pathname.endsWith("/sign-in")) signInAgain(options.method ?? "GET", path);
  throw fault;
}

let wasTold = false;

// Whoever has written something keeps it, comes back from another tab, and sends it again. What a page looks up by itself
// says so once.
function signInAgain(method, path) {
  const here = encodeURIComponent(location.pathname.slice(PREFIX.length) + location.search);
  if (!["POST", "PATCH", "PUT"].includes(method)) {
    const leaves = !hasInput() || path === "/admin/v1/session"; // who signs out wants to leave
    if (leaves) location.assign(at(`/console/sign-in?next=${here}`));
    if (leaves || wasTold) return;
  }
  wasTold = true;
  const dialog = document.createElement("dialog");
  dialog.className = "question";
  dialog.setAttribute("aria-label", t("Your session has expired"));
  const words = document.createElement("p");
  words.textContent = t("Your session has expired and nothing was saved. Your input is still here. Open another tab to sign in, then submit again.");
  const form = document.createElement("form");
  form.method = "dialog";
  form.className = "row end";
  const close = document.createElement("button");
  close.className = "quiet";
  close.textContent = t("Close");
  const link = document.createElement("a");
  link.className = "button primary";
  link.textContent = t("Sign in");
  link.href = at("/console/sign-in");
  link.target = "_blank";
  link.rel = "noopener";
  form.append(close, link);
  dialog.append(words, form);
  dialog.addEventListener("close", () => dialog.remove());
  link.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

// An operation of the admin API: call("PATCH", "/admin/v1/keys/3", {rpm: 60}).
export async function call(method, path, body, signal) {
  const headers = { "X-Gateway-Console": "1" };
  const options = { method, headers, signal };
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body ?? {});
  }
  const response = await send(path, options);
  return response.status === 204 ? null : response.json();
}

// A call of the public API, which the key of that id pays. `body` is a form, or anything that JSON can say.
export function ask(path, body, keyId, signal) {
  const headers = { "X-Gateway-Key": String(keyId) };
  const form = body instanceof FormData;
  if (!form) headers["Content-Type"] = "application/json";
  return send(path, { method: "POST", headers, body: form ? body : JSON.stringify(body), signal });
}

// What a stream of events carries, one parsed object after another; ends after [DONE].
export async function* readEvents(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
