"""What a condition may hold: parts whose cost and result grow no faster than the text of a token.

DuckDB stops a query only between vectors of some thousand rows, so one row must not take long: no ``repeat``, whose
result may fill the memory, no edit distance, no ``sleep_ms``, and few wildcards in a pattern, which is matched by
backtracking. Regular expressions are linear (RE2). Everything that is not listed is refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

LONGEST = 100_000
"""Characters of a condition."""
DEEPEST = 500
"""Open parentheses: DuckDB's parser takes time and memory with the square of those that are not closed."""
MOST_DIGITS = 38
"""Digits of a whole number: DuckDB 2.0 compares longer ones with columns wrongly, or not at all."""
MOST_JOINED = 16
"""Texts that are joined to longer ones."""
MOST_WILDCARDS = 3
"""Of a LIKE or GLOB pattern; a regular expression may have more."""
CLASSES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    **dict.fromkeys(("LAMBDA", "LAMBDA_REF"), "a lambda"),
    "COLLATE": "a collation",
    **dict.fromkeys(("POSITIONAL_REFERENCE", "DEFAULT", "BOUND_EXPRESSION"), "a reference"),
}
"""Classes of expressions that are refused, in words."""
EXPRESSIONS = (
    *("BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR"),
    "TYPE",
)
TYPES = (
    *("BOOL", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
    *("UINTEGER", "UBIGINT", "FLOAT", "REAL", "DOUBLE", "DECIMAL", "NUMERIC", "TEXT", "STRING", "VARCHAR"),
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    *("INT1", "INT2", "INT4", "INT8", "SHORT", "LONG", "FLOAT4", "FLOAT8", "BPCHAR", "CHAR"),
)
"""Types to cast to."""
FUNCTIONS = {
    "text": (
        *("ascii", "char_length", "chr", "concat", "contains", "ends_with", "instr", "lcase", "left", "len"),
        *("length", "lower", "ltrim", "nfc_normalize", "ord", "position", "prefix", "reverse", "right", "rtrim"),
        *(
            "starts_with",
            "strip_accents",
            "strlen",
            "strpos",
            "substr",
            "substring",
            "suffix",
            "trim",
            "ucase",
            "unicode",
        ),
        *("upper", "||", "^@"),
    ),
    "patterns": (
        *("regexp_extract", "regexp_full_match", "regexp_matches", "like_escape", "not_like_escape", "ilike_escape"),
        *("not_ilike_escape", "~~", "!~~", "~~*", "!~~*", "~~~"),
    ),
    "numbers": (
        *("+", "-", "*", "/", "//", "%", "^", "**", "&", "|", "<<", ">>", "@", "~", "abs", "bit_count", "ceil"),
        *("ceiling", "exp", "floor", "greatest", "isfinite", "isinf", "isnan", "least", "ln", "log", "log10", "log2"),
        *("mod", "pow", "power", "round", "sign", "sqrt", "trunc", "xor"),
    ),
    "lists and fields": (
        *(
            "array_contains",
            "array_extract",
            "array_length",
            "array_to_string",
            "list_contains",
            "list_extract",
            "list_has",
        ),
        *("list_has_all", "list_has_any", "list_value", "row", "struct_extract", "&&", "@>", "<@"),
    ),
    "dates": (
        *("date_part", "date_trunc", "day", "dayofweek", "epoch", "hour", "minute", "month", "quarter", "second"),
        *("week", "year"),
    ),
    "others": ("constant_or_null", "hash", "if", "ifnull", "nullif"),
}
"""Functions and operators by what they are for, as DuckDB's parser names them."""
ALLOWED = frozenset(name for names in FUNCTIONS.values() for name in names)
PATTERNS = frozenset(name for name in FUNCTIONS["patterns"] if "~" in name or "like" in name)


Node = dict[str, Any]
"""An object of the syntax tree that DuckDB serializes."""


def refused_part(parts: Sequence[Node]) -> str | None:
    """Return what a condition may not hold, and why; None if it may be run. ``parts``: of its syntax tree."""
    return next(_refused(parts), None)


def _refused(parts: Sequence[Node]) -> Iterator[str]:
    joined = 0
    for part in parts:
        name = part.get("class", "EXPRESSION" if "type_name" in part else "CONSTANT")
        if name not in EXPRESSIONS:
            yield f"{CLASSES.get(name, name.lower())}; expected an expression over the columns of one token"
        literal = part.get("literal") or {}
        if literal.get("kind") == "INTEGER" and len(digits := str(literal.get("text")).lstrip("-")) > MOST_DIGITS:
            yield f"a number of {len(digits):,} digits; expected at most {MOST_DIGITS}"
        if name == "TYPE" and (of_type := part["type_name"]).upper() not in TYPES:
            yield f"a cast to {of_type.lower()}; expected one to text, a number, a boolean or a date"
        if name == "FUNCTION":
            called = part["function_name"].lower()
            if called not in ALLOWED:
                yield f"the function {called[:40]}; docs/slices.md lists those that a condition may call"
            if called in PATTERNS:
                yield from _wildcards(part)
            joined += len(part["arguments"]) - 1 if called in ("||", "concat") else 0
    if joined > MOST_JOINED:
        yield f"{joined} joins of texts; expected at most {MOST_JOINED}"


def _wildcards(part: Node) -> Iterator[str]:
    """Yield what is wrong with the pattern of LIKE, ILIKE or GLOB."""
    pattern = part["arguments"][1]["expression"].get("literal", {}) if len(part["arguments"]) > 1 else {}
    if pattern.get("kind") != "STRING":
        yield "a pattern that is no literal text; expected one, or contains, starts_with or regexp_matches"
    elif sum(map(str(pattern.get("text")).count, "%*")) > MOST_WILDCARDS:
        yield f"a pattern of more than {MOST_WILDCARDS} wildcards; expected regexp_matches"
