"""The pre-tokenizers of byte-level BPE that llama.cpp names in a file's ``tokenizer.ggml.pre``.

A file holds vocabulary and merges but not the patterns that text is cut with before them, which it gives by name. The
names and patterns are llama.cpp's (src/llama-vocab.cpp, version b6900 and later), with the character classes of the
models' own ``tokenizer.json`` where llama.cpp approximates those. A name that is missing here is an error: another
model's pattern would give another tokenization.
"""

from typing import TYPE_CHECKING, NamedTuple

from argap.errors import ArgapError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer


class Rule(NamedTuple):
    """How text is cut before the merges."""

    patterns: tuple[str, ...]
    """Each cuts the pieces that those before it leave; what it does not match stays whole."""
    whole: bool = False
    """Whether a piece that is in the vocabulary is a token, whatever the merges say."""


ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING, SPACES = f"{ENDINGS}|", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD, SIGNS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = rf"{ENDING}{WORD}|\p{{N}}{{1,3}}{SIGNS}{SPACES}"
QWEN2 = rf"{ENDING}{WORD}|\p{{N}}{SIGNS}{SPACES}"
QWEN35 = rf"{ENDING}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{SPACES}"


def _by_case(ending: str, digits: str) -> str:
    """Return the pattern of words that are cut where an upper-case letter follows a lower-case one."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{UPPER}*{LOWER}+{ending}|{start}{UPPER}+{LOWER}*{ending}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{SPACES}"
    )


BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
HAN = "[一-龥ࠀ-一가-\ud7ff]+"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + SPACES,
)
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽ"
    "ᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥ"
    "ῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    "ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""DeepSeek's letters: those with case."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        Rule((LLAMA3,), whole=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Rule((LLAMA3,))),
    **dict.fromkeys(("glm4", "glm5"), Rule((LLAMA3,), whole=True)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        Rule((QWEN2,)),
    ),
    "qwen35": Rule((QWEN35,)),
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4", "mpt", "olmo", "jais"),
            *("trillion", "granite-docling"),
        ),
        Rule((GPT2,)),
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
        Rule((r"\p{N}", GPT2)),
    ),
    "falcon": Rule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "tekken": Rule((_by_case("", r"\p{N}"),), whole=True),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), Rule((_by_case(f"{ENDINGS}?", r"\p{N}{1,3}"),))
    ),
    "deepseek-llm": Rule(
        (r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", HAN, r"\p{N}+")
    ),
    "deepseek-coder": Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), Rule(DEEPSEEK3)),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), Rule((BLOOM,))),
    "viking": Rule((BLOOM, r"\p{N}")),
    "seed-coder": Rule((rf"{ENDING}{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{SPACES}",)),
}
"""Rules by name."""


def rule_of(name: str) -> Rule:
    """Return the rule called ``name``. Raises `ArgapError`, with the known names, for another."""
    if name not in RULES:
        raise ArgapError(f"its pre-tokenizer {name!r} is not one of those known: {', '.join(sorted(RULES))}")
    return RULES[name]


def pre_tokenizer(rule: Rule) -> "PreTokenizer":
    """Build the pre-tokenizer of a rule: its cuts, then bytes as characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    cuts = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
