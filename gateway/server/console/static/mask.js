// A mask over a picture, painted with a pointer or with the keyboard. What is painted is what may change.
import { t } from "./language.js";
const STEP = 0.25; // of the brush, for each press of an arrow
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const toBlob = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

export class Mask {
  constructor(root) {
    this.place = root.querySelector("#mask");
    this.picture = root.querySelector("#mask-picture");
    this.canvas = root.querySelector("#mask-canvas");
    this.brush = root.querySelector("#mask-brush");
    this.size = root.querySelector("#brush");
    this.told = root.querySelector("#mask-place");
    this.buttons = [root.querySelector("#mask-undo"), root.querySelector("#mask-clear")];
    this.strokes = [];
    this.at = [0, 0];
    this.listen();
  }

  get isPainted() {
    return this.strokes.length > 0;
  }

  // The brush's radius, in pixels of the picture.
  get radius() {
    return (Math.min(this.canvas.width, this.canvas.height) * Number(this.size.value)) / 200;
  }

  async open(file) {
    const url = URL.createObjectURL(file);
    const before = this.picture.src;
    this.picture.src = url;
    try {
      await this.picture.decode();
    } catch (error) {
      URL.revokeObjectURL(url);
      throw error;
    } finally {
      if (before.startsWith("blob:")) URL.revokeObjectURL(before);
    }
    this.canvas.width = this.picture.naturalWidth;
    this.canvas.height = this.picture.naturalHeight;
    this.brush.setAttribute("viewBox", `0 0 ${this.canvas.width} ${this.canvas.height}`);
    this.strokes = [];
    this.move([this.canvas.width / 2, this.canvas.height / 2]);
    this.draw();
  }

  listen() {
    this.place.addEventListener("pointerdown", (event) => this.begin(event));
    this.place.addEventListener("pointermove", (event) => this.follow(event));
    for (const end of ["pointerup", "pointercancel"]) this.place.addEventListener(end, () => (this.stroke = null));
    this.place.addEventListener("keydown", (event) => this.press(event));
    this.size.addEventListener("input", () => {
      this.size.setAttribute("aria-valuetext", t("{percent}% of the image", { percent: this.size.value }));
      this.move(this.at);
    });
    const [undo, clear] = this.buttons;
    undo.addEventListener("click", () => this.keep(this.strokes.slice(0, -1)));
    clear.addEventListener("click", () => this.keep([]));
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const part = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    return [part[0] * this.canvas.width, part[1] * this.canvas.height];
  }

  begin(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.place.focus({ preventScroll: true });
    this.place.setPointerCapture(event.pointerId);
    this.move(this.find(event));
    this.stroke = { radius: this.radius, points: [this.at] };
    this.keep([...this.strokes, this.stroke]);
  }

  follow(event) {
    this.move(this.find(event));
    if (!this.stroke) return;
    this.stroke.points.push(this.at);
    this.draw();
  }

  press(event) {
    const way = KEYS[event.key];
    if (way) {
      const step = Math.max(1, this.radius * 2 * STEP) * (event.shiftKey ? 4 : 1);
      this.move([this.at[0] + way[0] * step, this.at[1] + way[1] * step]);
      this.tell();
    } else if (event.key === " ") {
      this.keep([...this.strokes, { radius: this.radius, points: [this.at] }]);
      this.tell(t("Painted"));
    } else {
      return;
    }
    event.preventDefault();
  }

  move([x, y]) {
    this.at = [Math.min(Math.max(x, 0), this.canvas.width), Math.min(Math.max(y, 0), this.canvas.height)];
    const circle = this.brush.firstElementChild;
    circle.setAttribute("cx", this.at[0]);
    circle.setAttribute("cy", this.at[1]);
    circle.setAttribute("r", this.radius);
    circle.setAttribute("stroke-width", Math.max(this.canvas.width, this.canvas.height) / 250);
  }

  tell(word = t("Brush")) {
    const [x, y] = [this.at[0] / this.canvas.width, this.at[1] / this.canvas.height];
    this.told.textContent = t("{what} at {x}% from the left, {y}% from the top", { what: word, x: Math.round(x * 100), y: Math.round(y * 100) });
  }

  keep(strokes) {
    this.strokes = strokes;
    this.draw();
  }

  draw() {
    const ink = this.canvas.getContext("2d");
    ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.paint(ink, "#4f46e5");
    for (const button of this.buttons) button.disabled = !this.isPainted;
  }

  paint(ink, colour) {
    ink.strokeStyle = ink.fillStyle = colour;
    ink.lineCap = ink.lineJoin = "round";
    for (const { radius, points } of this.strokes) {
      ink.lineWidth = radius * 2;
      ink.beginPath();
      ink.moveTo(...points[0]);
      for (const point of points.slice(1)) ink.lineTo(...point);
      if (points.length > 1) ink.stroke();
      ink.beginPath();
      ink.arc(...points[0], radius, 0, 2 * Math.PI);
      ink.fill();
    }
  }

  // The picture as a PNG file, as large as its mask.
  writePicture() {
    const canvas = this.newCanvas();
    canvas.getContext("2d").drawImage(this.picture, 0, 0, canvas.width, canvas.height);
    return toBlob(canvas);
  }

  // The mask as a PNG file: transparent is what may change.
  writeMask() {
    const canvas = this.newCanvas();
    const ink = canvas.getContext("2d");
    ink.fillStyle = "#000";
    ink.fillRect(0, 0, canvas.width, canvas.height);
    ink.globalCompositeOperation = "destination-out";
    this.paint(ink, "#000");
    return toBlob(canvas);
  }

  newCanvas() {
    const canvas = document.createElement("canvas");
    canvas.width = this.canvas.width;
    canvas.height = this.canvas.height;
    return canvas;
  }
}
