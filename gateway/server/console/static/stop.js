// A form's request that the reader can stop.
export function watchStop(start, stop) {
  let controller = null;
  stop.addEventListener("click", () => controller?.abort());
  return {
    isOpen: () => controller !== null,
    open() {
      controller = new AbortController();
      start.disabled = true;
      start.setAttribute("aria-busy", "true");
      stop.hidden = false;
      return controller.signal;
    },
    close() {
      controller = null;
      start.disabled = false;
      start.removeAttribute("aria-busy");
      stop.hidden = true;
    },
  };
}
