"""The recorded launch configurations: what is found for a launch, when they are used, and their file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from argap.models.fla import tuned
from argap.models.fla.tuned import Launch, Tuned, path_of, tuned_for

VERSIONS = {"fla-core": "1.2", "triton": "3.4"}
BF16, F32 = "torch.bfloat16", "torch.float32"
KEY = {"B": 8, "H": 4, "K": 128, "REVERSE": False}


def launch(kernel: str = "fla.a", dtypes: tuple[str, ...] = (BF16, F32), **key: Any) -> Launch:
    return Launch(kernel, KEY | key, dtypes)


def choice(number: int, kernel: str = "fla.a", **key: Any) -> tuple[Launch, Mapping[str, Any]]:
    return launch(kernel, **key), {"num_warps": number, "BK": 32}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the files are, with `VERSIONS` installed."""
    monkeypatch.setattr(tuned, "path_of", lambda gpus: tmp_path / f"{gpus}.json")
    monkeypatch.setattr(tuned, "versions", lambda: VERSIONS)
    monkeypatch.delenv(tuned.SWITCH, raising=False)
    tuned_for.cache_clear()
    yield tmp_path
    tuned_for.cache_clear()


def test_a_launch_finds_its_own_choice_or_one_with_another_number_of_programs() -> None:
    table = Tuned((choice(1), choice(2, H=32), choice(3, "fla.b", K=64)))
    assert table.chosen(launch()) == {"num_warps": 1, "BK": 32}
    assert table.chosen(launch(H=32)) == {"num_warps": 2, "BK": 32}
    assert table.chosen(launch(B=1)) == {"num_warps": 1, "BK": 32}
    assert table.chosen(launch(H=16)) == {"num_warps": 2, "BK": 32}  # |log 16/32| < |log 16/4|
    assert table.chosen(launch(B=1, H=16)) == {"num_warps": 2, "BK": 32}
    for other in (
        launch("fla.b"),
        launch(K=64),
        launch(REVERSE=True),
        launch(V=64),
        launch(dtypes=(BF16, BF16)),
        launch(dtypes=(BF16,)),
    ):
        assert table.chosen(other) is None


def test_a_new_choice_replaces_that_of_the_same_launch() -> None:
    table = Tuned((choice(1), choice(2, H=32)), {"gpu": "H200"}).with_choices(iter([choice(4), choice(3, K=64)]))
    assert table == Tuned((choice(2, H=32), choice(4), choice(3, K=64)), {"gpu": "H200"})


def test_the_file_does_not_depend_on_the_order_of_the_choices(folder: Path) -> None:
    choices = choice(1), choice(2, H=32), choice(3, "fla.b")
    Tuned(choices, {"versions": VERSIONS}).write("hopper")
    written = (folder / "hopper.json").read_bytes()
    (last, config), *others = reversed(choices)
    turned = Launch(last.kernel, _turned(last.key), last.dtypes), _turned(config)
    Tuned((turned, *others), {"versions": VERSIONS}).write("hopper")
    assert (folder / "hopper.json").read_bytes() == written
    found = tuned_for("hopper")
    assert sorted(found.choices, key=repr) == sorted(choices, key=repr)
    assert all(found.chosen(each) == config for each, config in choices)


def _turned(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(reversed(list(mapping.items())))


def test_choices_are_used_for_the_kernels_that_they_were_made_for_unless_switched_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used() -> bool:
        tuned_for.cache_clear()
        return tuned_for("hopper").chosen(launch()) is not None

    assert not used()  # no file
    Tuned((choice(1),), {"versions": VERSIONS}).write("hopper")
    assert used()
    assert tuned_for("any") == Tuned()
    for value, expected in (("1", False), ("0", True), ("", True)):
        monkeypatch.setenv(tuned.SWITCH, value)
        assert used() is expected
    for package, expected in (("triton", True), ("fla-core", False)):
        Tuned((choice(1),), {"versions": VERSIONS | {package: "9"}}).write("hopper")
        assert used() is expected


def test_the_shipped_choices_are_read() -> None:
    table = Tuned.read("hopper")
    assert path_of("hopper").is_file()
    assert table.made_with.keys() <= {"gpu", "versions"}
    for each, config in table.choices:
        assert each.kernel.startswith("fla.ops.")
        assert config["num_warps"] in (1, 2, 4, 8, 16, 32)
        assert table.chosen(each) == config
