// Charts are complete without this script. It adds a tooltip with all series, hides series, zooms into a part of the
// period that is dragged over, and opens the requests of a column. The numbers are those of the table below the charts.
import { t } from "./language.js";

const table = document.getElementById("chart-numbers");
const rows = table ? [...table.tBodies[0].rows] : [];

function readRow(index, figure) {
  const first = Number(figure.dataset.first), count = Number(figure.dataset.count);
  const texts = [...rows[index].cells].slice(1 + first, 1 + first + count).map((cell) => cell.textContent.trim());
  return { label: rows[index].cells[0].textContent.trim(), texts };
}

function findLink(index) {
  return new URL(rows[index].querySelector("a").href);
}

// How high the outline of a series is in each column: with the bars of the series below.
function readOutline(shape) {
  const heights = [];
  let height = 0;
  for (const [, command, number] of shape.getAttribute("d").matchAll(/([vh])(-?[\d.]+)/g)) {
    if (command === "v") height -= Number(number);
    else heights.push(height);
  }
  return heights;
}

function writeOutline(heights) {
  return `M0 160${heights.map((height) => `V${160 - height}h1`).join("")}V160`;
}

function line(...parts) {
  const paragraph = document.createElement("p");
  paragraph.append(...parts);
  return paragraph;
}

function text(content) {
  const span = document.createElement("span");
  span.textContent = content;
  return span;
}

class ChartPointer {
  constructor(figure) {
    this.figure = figure;
    this.area = figure.querySelector(".plot-area");
    this.plot = figure.querySelector(".plot");
    this.entries = [...figure.querySelectorAll(".legend li")];
    this.index = -1;
    this.from = -1; // where a drag has begun
    this.moved = false;
    this.tapped = -1; // the column whose numbers a tap has shown
    this.stack = [];
    this.tip = document.createElement("div");
    this.tip.className = "chart-tip";
    this.tip.hidden = true;
    this.column = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    this.column.setAttribute("class", "column");
    this.column.setAttribute("height", "160");
    this.plot.prepend(this.column);
    this.slider = this.makeSlider();
    figure.append(this.tip);
    this.entries.forEach((entry, series) => this.addSwitch(entry, series));
    this.speak(rows.length - 1);
    this.listen();
  }

  // What a screen reader says of a column.
  speak(index) {
    const { label, texts } = readRow(index, this.figure);
    const spoken = this.entries.map((entry, series) => `${entry.querySelector(".cut").textContent} ${texts[series]}`);
    this.slider.setAttribute("aria-valuenow", String(index));
    this.slider.setAttribute("aria-valuetext", `${label}: ${spoken.join(", ")}`);
  }

  makeSlider() {
    const slider = document.createElement("div");
    const title = this.area.getAttribute("aria-label");
    slider.tabIndex = 0;
    slider.setAttribute("role", "slider");
    slider.setAttribute("aria-label", t("{title}: arrow keys move, Shift+arrow keys select a range, Enter shows the requests", { title }));
    slider.setAttribute("aria-valuemin", "0");
    slider.setAttribute("aria-valuemax", String(rows.length - 1));
    this.area.removeAttribute("role");
    this.area.removeAttribute("aria-label");
    this.area.replaceWith(slider);
    slider.append(this.area);
    return slider;
  }

  // The colour of a series hides it and shows it again.
  addSwitch(entry, series) {
    const swatch = entry.querySelector(".swatch"), button = document.createElement("button");
    const name = entry.querySelector(".cut").textContent;
    const shape = this.plot.querySelector(`path.${swatch.classList[1]}`);
    if (shape && !shape.classList.contains("line")) {
      const outline = readOutline(shape), below = this.stack.at(-1)?.outline ?? [];
      this.stack.push({ shape, outline, bars: outline.map((height, index) => height - (below[index] ?? 0)) });
    }
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.setAttribute("aria-label", t("Show {name}", { name }));
    swatch.replaceWith(button);
    button.append(swatch);
    button.addEventListener("click", () => {
      const isHidden = shape ? shape.classList.toggle("hidden") : button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!isHidden));
      this.restack();
    });
    this.entries[series].button = button;
  }

  // The bars above a hidden series come down.
  restack() {
    let heights = Array(rows.length).fill(0);
    for (const { shape, bars } of this.stack.filter(({ shape }) => !shape.classList.contains("hidden"))) {
      heights = heights.map((height, index) => height + bars[index]);
      shape.setAttribute("d", writeOutline(heights));
    }
  }

  listen() {
    const { slider } = this;
    slider.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.from = this.find(event);
      this.moved = false;
    });
    slider.addEventListener("pointermove", (event) => this.show(this.find(event), event.buttons === 1));
    slider.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.hide();
    });
    slider.addEventListener("pointercancel", () => this.hide());
    slider.addEventListener("pointerup", (event) => this.finish(this.find(event), event.pointerType === "touch"));
    slider.addEventListener("blur", () => this.hide());
    slider.addEventListener("focus", () => {
      if (slider.matches(":focus-visible")) this.show(this.index < 0 ? rows.length - 1 : this.index);
    });
    slider.addEventListener("keydown", (event) => this.press(event));
  }

  find(event) {
    const box = this.plot.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * rows.length);
    return Math.min(Math.max(index, 0), rows.length - 1);
  }

  show(index, isDragged = false) {
    if (isDragged && this.from >= 0 && index !== this.from) this.moved = true;
    this.index = index;
    const start = isDragged && this.from >= 0 ? Math.min(this.from, index) : index;
    const end = isDragged && this.from >= 0 ? Math.max(this.from, index) : index;
    this.column.setAttribute("x", String(start));
    this.column.setAttribute("width", String(end - start + 1));
    const { label, texts } = readRow(index, this.figure);
    const heading = document.createElement("strong");
    heading.textContent = start === end ? label : `${readRow(start, this.figure).label} – ${readRow(end, this.figure).label}`;
    const lines = this.entries.map((entry, series) => {
      const swatch = entry.querySelector(".swatch").cloneNode(true);
      return line(swatch, text(entry.querySelector(".cut").textContent), text(texts[series]));
    });
    this.tip.replaceChildren(line(heading), ...lines.filter((_, series) => this.entries[series].button.getAttribute("aria-pressed") === "true"));
    this.speak(index);
    this.tip.hidden = false;
    this.place((end + 0.5) / rows.length);
  }

  // Beside the column, on the side where there is room.
  place(share) {
    const figure = this.figure.getBoundingClientRect(), box = this.plot.getBoundingClientRect();
    const x = box.left - figure.left + share * box.width, width = this.tip.offsetWidth;
    const left = x + 14 + width <= figure.width ? x + 14 : x - 14 - width;
    this.tip.style.left = `${Math.max(Math.min(left, figure.width - width), 0)}px`;
  }

  hide() {
    this.tip.hidden = true;
    this.column.setAttribute("width", "0");
    this.from = -1;
    this.tapped = -1;
  }

  // The first tap of a finger shows the numbers, a second one on the same column opens the requests.
  finish(index, isTouch) {
    const from = this.from;
    this.from = -1;
    if (from < 0) return;
    if (isTouch && !this.moved && this.tapped !== index) {
      this.tapped = index;
      this.show(index);
      this.tip.append(line(t("Tap again to see the requests")));
      return;
    }
    if (this.moved) this.zoom(Math.min(from, index), Math.max(from, index));
    else this.open(index);
  }

  // The page shows the chosen part of its period.
  zoom(start, end) {
    const address = new URL(location.href);
    address.searchParams.delete("span");
    address.searchParams.set("since", findLink(start).searchParams.get("since"));
    address.searchParams.set("until", findLink(end).searchParams.get("until"));
    location.assign(address);
  }

  // The requests of a column; with one series shown, only those of the series.
  open(index) {
    const address = findLink(index);
    const shown = this.entries.filter((entry) => entry.button.getAttribute("aria-pressed") === "true");
    const link = shown.length === 1 ? shown[0].querySelector("a.cut") : null;
    if (link) {
      for (const [name, value] of new URL(link.href).searchParams) {
        if (!["last", "since", "until"].includes(name)) address.searchParams.set(name, value);
      }
    }
    location.assign(address);
  }

  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -rows.length, End: rows.length }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      const index = this.index < 0 ? rows.length - 1 : this.index;
      if (event.shiftKey && this.from < 0) this.from = index;
      if (!event.shiftKey) this.from = -1;
      this.show(Math.min(Math.max(index + step, 0), rows.length - 1), event.shiftKey);
    } else if (event.key === "Enter" && this.index >= 0) {
      if (this.from >= 0 && this.from !== this.index) this.zoom(Math.min(this.from, this.index), Math.max(this.from, this.index));
      else this.open(this.index);
    } else if (event.key === "Escape") {
      this.hide();
    }
  }
}

if (rows.length) {
  for (const figure of document.querySelectorAll("figure[data-chart]")) new ChartPointer(figure);
}
