// Files of a message: chosen, pasted or dropped; each becomes a part of the message's content.
import { t } from "./language.js";
import { toast } from "./toast.js";

const MAX_BYTES = 10 * 1024 * 1024; // below the gateway's limit for a whole request, which has base64 in it
const AUDIO_FORMATS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3" };

function readAs(file, method) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader[method](file);
  });
}

// The part of a message, or null if no model reads such a file.
async function readPart(file) {
  if (file.type.startsWith("image/")) return { type: "image_url", image_url: { url: await readAs(file, "readAsDataURL") } };
  if (file.type in AUDIO_FORMATS) {
    const data = (await readAs(file, "readAsDataURL")).split(",", 2)[1];
    return { type: "input_audio", input_audio: { data, format: AUDIO_FORMATS[file.type] } };
  }
  if (file.type === "application/pdf") {
    return { type: "file", file: { filename: file.name, file_data: await readAs(file, "readAsDataURL") } };
  }
  const text = await readAs(file, "readAsText");
  return /[\0\uFFFD]/.test(text) ? null : { type: "text", text: `${file.name}:\n${text}` };
}

// What is shown of a file: a picture as a picture, the others by their names.
export function showAttachment({ name, part }) {
  if (part.type === "image_url") {
    const image = document.createElement("img");
    image.src = part.image_url.url;
    image.alt = name;
    image.className = "attached";
    return image;
  }
  const label = document.createElement("span");
  label.className = "badge";
  label.textContent = name;
  return label;
}

const KINDS = { image_url: "image", input_audio: "audio", file: "file" };
const UNREADABLE = {
  image: t("The chosen model cannot see images"),
  audio: t("The chosen model cannot hear recordings"),
  file: t("The chosen model cannot read PDFs"),
};

// Watches a form's file field, its pasted and dropped files. `list` shows them, each with a button that removes it.
// `listUnreadable` returns the kinds of files that no chosen model reads.
export function watchAttachments(form, input, list, listUnreadable) {
  let attached = []; // of { name, size, part }

  const show = () => {
    list.replaceChildren(...attached.map((file) => {
      const item = document.createElement("li");
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet small";
      remove.textContent = "✕";
      remove.setAttribute("aria-label", t("Remove: {name}", { name: file.name }));
      remove.addEventListener("click", () => {
        attached = attached.filter((other) => other !== file);
        show();
      });
      item.append(showAttachment(file), remove);
      return item;
    }));
    list.hidden = attached.length === 0;
    list.toggleAttribute("data-unsaved", !list.hidden);
  };

  const add = async (files) => {
    for (const file of files) {
      const size = attached.reduce((sum, other) => sum + other.size, file.size);
      if (size > MAX_BYTES) {
        toast(t("The files of a message may total at most 10 MB"), "bad");
        break;
      }
      const part = await readPart(file);
      const kind = KINDS[part?.type];
      if (listUnreadable().includes(kind)) toast(UNREADABLE[kind], "bad");
      else if (part) attached.push({ name: file.name || t("Pasted file"), size: file.size, part });
      else toast(t("{name} is not an image, recording, PDF or text file", { name: file.name }), "bad");
    }
    show();
  };

  input.addEventListener("change", async () => {
    await add([...input.files]);
    input.value = ""; // the same file can be chosen again
  });
  form.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length || event.clipboardData.types.includes("text/plain")) return; // a table is text and a picture of it
    event.preventDefault();
    add(files);
  });
  form.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  form.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });

  return {
    read: () => [...attached],
    put(files) {
      attached = [...files];
      show();
    },
  };
}
