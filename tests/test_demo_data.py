from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from openeqa_lab.demo import FOLDER, dataset, episodes
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.images.decoding import decode

CATEGORIES = {
    "attribute recognition",
    "functional reasoning",
    "object localization",
    "object recognition",
    "object state recognition",
    "spatial understanding",
    "world knowledge",
}


def test_there_are_two_dozen_questions_of_all_seven_categories_about_three_rooms() -> None:
    cases = dataset()
    assert len(cases) == 24
    assert len({case.id for case in cases}) == 24
    assert {case.category for case in cases} == CATEGORIES
    assert set(Counter(case.episode for case in cases).values()) == {8}
    assert {case.split for case in cases} == {"demo"}
    assert all(case.question.text.endswith("?") and case.answer for case in cases)
    assert any(case.extra_answers for case in cases)


def test_questions_have_the_fields_of_the_benchmarks_own_file() -> None:
    fields = {"question", "answer", "category", "question_id", "episode_history"}
    for row in json.loads((FOLDER / "questions.json").read_text(encoding="utf-8")):
        assert set(row) - {"extra_answers"} == fields


def test_wordings_come_back_in_other_rooms_so_that_a_prior_can_learn() -> None:
    cases = dataset()
    texts = Counter(case.question.text for case in cases)
    assert sum(count for count in texts.values() if count > 1) >= 20
    answered_alike = Counter((case.question.text, case.answer) for case in cases)
    assert sum(count for count in answered_alike.values() if count > 1) >= 8


async def test_every_question_has_an_episode_of_whole_frames_that_differ() -> None:
    source = episodes()
    asked = {case.episode: case for case in dataset()}
    for key, case in asked.items():
        episode = await source.episode(case)
        assert episode.id == key
        assert [frame.path for frame in episode.frames] == [
            f"{key}/{index:05}-rgb.png" for index in range(10)
        ]
        assert {decode(frame.read()).size for frame in episode.frames} == {(320, 240)}
        assert len({frame.sha256 for frame in episode.frames}) == 10


def test_the_demo_is_small_and_holds_no_frame_that_nobody_asks_about() -> None:
    files = [file for file in FOLDER.rglob("*") if file.suffix in (".png", ".jpg", ".json")]
    assert sum(file.stat().st_size for file in files) < 600_000
    folders = {
        file.parent.relative_to(FOLDER / "frames").as_posix()
        for file in files
        if file.suffix != ".json"
    }
    assert folders == {case.episode for case in dataset()}


def test_filters_narrow_the_demo() -> None:
    assert len(dataset(limit=5)) == 5
    assert len(dataset(category="world knowledge")) == 3
    with pytest.raises(OpenEQAError):
        dataset(category="no such category")


@pytest.mark.parametrize(("group", "build"), [("dataset", dataset), ("episodes", episodes)])
def test_the_yaml_files_name_no_path_and_fit_their_functions(
    repository: Path, group: str, build: object
) -> None:
    text = (repository / f"conf/{group}/demo.yaml").read_text(encoding="utf-8")
    assert "${" not in text
    node = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(node, dict)
    assert node.pop("_target_") == f"openeqa_lab.demo.{group}"
    assert callable(build)
    assert build(**node).identity == build().identity


def test_the_frames_are_drawn_by_the_script(repository: Path) -> None:
    script = (repository / "experiments/demo/draw.py").read_text(encoding="utf-8")
    for case in dataset():
        assert f'"{case.episode.rpartition("/")[2]}"' in script
