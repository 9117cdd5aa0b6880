// Whether an object is still as a page, or an action, left it: nothing is undone or saved over what somebody else did meanwhile.
import { call } from "./api.js";

// JSON with sorted names: the same whatever order its writer had.
function write(value) {
  return JSON.stringify(value, (_, one) => (one && typeof one === "object" && !Array.isArray(one)
    ? Object.fromEntries(Object.entries(one).sort(([left], [right]) => (left < right ? -1 : 1))) : one));
}

// Returns whether the object at the path has these fields; null: whether its list has none of its name.
export async function isUnchanged(path, fields) {
  const [address] = path.split("?");
  if (fields === null) {
    const end = address.lastIndexOf("/");
    const { data } = await call("GET", address.slice(0, end));
    return !data.some((one) => one.name === decodeURIComponent(address.slice(end + 1)));
  }
  try {
    const now = await call("GET", address);
    return Object.entries(fields).every(([name, value]) => write(now[name]) === write(value));
  } catch (fault) {
    if (fault.status === 404) return false;
    throw fault;
  }
}
