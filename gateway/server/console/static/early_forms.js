// Before the page's scripts have come: a form that is sent already, as on a slow connection, is sent once they have.
{
  const early = new Map(); // form -> the button that was pressed

  function hold(event) {
    if (event.target.method !== "post") return; // a form that filters a page needs no script
    event.preventDefault();
    event.stopImmediatePropagation();
    early.set(event.target, event.submitter);
  }
  document.addEventListener("submit", hold, true);
  document.addEventListener("DOMContentLoaded", () => { // after all modules
    document.removeEventListener("submit", hold, true);
    for (const [form, button] of early) form.requestSubmit(button);
  });
}
