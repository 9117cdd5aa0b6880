// The playground's videos: begun here, followed as they are made, and played.
import { ask, at, call } from "./api.js";
import { Choices } from "./choices.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { showCurl, writeFormCurl, writeJsonCurl } from "./curl.js";
import { t } from "./language.js";
import { watchModel } from "./model.js";
import { setReason } from "./model_facts.js";
import { showReceipt, tellMs, tellUsd } from "./receipt.js";

const byId = (id) => document.getElementById(id);
const form = byId("video");
const make = byId("make");
const model = watchModel(form);
const EVENTS = ["queued", "in_progress", "processing", "completed", "failed"].map((status) => `video.${status}`);
const WORDS = { queued: t("queued"), in_progress: t("in progress"), processing: t("in progress"), completed: t("completed"), failed: t("failed") };
const POLL_MS = 3000;

const lengths = new Choices(form.elements.seconds);
const sizes = new Choices(form.elements.size);
const frame = form.elements.input_reference;
let frameReason = ""; // why the chosen model starts from no picture

// A picture that is chosen already can still be taken away.
const showFrameReason = () => setReason(frame, frame.files.length ? "" : frameReason);
frame.addEventListener("change", showFrameReason);

model.followOptions((name, options) => {
  lengths.offer(options.seconds ?? null, t("You cannot choose a duration for {model}.", { model: name }));
  sizes.offer(options.sizes ?? null, t("You cannot choose a size for {model}.", { model: name }));
  frameReason = options.references === false ? t("{model} cannot start a video from an image.", { model: name }) : "";
  showFrameReason();
});

function readFields() {
  const fields = { model: model.read(), prompt: form.elements.prompt.value.trim() };
  for (const name of ["seconds", "size"]) {
    const value = form.elements[name].value.trim();
    if (value) fields[name] = value;
  }
  return fields;
}

function readBody() {
  const [picture] = frame.files;
  if (!picture) return readFields();
  const body = new FormData();
  for (const [name, value] of Object.entries(readFields())) body.append(name, value);
  body.append("input_reference", picture, picture.name);
  return body;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearFaults(form);
  make.disabled = true;
  make.setAttribute("aria-busy", "true");
  try {
    const response = await ask("/v1/videos", readBody(), form.elements.key.value);
    new Film(await response.json());
  } catch (fault) {
    showFault(form, fault);
  }
  make.disabled = false;
  make.removeAttribute("aria-busy");
});

class Film {
  constructor(video) {
    this.id = encodeURIComponent(video.id);
    this.began = performance.now();
    this.card = byId("film").content.firstElementChild.cloneNode(true);
    this.find("h2").textContent = video.prompt ?? form.elements.prompt.value.trim();
    this.find("[data-link=page]").href = at(`/console/videos/${this.id}`);
    byId("films").prepend(this.card);
    this.card.scrollIntoView({ block: "nearest" });
    this.show(video);
    if (!this.ended) this.follow();
  }

  find(selector) {
    return this.card.querySelector(selector);
  }

  follow() {
    const events = new EventSource(at(`/v1/videos/${this.id}/events`));
    const hear = (event) => {
      this.show(JSON.parse(event.data));
      if (this.ended) events.close();
    };
    for (const name of EVENTS) events.addEventListener(name, hear);
    events.addEventListener("error", () => {
      events.close(); // a proxy may not let events through: then it is asked
      if (!this.ended) this.poll();
    });
  }

  async poll() {
    while (!this.ended && this.card.isConnected) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      try {
        this.show(await call("GET", `/v1/videos/${this.id}`));
      } catch (fault) {
        if (fault.status === 0 || fault.status >= 500 || fault.status === 429) continue;
        this.fail(fault.message);
      }
    }
  }

  show(video) {
    const badge = this.find(".badge");
    const word = WORDS[video.status] ?? String(video.status);
    const tone = { completed: "good", failed: "bad" }[video.status] ?? "quiet";
    badge.className = `badge ${tone}`;
    if (badge.textContent !== word) badge.textContent = word;
    this.find("progress").value = video.progress ?? 0;
    const measures = [video.seconds && `${video.seconds} s`, video.size].filter(Boolean);
    showReceipt(this.find(".receipt"), measures, null);
    if (video.status === "completed") this.play(measures);
    else if (video.status === "failed") this.fail(`${video.error?.message ?? t("The provider gave no reason.")} ${t("Nothing is charged.")}`);
  }

  fail(why) {
    this.ended = true;
    const place = this.find(".error");
    place.textContent = why;
    place.hidden = false;
    this.find("progress").hidden = true;
  }

  async play(measures) {
    this.ended = true;
    this.find("progress").hidden = true;
    const film = this.find("video");
    film.src = at(`/v1/videos/${this.id}/content`);
    film.hidden = false;
    const file = this.find("[data-link=file]");
    file.href = film.src;
    file.hidden = false;
    const took = t("completed in {time}", { time: tellMs(performance.now() - this.began) });
    showReceipt(this.find(".receipt"), [...measures, took], null);
    try {
      const { cost_usd } = await call("GET", `/admin/v1/videos/${this.id}`);
      showReceipt(this.find(".receipt"), [tellUsd(cost_usd), ...measures, took], null);
    } catch {
      // What it cost stands on its page too.
    }
  }
}

byId("show-curl").addEventListener("click", () => {
  const fields = readFields();
  fields.prompt ||= form.elements.prompt.placeholder;
  const [picture] = frame.files;
  const url = form.dataset.url;
  showCurl(picture ? writeFormCurl(url, fields, [["input_reference", picture.name]]) : writeJsonCurl(url, fields));
});
