// The turns of a conversation on the page: what a reader asked, and the answers of one or several models beside each other.
import { showAttachment } from "./attachments.js";
import { t } from "./language.js";
import { renderMarkdown } from "./markdown.js";
import { toast } from "./toast.js";

const byId = (id) => document.getElementById(id);

function makeButton(label, name, press) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = label;
  button.setAttribute("aria-label", name);
  button.addEventListener("click", press);
  return button;
}

function makeTurn(who, kind) {
  const element = byId("turn").content.firstElementChild.cloneNode(true);
  element.classList.add(kind);
  element.querySelector(".who").textContent = who;
  return element;
}

function addCopy(element, who, readText) {
  const button = makeButton(t("Copy"), t("Copy: {name}", { name: who }), async () => {
    try {
      await navigator.clipboard.writeText(readText());
      toast(t("Copied"));
    } catch {
      toast(t("This browser cannot copy here. Select the text and copy it manually."), "bad");
    }
  });
  element.querySelector(".tools").append(button);
  return button;
}

// A question; `edit` takes the conversation back to it.
export function addQuestion(list, turn, edit) {
  const element = makeTurn(t("You"), "theirs");
  element.querySelectorAll(".reasoning, .receipt, .calls").forEach((part) => part.remove());
  element.querySelector(".said").textContent = turn.text;
  if (turn.files.length) {
    const files = document.createElement("p");
    files.className = "row";
    files.append(...turn.files.map(showAttachment));
    element.append(files);
  }
  if (turn.text) addCopy(element, t("You"), () => turn.text);
  element.querySelector(".tools").append(makeButton(t("Edit"), t("Edit the message and ask again"), edit));
  const item = document.createElement("li");
  item.append(element);
  list.append(item);
  return item;
}

// Places for the answers of the models, side by side.
export function addAnswers(list, answers) {
  const item = document.createElement("li");
  item.className = "answers";
  const shown = answers.map((answer) => answer && new AnswerView(answer));
  item.append(...shown.filter(Boolean).map((view) => view.element));
  list.append(item);
  return { item, shown };
}

export class AnswerView {
  constructor(answer) {
    this.answer = answer;
    this.element = makeTurn(answer.who, "ours");
    this.words = this.element.querySelector(".said");
    this.reasoning = this.element.querySelector(".reasoning");
    this.receipt = this.element.querySelector(".receipt");
    this.copy = addCopy(this.element, answer.who, () => answer.text);
    this.copy.hidden = true;
    this.drawing = null;
  }

  setBusy(isBusy) {
    if (isBusy) this.element.setAttribute("aria-busy", "true");
    else this.element.removeAttribute("aria-busy");
  }

  addReasoning(piece) {
    this.reasoning.hidden = false;
    this.reasoning.querySelector("p").append(piece);
  }

  showText() {
    this.drawing = null;
    this.words.replaceChildren(...renderMarkdown(this.answer.text));
  }

  // What came, after its end; an error stands where the answer would.
  showEnd() {
    const { text, calls, error } = this.answer;
    if (this.drawing) cancelAnimationFrame(this.drawing);
    this.showText();
    this.copy.hidden = !text;
    this.element.classList.toggle("failed", Boolean(error));
    if (error) {
      const fault = document.createElement("p");
      fault.className = "error";
      fault.setAttribute("role", "alert");
      fault.textContent = error;
      this.words.append(fault);
    } else if (!text && !calls.length) this.words.textContent = t("(Empty answer)");
    this.showCalls();
  }

  // Calls of tools, each with a field for what the tool answers; read-only once that was sent.
  showCalls() {
    const place = this.element.querySelector(".calls");
    place.replaceChildren(...this.answer.calls.map((one, number) => {
      const box = document.createElement("div");
      const head = document.createElement("code");
      head.textContent = `${one.name}(${one.arguments})`;
      const label = document.createElement("label");
      const field = document.createElement("textarea");
      field.rows = 2;
      field.dataset.result = String(number);
      field.dataset.skip = "";
      field.value = one.result ?? "";
      field.readOnly = one.result !== undefined;
      label.append(t("Result of {name}", { name: one.name }), field);
      box.append(head, label);
      return box;
    }));
    place.hidden = this.answer.calls.length === 0;
    this.words.hidden = !place.hidden && !this.words.hasChildNodes();
  }

  // Whether a tool's answer is still to be given.
  isOpen() {
    return this.answer.calls.some(({ result }) => result === undefined);
  }

  // Takes what stands in the fields as the tools' answers.
  closeCalls() {
    for (const field of this.element.querySelectorAll("[data-result]")) {
      this.answer.calls[Number(field.dataset.result)].result = field.value;
      field.readOnly = true;
    }
  }
}
