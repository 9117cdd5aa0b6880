// Requests under way: rows come, change and go with each event; nothing is drawn anew that has not changed.
import { at, call } from "./api.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const rows = document.getElementById("running-rows");
const table = document.getElementById("running");
const nothing = document.getElementById("nothing-runs");
const missing = document.getElementById("unanswered");
const state = document.getElementById("live-state");
const drawn = new Map();
const NODE_DIGITS = 8;
const PHASES = { reading: t("reading the request"), waiting: t("waiting for the provider"), streaming: t("streaming") };

function write(row, call) {
  const set = (name, text) => {
    const cell = row.querySelector(`[data-cell="${name}"]`);
    if (cell && cell.textContent !== text) cell.textContent = text;
  };
  set("started_at", new Date(call.started_at).toLocaleTimeString("en-GB"));
  set("model", call.model || t("not read yet"));
  const link = row.querySelector("[data-at]");
  if (call.model) link.href = link.dataset.at + encodeURIComponent(call.model);
  set("key", table.dataset.everyone === undefined ? call.key_name : `${call.account}/${call.key_name}`);
  set("channel", call.channel ?? "");
  set("node", (call.node ?? "").slice(0, NODE_DIGITS));
  set("phase", PHASES[call.phase] ?? call.phase);
  row.dataset.began = String(Date.now() - call.running_ms);
}

function show(running) {
  const seen = new Set();
  for (const call of running) {
    seen.add(call.id);
    let row = drawn.get(call.id);
    if (!row) {
      row = document.getElementById("running-row").content.firstElementChild.cloneNode(true);
      row.dataset.id = call.id;
      drawn.set(call.id, row);
      rows.append(row);
    }
    write(row, call);
  }
  for (const [id, row] of drawn) {
    if (seen.has(id)) continue;
    row.remove();
    drawn.delete(id);
  }
  table.hidden = drawn.size === 0;
  nothing.hidden = drawn.size !== 0;
  tick();
}

// Nodes of the cluster whose requests are not in the list.
function showMissing(nodes) {
  missing.hidden = nodes === "";
  missing.textContent = t("These nodes did not answer, so their requests are not shown: {nodes}", { nodes });
}

function tick() {
  for (const row of drawn.values()) {
    const seconds = (Date.now() - Number(row.dataset.began)) / 1000;
    row.querySelector('[data-cell="running"]').textContent = `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  }
}

rows.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-cancel]");
  if (!button) return;
  button.disabled = true;
  try {
    const answer = await call("POST", `/admin/v1/running/${encodeURIComponent(button.closest("tr").dataset.id)}/cancel`);
    toast(answer.cancelled ? t("Cancelled") : t("The cancellation was passed on to the nodes that did not answer"));
  } catch (fault) {
    button.disabled = false;
    toast(fault.message, "bad");
  }
});

showMissing(missing.dataset.nodes);
show(JSON.parse(document.getElementById("running-now").content.textContent));
setInterval(tick, 500);

const AGAIN_MS = 5000;

function tell(word, tone) {
  state.textContent = word;
  state.className = `badge ${tone}`;
}

function watch() {
  const source = new EventSource(at("/admin/v1/running/events"));
  source.addEventListener("open", () => tell(t("live"), "good"));
  source.addEventListener("running", (event) => show(JSON.parse(event.data)));
  source.addEventListener("unanswered", (event) => showMissing(JSON.parse(event.data).join(", ")));
  source.addEventListener("error", () => {
    tell(t("connecting"), "warn");
    if (source.readyState === EventSource.CLOSED) setTimeout(look, AGAIN_MS); // refused: it does not try again by itself
  });
}

// Once, which says why there is no more to see where that is so: the session is over.
async function look() {
  try {
    show((await call("GET", "/admin/v1/running")).data);
  } catch {
    // The gateway is away, or will not say; it is asked again.
  }
  watch();
}
watch();
