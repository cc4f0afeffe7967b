"""A data set can be narrowed, says what each filter left, and never ends up empty."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from openeqa_lab.data.datasets import SUBSETS, Dataset, Kept, hash_ids
from openeqa_lab.data.questions import ALIASES
from openeqa_lab.errors import FrameError, OpenEQAError

ROWS = [
    {
        "question_id": f"q-{index}",
        "question": f"What is number {index}?",
        "answer": str(index),
        "category": ("object recognition", "world knowledge")[index % 2],
        "episode_history": f"{('hm3d-v0', 'scannet-v0')[index // 3]}/{index // 2:03}-x",
    }
    for index in range(6)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    return path


def ids(dataset: Dataset) -> list[str]:
    return [case.id for case in dataset]


def test_it_is_a_sequence_of_cases_in_the_order_of_the_file(path: Path) -> None:
    dataset = Dataset(path)
    assert ids(dataset) == [f"q-{index}" for index in range(6)]
    assert dataset[-1].answer == "5"
    assert [case.id for case in dataset[1:3]] == ["q-1", "q-2"]
    assert dataset[2] in dataset
    assert dataset.kept == ()


def test_identity_is_the_hash_of_the_file_whatever_its_name_and_the_filters(path: Path) -> None:
    digest = sha256(path.read_bytes()).hexdigest()
    dataset = Dataset(str(path), name="mine")
    assert dataset.identity == {"sha256": digest}
    assert Dataset(path, split="hm3d", limit=1).identity == dataset.identity
    assert (dataset.name, Dataset(path).name) == ("mine", "questions")


def test_own_aliases_are_part_of_the_identity(path: Path) -> None:
    dataset = Dataset(path, aliases={"answer": "question_id"})
    assert dataset[0].answer == "q-0"
    assert dataset.identity["aliases"] == {"answer": ["question_id"]}


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"split": "hm3d"}, [0, 1, 2]),
        ({"split": "scannet-v0"}, [3, 4, 5]),
        ({"split": ["hm3d", "scannet"]}, [0, 1, 2, 3, 4, 5]),
        ({"category": "world knowledge"}, [1, 3, 5]),
        ({"category": ["world knowledge", "object recognition"]}, [0, 1, 2, 3, 4, 5]),
        ({"split": "hm3d", "category": "object recognition"}, [0, 2]),
        ({"split": "scannet", "limit": 2}, [3, 4]),
        ({"limit": 100}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_filters_keep_what_they_name(path: Path, filters: dict[str, Any], left: list[int]) -> None:
    assert ids(Dataset(path, **filters)) == [f"q-{index}" for index in left]


def test_each_filter_says_what_it_kept(path: Path) -> None:
    dataset = Dataset(path, split="hm3d", category="object recognition", limit=1)
    assert dataset.kept == (
        Kept("split=hm3d", 3, 3),
        Kept("category=object recognition", 2, 1),
        Kept("limit=1", 1, 1),
    )
    assert "1 of 6 questions, split=hm3d: 3" in repr(dataset)


def test_filters_can_follow_one_another(path: Path) -> None:
    dataset = Dataset(path)
    narrowed = dataset.filter(split="hm3d").filter(ids=["q-2", "q-5"]).limit(1)
    assert ids(narrowed) == ["q-2"]
    assert [step.filter for step in narrowed.kept] == ["split=hm3d", "ids", "limit=1"]
    assert len(dataset) == 6


@pytest.mark.parametrize("text", ['["q-4", "q-1"]', "q-4\r\n\n q-1 \n", "\ufeffq-1\nq-4\nq-4"])
def test_ids_come_from_a_list_or_from_lines(path: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    assert ids(Dataset(path, ids=str(tmp_path / "ids"))) == ["q-1", "q-4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q-1\nq-55\nx", r"2 of 3 ids .* are not in .*questions.json, such as 'q-55'; did you"),
        ("", r"names no ids"),
        ("[]", r"names no ids"),
        ("[1, 2]", r"a JSON list of ids in quotes"),
        ('{"q-1": 2}', r"a JSON list of ids in quotes"),
        ('["q-1"', r"not readable JSON"),
    ],
)
def test_a_bad_file_of_ids_is_refused(path: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    with pytest.raises(OpenEQAError, match=message):
        Dataset(path, ids=tmp_path / "ids")


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"split": "hm3"}, r"Unknown split 'hm3': .* has 'hm3d', 'scannet'; did you mean 'hm3d'"),
        ({"category": "world knowlege"}, r"Unknown category .* did you mean 'world knowledge'"),
        ({"category": ["world knowledge", "x"]}, r"Unknown category 'x': .*has 'object recog"),
        ({"category": []}, r"category names nothing"),
        ({"split": ""}, r"split names nothing"),
        ({"subset": "aeqa148"}, r"Unknown subset 'aeqa148'.*did you mean 'aeqa184'"),
        ({"ids": "nowhere/ids.txt"}, r"No file nowhere/ids.txt"),
        ({"limit": 0}, r"limit is 0: expected 1 or more"),
        ({"limit": -1}, r"limit is -1"),
        ({"subset": "s", "subsets": {"s": {"ids": "f"}}}, r"expected ids \(a file\) and sha256"),
    ],
)
def test_a_filter_that_names_nothing_known_is_refused(
    path: Path, filters: dict[str, Any], message: str
) -> None:
    with pytest.raises(OpenEQAError, match=message):
        Dataset(path, **filters)


def test_no_question_left_says_which_filter_dropped_what(path: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("q-0\nq-2", encoding="utf-8")
    message = (
        r"No question of .*questions.json is left: ids=.* kept 2 of 6, then "
        r"category=world knowledge kept 0 of 2; before it there were 'object recognition'$"
    )
    with pytest.raises(OpenEQAError, match=message):
        Dataset(path, ids=tmp_path / "ids", category="world knowledge")


def test_a_subset_is_checked_by_the_hash_of_its_sorted_ids(path: Path, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text('["q-5", "q-0"]', encoding="utf-8")
    digest = sha256(b"q-0\nq-5").hexdigest()
    subsets = {"two": {"ids": "two.json", "sha256": digest}}
    dataset = Dataset(path, subset="two", subsets=subsets)
    assert ids(dataset) == ["q-0", "q-5"]
    assert dataset.ids_sha256 == digest == hash_ids(["q-5", "q-0"])
    (tmp_path / "two.json").write_text('["q-5", "q-1"]', encoding="utf-8")
    with pytest.raises(OpenEQAError, match=f"not the list of subset 'two'.*expected {digest}"):
        Dataset(path, subset="two", subsets=subsets)


def test_a_subset_file_with_a_folder_is_not_looked_for_beside_the_questions(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/one").write_text("q-3", encoding="utf-8")
    subsets = {"one": {"ids": "lists/one", "sha256": hash_ids(["q-3"])}}
    assert ids(Dataset(path, subset="one", subsets=subsets)) == ["q-3"]


def test_a_missing_subset_file_names_the_fetch_command(path: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"184-questions.json.*openeqa_lab.fetch questions"):
        Dataset(path).subset("aeqa184")


def test_the_frames_of_a_case_are_at_hand_and_unopened(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "frames/hm3d-v0/000-x"
    folder.mkdir(parents=True)
    for index in range(3):
        (folder / f"{index:05}-rgb.png").write_bytes(b"not opened")
    dataset = Dataset(path)
    frames = dataset.frames(dataset[0])
    assert [frame.path for frame in frames] == [
        f"hm3d-v0/000-x/0000{index}-rgb.png" for index in range(3)
    ]
    with pytest.raises(FrameError, match="'scannet-v0/002-x' is missing"):
        dataset.frames(dataset[5])


def test_the_official_184_are_found_in_the_official_file(shared: Path) -> None:
    dataset = Dataset(shared / "data/openeqa/open-eqa-v0.json").subset("aeqa184")
    assert len(dataset) == 184
    assert {case.split for case in dataset} == {"hm3d"}
    assert len({case.episode for case in dataset}) == 57
    assert sum(bool(case.extra_answers) for case in dataset) == 35
    assert dataset.ids_sha256 == SUBSETS["aeqa184"]["sha256"]


def test_the_official_file_has_two_splits(shared: Path) -> None:
    path = shared / "data/openeqa/open-eqa-v0.json"
    assert len(Dataset(path, split="scannet")) == 1079
    assert len(Dataset(path, split="hm3d", category="object localization")) > 0


def test_the_config_says_what_the_library_does_by_default(repository: Path, path: Path) -> None:
    config = yaml.safe_load((repository / "conf/dataset/openeqa.yaml").read_text())
    (found,) = config["subsets"].values()
    assert found["sha256"] == SUBSETS["aeqa184"]["sha256"]
    assert found["ids"] == "${data_dir}/" + SUBSETS["aeqa184"]["ids"]
    assert config["aliases"] == {field: list(names) for field, names in ALIASES.items()}
    assert Dataset(path, aliases=config["aliases"]).identity == Dataset(path).identity
