// Passkeys: navigator.credentials takes and gives bytes, the admin API base64url.
import { call } from "./api.js";
import { t } from "./language.js";

const OPTIONS = "/admin/v1/session/passkey/options";
const SIGN_IN = "/admin/v1/session/passkey";

export function isSupported() {
  return Boolean(globalThis.PublicKeyCredential && navigator.credentials);
}

function toBytes(text) {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
}

function toText(buffer) {
  const plain = String.fromCharCode(...new Uint8Array(buffer));
  return btoa(plain).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function readCredentials(list) {
  return list.map((one) => ({ ...one, id: toBytes(one.id) }));
}

// The browser tells no page why: the person left, the time was up, or there is no passkey for this site.
async function useDevice(work, refusal) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "InvalidStateError") throw new Error(t("You already have a passkey on this device"));
    if (error.name === "NotAllowedError" || error.name === "AbortError") throw new Error(refusal);
    throw error;
  }
}

export async function addPasskey(name, passphrase) {
  const options = await call("POST", "/admin/v1/session/passkeys/options", { passphrase });
  const publicKey = {
    ...options,
    challenge: toBytes(options.challenge),
    user: { ...options.user, id: toBytes(options.user.id) },
    excludeCredentials: readCredentials(options.excludeCredentials),
  };
  const made = await useDevice(() => navigator.credentials.create({ publicKey }), t("No passkey was created. Try again"));
  return call("POST", "/admin/v1/session/passkeys", {
    id: toText(made.rawId),
    client_data: toText(made.response.clientDataJSON),
    attestation_object: toText(made.response.attestationObject),
    transports: made.response.getTransports?.() ?? [],
    name,
  });
}

// Alone, or after the name and passphrase in `body`.
export async function signIn(body = {}) {
  const options = await call("POST", OPTIONS, body);
  const publicKey = { ...options, challenge: toBytes(options.challenge), allowCredentials: readCredentials(options.allowCredentials) };
  const { rawId, response } = await useDevice(() => navigator.credentials.get({ publicKey }), t("No passkey was used. Try again, or sign in another way"));
  return call("POST", SIGN_IN, {
    id: toText(rawId),
    client_data: toText(response.clientDataJSON),
    authenticator_data: toText(response.authenticatorData),
    signature: toText(response.signature),
    user_handle: response.userHandle?.byteLength ? toText(response.userHandle) : null,
  });
}
