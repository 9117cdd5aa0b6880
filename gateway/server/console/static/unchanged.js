// Whether an object is still as a page, or an action, left it: nothing is undone over what somebody else did meanwhile.
import { call } from "./api.js";

// JSON with sorted names: the same whatever order its writer had.
function write(value) {
  return JSON.stringify(value, (_, one) => (one && typeof one === "object" && !Array.isArray(one)
    ? Object.fromEntries(Object.entries(one).sort(([left], [right]) => (left < right ? -1 : 1))) : one));
}

function findEntry(whole, list, query) {
  const wanted = [...new URLSearchParams(query)];
  return whole[list].find((one) => wanted.every(([name, value]) => String(one[name]) === value));
}

// Returns whether the object at the path has these fields. "/path#keys?number=2" is the entry of its list `keys` with that number.
export async function isUnchanged(path, fields) {
  const [place, entry] = path.split("#");
  try {
    const whole = await call("GET", place.split("?", 1)[0]);
    const now = entry ? findEntry(whole, ...entry.split("?")) : whole;
    return Boolean(now) && Object.entries(fields).every(([name, value]) => write(now[name]) === write(value));
  } catch (fault) {
    if (fault.status === 404) return false;
    throw fault;
  }
}
