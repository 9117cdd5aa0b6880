// Whether an object is still as a page, or an action, left it: nothing is undone over what somebody else did meanwhile.
import { call } from "./api.js";

// JSON with sorted names: the same whatever order its writer had.
function write(value) {
  return JSON.stringify(value, (_, one) => (one && typeof one === "object" && !Array.isArray(one)
    ? Object.fromEntries(Object.entries(one).sort(([left], [right]) => (left < right ? -1 : 1))) : one));
}

// Returns whether the object at the path has these fields.
export async function isUnchanged(path, fields) {
  try {
    const now = await call("GET", path.split("?", 1)[0]);
    return Object.entries(fields).every(([name, value]) => write(now[name]) === write(value));
  } catch (fault) {
    if (fault.status === 404) return false;
    throw fault;
  }
}
