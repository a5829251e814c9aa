// The words of the page, explained where they stand: as tooltips of headings, and in a box on the first view.

import { h } from "./dom.js";
import { threshold, unit } from "./state.js";
import { percent, whole } from "./numbers.js";

export const TERMS = {
  interval: "Student-t over documents: how much the figure depends on which documents were scored",
  overall: "all scored tokens: perplexity, and in parentheses the mean of −log p in nats; lower is better",
  ar_hits: "tokens whose bigram occurs earlier in the window and is rare in training",
  repeated: "tokens whose bigram occurs earlier in the window",
  other: "all tokens that are not hits",
  delta: "NLL minus the reference’s: positive where the model is behind, negative where it is ahead",
  part: "the hits’ share of the tokens times the difference on them; with the other tokens’ part it adds up to ΔNLL",
  due: "the part on the hits in percent of the whole gap or lead",
  parameters: "parameters of the model",
  model: "sort by name",
};

/** What a column of the table means. */
export const explain = (column, overview) => (column === "ar_hits" && overview.hits !== "AR hits" ? TERMS.repeated : TERMS[column]) ?? null;

/** The box of the report: what an AR hit is, and the words of the page. */
export function box(overview, share) {
  const counted = threshold() !== null;
  return h("details.terms", {},
    h("summary", {}, counted ? "What is an AR hit? The words of this page" : "The words of this page"),
    h("p", {}, h("b", {}, "Associative recall (AR)"), ": after reading “Hakuna Matata” once, a reader who meets “Hakuna” again expects “Matata”. ",
      counted ? ["An ", h("b", {}, "AR hit"), " is a token that repeats a pair of neighbouring tokens (a bigram) from earlier in the same window, and that training saw at most τ times, here ", whole(threshold()), ": a model is unlikely to know the pair by heart and has to look back."] : "Without training counts every repeated bigram counts as a hit, also those that a model may know by heart.",
      share === null ? "" : ` Here ${percent(share)} of the scored ${unit()}s are ${overview.hits}.`),
    h("dl", {},
      h("dt", {}, "NLL, perplexity"), h("dd", {}, "the mean of −log p of the true token, in nats; perplexity is its exponential. Lower is better."),
      h("dt", {}, "ΔNLL; gap, lead, level"), h("dd", {}, TERMS.delta, "; level where its interval contains 0."),
      h("dt", {}, "share"), h("dd", {}, TERMS.due, ". In parentheses where it must not be claimed."),
      h("dt", {}, "τ"), h("dd", {}, "the most times that training may have seen a hit’s bigram. The slider moves it."),
      h("dt", {}, "95% interval"), h("dd", {}, TERMS.interval, ".")),
    h("p.faint", {}, "The definitions in full: docs/definitions.md of argap, after ", h("a", { href: "https://arxiv.org/abs/2312.04927", rel: "noreferrer" }, "Arora et al., section 3"), "."));
}
