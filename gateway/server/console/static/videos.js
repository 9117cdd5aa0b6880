// Jobs that go on are followed as they move; a remix and a deletion are calls of the public API.
import { ask, at, send } from "./api.js";
import { showFault } from "./forms.js";
import { t } from "./language.js";
import { toast } from "./toast.js";

const MOST_FOLLOWED = 6; // a browser opens no more connections to one host than that over HTTP/1.1, and needs some itself

const TONES = { completed: "good", blocked: "warn", cancelled: "quiet", failed: "bad" };
const ENDS = { content_policy_violation: "blocked", cancelled: "cancelled" };

const WORDS = {
  queued: t("queued"), processing: t("processing"), in_progress: t("in progress"), completed: t("completed"),
  blocked: t("blocked"), cancelled: t("cancelled"), failed: t("failed"),
};

function show(place, job) {
  const word = (job.status === "failed" && ENDS[job.error?.code]) || job.status;
  for (const bar of place.querySelectorAll("progress")) bar.value = job.status === "completed" ? 100 : job.progress;
  for (const badge of place.querySelectorAll("[data-status] .badge")) {
    badge.textContent = WORDS[word] ?? word;
    badge.className = `badge ${TONES[word] ?? "quiet"}`;
  }
  for (const word of place.querySelectorAll("[data-percent]")) word.textContent = `${job.progress} %`;
}

function follow(place) {
  const source = new EventSource(at(`/v1/videos/${encodeURIComponent(place.dataset.video)}/events`));
  const hear = (event) => {
    const job = JSON.parse(event.data);
    show(place, job);
    if (job.status !== "completed" && job.status !== "failed") return;
    source.close();
    if (place.dataset.reload !== undefined) location.reload();
  };
  for (const name of ["queued", "processing", "in_progress", "completed", "failed"]) source.addEventListener(`video.${name}`, hear);
}

[...document.querySelectorAll("[data-video][data-live]")].slice(0, MOST_FOLLOWED - 2).forEach(follow);

const prompt = document.querySelector("[data-own] [data-prompt]");
if (prompt) {
  const id = prompt.closest("[data-video]").dataset.video;
  const answer = await fetch(at(`/v1/videos/${encodeURIComponent(id)}`), { headers: { "X-Gateway-Console": "1" } });
  if (answer.ok) prompt.textContent = (await answer.json()).prompt ?? "";
}

document.getElementById("remix")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("[type=submit]");
  button.disabled = true; // until the next page is there: each press is another video, and paid
  try {
    const answer = await ask(
      `/v1/videos/${encodeURIComponent(form.dataset.id)}/remix`,
      { prompt: form.elements.prompt.value },
      document.getElementById("remix-key").value,
    );
    location.assign(at(`/console/videos/${encodeURIComponent((await answer.json()).id)}`));
  } catch (fault) {
    button.disabled = false;
    showFault(form, fault);
  }
});

document.getElementById("delete-video")?.addEventListener("click", async (event) => {
  const button = event.currentTarget;
  if (button.dataset.sure === undefined) {
    button.dataset.sure = "";
    button.textContent = t("Confirm delete");
    return;
  }
  button.disabled = true;
  try {
    const headers = { "X-Gateway-Key": button.dataset.key };
    await send(`/v1/videos/${encodeURIComponent(button.dataset.id)}`, { method: "DELETE", headers });
    location.assign(at("/console/videos"));
  } catch (fault) {
    button.disabled = false;
    toast(fault.message, "bad");
  }
});
