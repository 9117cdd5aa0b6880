// The request log: a drawer over the list, its columns, saved views, and new rows as they come.
import "./request_code.js";
import "./request_columns.js";
import { refreshDrawer } from "./request_drawer.js";
import { followRequests } from "./request_tail.js";
import "./request_views.js";

followRequests(refreshDrawer);

// A period and two times exclude one another. This runs before the form is sent because of the change.
document.addEventListener("change", ({ target }) => {
  const { last, since, until } = target.form?.elements ?? {};
  if (target === last) since.value = until.value = "";
  else if (target === since || target === until) last.value = "";
}, true);
