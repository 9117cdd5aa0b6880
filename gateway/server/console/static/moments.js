// A moment is edited in the reader's own time zone.
for (const field of document.querySelectorAll("input[data-moment]")) {
  const moment = new Date(field.dataset.moment);
  if (Number.isNaN(moment.getTime())) continue;
  const local = new Date(moment.getTime() - moment.getTimezoneOffset() * 60000);
  field.defaultValue = local.toISOString().slice(0, 16);
}
