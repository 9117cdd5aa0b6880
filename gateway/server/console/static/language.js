// The page's language. The server sends the messages of every language but English before this script runs
// (console/language.py); a message without a translation stays as it is.
const messages = globalThis.MESSAGES ?? {};

function fill(text, values) {
  return text.replaceAll(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

// t("Copied"), t("Type {name} to confirm", { name })
export function t(message, values = {}) {
  return fill(messages[message] ?? message, values);
}

// n("{count} image", "{count} images", 3)
export function n(one, many, count, values = {}) {
  return fill(messages[one] ?? (count === 1 ? one : many), { count, ...values });
}

export const language = document.documentElement.lang;

const two = (number) => String(number).padStart(2, "0");

// 2027-01-31 12:05:09, in the reader's time zone: one form for every language.
export function formatMoment(moment) {
  const day = [moment.getFullYear(), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
  const clock = [two(moment.getHours()), two(moment.getMinutes()), two(moment.getSeconds())].join(":");
  return `${day} ${clock}`;
}

// The same for a column: 12:05:09 today, 01-30 12:05 this year, 2026-12-31 before.
export function formatShort(moment, now = new Date()) {
  const text = formatMoment(moment);
  if (text.slice(0, 10) === formatMoment(now).slice(0, 10)) return text.slice(11);
  return moment.getFullYear() === now.getFullYear() ? text.slice(5, 16) : text.slice(0, 10);
}
