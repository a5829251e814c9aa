// Answers of a bundle: files beside the page, instead of a server. `answers.json` names the file of each request.

const index = document.documentElement.dataset.answers;
let names = null;

/** Whether this page is a bundle (`argap view --bundle`). */
export const bundled = index !== undefined;

const read = async (path) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path} is not beside the page (${response.status})`);
  return response.json();
};

/** The parameters on which a stored answer depends; the others are left out of its name, as in `argap.view.bundle`. */
function telling(path, parameters) {
  const { threshold, intervals, in_order, ...given } = parameters;
  if (path === "window") return { window: given.window };
  if (path === "losses" && given.where === "ar_hits") return { ...given, where: threshold === null ? "repeated" : `repeated AND train_count <= ${threshold}` };
  const follows = path === "sources" || (path === "breakdown" && ["slice", "frequency"].includes(given.by));
  return follows ? { ...given, threshold } : given;
}

/** The answer to a request. Throws an Error for one that the bundle does not hold. */
export async function stored(path, parameters) {
  names ??= read(index);
  const given = Object.entries(telling(path, parameters)).filter(([, value]) => value !== null && value !== undefined);
  const key = [path, ...given.map(([name, value]) => `${name}=${value}`).sort()].join("&");
  const name = (await names)[key];
  if (!name) throw new Error(path === "window" ? `window ${parameters.window} is not in this copy of the result` : "this copy of the result does not hold that; argap view RESULT computes it");
  const made = await read(`answers/${name}`);
  return path === "window" ? among(made, [...parameters.model, parameters.reference]) : made;
}

/** A window with some of its models, as the server sends it. */
function among(window, models) {
  return { ...window, models: [...new Set(models)].map((model) => window.models.find((each) => each.model === model)) };
}
