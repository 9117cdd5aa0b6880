// The playground's pictures: made of words, or of another picture with a mask over what may change.
import { ask } from "./api.js";
import { Choices } from "./choices.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { showCurl, writeFormCurl, writeJsonCurl } from "./curl.js";
import { n, t } from "./language.js";
import { Mask } from "./mask.js";
import { watchModel } from "./model.js";
import { setReason } from "./model_facts.js";
import { showReceipt, tellMs, tellUsd } from "./receipt.js";
import { watchStop } from "./stop.js";

const byId = (id) => document.getElementById(id);
const form = byId("images");
const make = byId("make");
const model = watchModel(form);
const mask = new Mask(byId("editing"));
const request = watchStop(make, byId("stop"));
const KINDS = { iVBOR: "image/png", "/9j/": "image/jpeg", UklGR: "image/webp", R0lGO: "image/gif" };
const sizes = new Choices(form.elements.size);
let source = null; // the picture to change
let takesMask = true;
let editReason = ""; // why the chosen model does not change pictures

const isMasked = () => takesMask && mask.isPainted;

// A picture that is chosen already can still be taken away.
const showEditReason = () => setReason(form.elements.image, source ? "" : editReason);

model.followOptions((name, options) => {
  sizes.offer(options.sizes ?? null, t("You cannot choose a size for {model}.", { model: name }));
  form.elements.n.max = options.max_images ?? 10;
  editReason = options.edits === false ? t("{model} cannot edit images.", { model: name }) : "";
  showEditReason();
  takesMask = options.masks !== false;
  byId("mask-tools").hidden = byId("h-mask").hidden = !takesMask;
  byId("mask").inert = !takesMask;
  byId("no-mask").hidden = takesMask;
});

function readFields() {
  const fields = { model: model.read(), prompt: form.elements.prompt.value.trim(), n: Number(form.elements.n.value || 1) };
  for (const name of ["size", "quality"]) {
    const value = form.elements[name].value.trim();
    if (value) fields[name] = value;
  }
  return { ...fields, response_format: "b64_json" };
}

async function send(key, signal) {
  const fields = readFields();
  if (!source) return ask("/v1/images/generations", fields, key, signal);
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, String(value));
  if (isMasked()) {
    // Both from the same canvas: of one size, and turned as the reader sees it.
    body.append("image", await mask.writePicture(), "picture.png");
    body.append("mask", await mask.writeMask(), "mask.png");
  } else {
    body.append("image", source, source.name || "picture.png");
  }
  return ask("/v1/images/edits", body, key, signal);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (request.isOpen()) return;
  clearFaults(form);
  byId("receipt").textContent = "";
  const began = performance.now();
  const prompt = form.elements.prompt.value.trim();
  try {
    const response = await send(form.elements.key.value, request.open());
    const cost = Number(response.headers.get("x-gateway-cost-usd") ?? NaN);
    const requestId = response.headers.get("X-Request-Id");
    const answer = await response.json();
    const items = Array.isArray(answer.data) ? answer.data : [];
    const shown = items.map((item) => showPicture(item, prompt));
    byId("pictures").prepend(...shown);
    const count = n("{count} image", "{count} images", items.length);
    const took = t("{time} in total", { time: tellMs(performance.now() - began) });
    showReceipt(byId("receipt"), [Number.isNaN(cost) ? "" : tellUsd(cost), count, took], requestId);
    shown[0]?.scrollIntoView({ block: "nearest" });
  } catch (fault) {
    if (fault.name === "AbortError") showReceipt(byId("receipt"), [t("Stopped. You may be charged for images generated until then.")], null);
    else showFault(form, fault);
  } finally {
    request.close();
  }
});

function readPicture(item) {
  if (typeof item.b64_json !== "string") return null;
  const kind = KINDS[item.b64_json.slice(0, item.b64_json.startsWith("/") ? 4 : 5)];
  if (!kind) return null; // what is no picture is not shown as one
  const bytes = Uint8Array.from(atob(item.b64_json), (sign) => sign.charCodeAt(0));
  return new Blob([bytes], { type: kind });
}

function showPicture(item, prompt) {
  const figure = byId("picture").content.firstElementChild.cloneNode(true);
  const words = typeof item.revised_prompt === "string" && item.revised_prompt ? item.revised_prompt : prompt;
  figure.querySelector("span").textContent = words;
  const picture = figure.querySelector("img");
  const [link, change] = [figure.querySelector("a"), figure.querySelector("button")];
  const blob = readPicture(item);
  if (!blob) {
    picture.remove();
    change.remove();
    showAddress(link, item.url);
    return figure;
  }
  picture.alt = words.slice(0, 200);
  picture.src = link.href = URL.createObjectURL(blob);
  link.download = `picture.${blob.type.split("/")[1].replace("jpeg", "jpg")}`;
  change.addEventListener("click", () => {
    take(new File([blob], link.download, { type: blob.type }));
    form.scrollIntoView({ block: "start" });
  });
  return figure;
}

// A picture that came as an address: a link, and only where it is one.
function showAddress(link, url) {
  const isWeb = typeof url === "string" && /^https?:\/\//i.test(url);
  if (!isWeb) {
    link.replaceWith(t("The answer contains no image that can be shown."));
    return;
  }
  link.href = url;
  link.rel = "noreferrer noopener";
  link.target = "_blank";
  link.removeAttribute("download");
  link.textContent = t("Open image");
}

async function take(file) {
  const error = form.querySelector("[data-error-of=image]");
  error.hidden = true;
  try {
    if (file) await mask.open(file);
    source = file;
  } catch {
    source = null;
    form.elements.image.value = "";
    error.textContent = t("This browser cannot read the file. Choose a PNG, JPEG or WebP image.");
    error.hidden = false;
  }
  byId("editing").hidden = !source;
  showEditReason();
  make.textContent = source ? t("Edit image") : t("Generate image");
}

form.elements.image.addEventListener("change", (event) => take(event.target.files[0] ?? null));
byId("source-clear").addEventListener("click", () => {
  form.elements.image.value = "";
  take(null);
  form.elements.image.focus();
});
byId("show-curl").addEventListener("click", () => {
  const fields = readFields();
  fields.prompt ||= form.elements.prompt.placeholder;
  const files = [["image", source?.name || "picture.png"], ...(isMasked() ? [["mask", "mask.png"]] : [])];
  const url = form.dataset.url;
  showCurl(source ? writeFormCurl(`${url}edits`, fields, files) : writeJsonCurl(`${url}generations`, fields));
});
