// Answers of the server, or of a bundle. A request whose answer nobody waits for any more is aborted, which stops its query there too.

import { bundled, stored } from "./bundle.js";

const asked = new Map();

/** Thrown where a later request of the same kind took over. */
export class Superseded extends Error {}

/** The address of an answer; lists become repeated parameters, null ones are left out. */
export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) query.append(name, each === true ? "1" : each === false ? "0" : each);
    }
  }
  const text = query.toString();
  return `api/${path}${text && `?${text}`}`;
}

/** Ask for JSON. `lane`: a later request in the same lane aborts this one. Throws an Error with the server's line. */
export async function ask(path, parameters = {}, lane = null) {
  const controller = new AbortController();
  if (lane) {
    asked.get(lane)?.abort();
    asked.set(lane, controller);
  }
  let response;
  try {
    if (bundled) {
      const made = await stored(path, parameters);
      if (controller.signal.aborted) throw new Superseded();
      return made;
    }
    response = await fetch(address(path, parameters), { signal: controller.signal, credentials: "same-origin" });
    const made = await response.json();
    if (!response.ok || made.error) throw new Error(made.error ?? `the server answered ${response.status}`);
    return made;
  } catch (error) {
    if (error.name === "AbortError") throw new Superseded();
    if (!response && !bundled) throw new Error("the server does not answer; is `argap view` still running?");
    throw error;
  } finally {
    if (lane && asked.get(lane) === controller) asked.delete(lane);
  }
}

/** Ask for something that changes the result. Throws as `ask` does. */
export async function send(path, parameters) {
  const response = await fetch(address(path, parameters), { method: "POST", credentials: "same-origin" });
  const made = await response.json();
  if (!response.ok || made.error) throw new Error(made.error ?? `the server answered ${response.status}`);
  return made;
}

/** Give up what is under way in a lane. */
export const stop = (lane) => asked.get(lane)?.abort();

// A page that goes into the browser's cache of pages would leave its queries running.
addEventListener("pagehide", () => asked.forEach((controller) => controller.abort()));
