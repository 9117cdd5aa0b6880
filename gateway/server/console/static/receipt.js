// What a call took: time, tokens, and money. The gateway writes a call's row a moment after its end.
import { at, call } from "./api.js";
import { t } from "./language.js";

const WAITS_MS = [80, 160, 320, 640, 1280, 2560];

// The row of a request of that key, or null where it does not come.
async function findRow(requestId, key) {
  if (!requestId) return null;
  for (const wait of WAITS_MS) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    try {
      const { data } = await call("GET", `/admin/v1/requests?key=${encodeURIComponent(key)}&limit=20`);
      const row = data.find((one) => one.id === requestId);
      if (row) return row;
    } catch {
      return null;
    }
  }
  return null;
}

// As the server writes them (console/filters.py).
export function tellUsd(amount) {
  if (amount === 0) return "$0";
  if (amount < 0.0001) return "<$0.0001";
  const places = Math.round(amount * 1e4) >= 1000 ? 2 : 4;
  return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: places })}`;
}

export function tellMs(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
}

// Parts with dots between them, and a way to the whole of it.
export function showReceipt(place, parts, requestId) {
  place.textContent = parts.filter(Boolean).join(" · ");
  if (requestId) {
    const link = document.createElement("a");
    link.href = at(`/console/requests/${encodeURIComponent(requestId)}`);
    link.textContent = t("Details");
    if (place.textContent) place.append(" · ");
    place.append(link);
  }
  place.hidden = !place.textContent;
}

function tellTokens({ prompt_tokens: input, completion_tokens: output }) {
  return t("{input} tokens in, {output} out", { input, output });
}

const isCount = (value) => typeof value === "number" && Number.isFinite(value);

// What is known of a chat's answer: at once from the stream, and its cost as soon as that is on record.
export async function tellAnswer(place, trace, key, how = "") {
  const usage = trace.usage ?? {};
  const tokens = isCount(usage.prompt_tokens) && isCount(usage.completion_tokens)
    ? tellTokens(usage)
    : "";
  const times = [
    trace.firstMs === null ? "" : t("first token after {time}", { time: tellMs(trace.firstMs) }),
    trace.totalMs === null ? "" : t("{time} in total", { time: tellMs(trace.totalMs) }),
  ];
  showReceipt(place, [how, tokens, ...times], null);
  const row = await findRow(trace.requestId, key);
  const inRow = row && !tokens ? tellTokens(row) : tokens;
  showReceipt(place, [how, row ? tellUsd(row.cost_usd) : "", inRow, ...times], trace.requestId);
}

// The cost and the time of a whole answer; the cost comes with its headers, or from the request's row.
export async function tellCost(place, response, key, ms) {
  const requestId = response.headers.get("X-Request-Id");
  const told = response.headers.get("x-gateway-cost-usd");
  const took = t("{time} in total", { time: tellMs(ms) });
  showReceipt(place, [took], null);
  const usd = told === null ? (await findRow(requestId, key))?.cost_usd : Number(told);
  showReceipt(place, [isCount(usd) ? tellUsd(usd) : "", took], requestId);
}
