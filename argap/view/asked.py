"""Read the parameters of a request."""

from starlette.datastructures import QueryParams

from argap.errors import ArgapError
from argap.view.answers import Answers, Setting


class Asked:
    """The parameters of a request. Raises `ArgapError` for missing or malformed ones."""

    def __init__(self, given: QueryParams, answers: Answers) -> None:
        self._given = given
        self.answers = answers

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name, default)
        if value is None:
            raise ArgapError(f"`{name}` is missing")
        return value

    def whole(self, name: str) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise ArgapError(f"`{name}` {text[:40]}: expected a whole number")
        return int(text)

    def flag(self, name: str) -> bool:
        return self.text(name, "0") == "1"

    @property
    def model(self) -> str:
        return self.text("model")

    @property
    def models(self) -> list[str]:
        return self._given.getlist("model")

    @property
    def named(self) -> list[tuple[str, str]]:
        """Return conditions with their names."""
        wheres, names = self._given.getlist("where"), self._given.getlist("name")
        if not wheres or len(wheres) != len(names):
            raise ArgapError(f"`where` and `name` come in pairs, found {len(wheres)} and {len(names)}")
        return list(zip(names, wheres, strict=True))

    @property
    def reference(self) -> str:
        return self.text("reference", self.answers.result.reference)

    @property
    def setting(self) -> Setting:
        own = self.answers.result.threshold
        return Setting(self.whole("threshold") if "threshold" in self._given else own, self.reference)
