// The playground's speech: a text becomes a recording.
import { ask } from "./api.js";
import { Choices } from "./choices.js";
import { showCurl, writeJsonCurl } from "./curl.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { t } from "./language.js";
import { watchModel } from "./model.js";
import { tellCost } from "./receipt.js";
import { watchStop } from "./stop.js";

const byId = (id) => document.getElementById(id);
const form = byId("speech");
const model = watchModel(form);
const request = watchStop(byId("make"), byId("stop"));
const ENDINGS = { "audio/mpeg": "mp3", "audio/wav": "wav", "audio/x-wav": "wav", "audio/opus": "opus", "audio/ogg": "ogg", "audio/flac": "flac", "audio/aac": "aac" };
const MAX_SHOWN = 200; // characters of a caption

const voices = new Choices(form.elements.voice, { other: true });
model.followOptions((name, options) => {
  voices.offer(options.voices ?? null, t("{model} is itself a voice.", { model: name }));
});

function readFields() {
  const fields = { model: model.read(), input: form.elements.input.value.trim() };
  for (const name of ["voice", "response_format", "instructions"]) {
    const value = form.elements[name].value.trim();
    if (value) fields[name] = value;
  }
  fields.voice ??= fields.model; // whose voice that is; the API wants one
  if (form.elements.speed.value !== "") fields.speed = Number(form.elements.speed.value);
  return fields;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (request.isOpen()) return;
  clearFaults(form);
  const fields = readFields();
  const key = form.elements.key.value;
  const began = performance.now();
  byId("receipt").textContent = "";
  try {
    const response = await ask("/v1/audio/speech", fields, key, request.open());
    const recording = await response.blob();
    show(recording, fields);
    tellCost(byId("receipt"), response, key, performance.now() - began);
  } catch (fault) {
    if (fault.name === "AbortError") byId("receipt").textContent = t("Stopped. You may be charged for speech generated until then.");
    else showFault(form, fault);
  } finally {
    request.close();
  }
});

function show(recording, fields) {
  const figure = byId("recording").content.firstElementChild.cloneNode(true);
  const text = fields.input.slice(0, MAX_SHOWN);
  figure.querySelector("span").textContent = text;
  const audio = figure.querySelector("audio");
  const link = figure.querySelector("a");
  audio.src = link.href = URL.createObjectURL(recording);
  audio.setAttribute("aria-label", text);
  link.download = nameFile(fields.response_format ?? ENDINGS[recording.type]);
  byId("recordings").prepend(figure);
  figure.scrollIntoView({ block: "nearest" });
}

function nameFile(ending) {
  return ending ? `speech.${ending}` : "speech";
}

byId("show-curl").addEventListener("click", () => {
  const fields = readFields();
  fields.input ||= form.elements.input.placeholder;
  showCurl(writeJsonCurl(form.dataset.url, fields, `-o ${nameFile(fields.response_format)} `));
});
