// The playground's transcription: a recording becomes text.
import { ask } from "./api.js";
import { showCurl, writeFormCurl } from "./curl.js";
import { clearFaults } from "./faults.js";
import { showFault } from "./forms.js";
import { t } from "./language.js";
import { watchModel } from "./model.js";
import { tellCost } from "./receipt.js";
import { watchStop } from "./stop.js";

const byId = (id) => document.getElementById(id);
const form = byId("transcription");
const file = form.elements.file;
const model = watchModel(form);
const request = watchStop(byId("make"), byId("stop"));

function readFields() {
  const fields = { model: model.read() };
  for (const name of ["language", "response_format", "prompt"]) {
    const value = form.elements[name].value.trim();
    if (value) fields[name] = value;
  }
  return fields;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (request.isOpen()) return;
  clearFaults(form);
  const body = new FormData();
  for (const [name, value] of Object.entries(readFields())) body.append(name, value);
  body.append("file", file.files[0]);
  const key = form.elements.key.value;
  const began = performance.now();
  byId("receipt").textContent = "";
  byId("result").hidden = true;
  try {
    const response = await ask("/v1/audio/transcriptions", body, key, request.open());
    const answer = await response.text();
    byId("text").textContent = format(answer, response.headers.get("Content-Type") ?? "") || t("(Empty answer)");
    byId("result").hidden = false;
    tellCost(byId("receipt"), response, key, performance.now() - began);
  } catch (fault) {
    if (fault.name === "AbortError") byId("receipt").textContent = t("Stopped. You may be charged for the transcription.");
    else showFault(form, fault);
  } finally {
    request.close();
  }
});

// JSON with nothing but a text is shown as that text.
function format(answer, mediaType) {
  if (!mediaType.startsWith("application/json")) return answer;
  try {
    const value = JSON.parse(answer);
    return form.elements.response_format.value === "json" && typeof value.text === "string" ? value.text : JSON.stringify(value, null, 2);
  } catch {
    return answer;
  }
}

file.addEventListener("change", () => {
  const place = byId("listen");
  const audio = place.querySelector("audio");
  if (audio.src) URL.revokeObjectURL(audio.src);
  place.hidden = !file.files.length;
  if (file.files.length) audio.src = URL.createObjectURL(file.files[0]);
  else audio.removeAttribute("src");
});

byId("show-curl").addEventListener("click", () => {
  showCurl(writeFormCurl(form.dataset.url, readFields(), [["file", file.files[0]?.name ?? "recording.mp3"]]));
});
