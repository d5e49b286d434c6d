"""Categories of published models."""

from detlite.conversion.categories import guess_categories


def test_categories_by_number_of_classes():
    assert [c["id"] for c in guess_categories(81)][10:13] == [11, 13, 14]
    assert guess_categories(91)[11] == {"id": 12, "name": "N/A"}
    assert guess_categories(91)[89] == {"id": 90, "name": "toothbrush"}
    assert guess_categories(21)[19] == {"id": 20, "name": "tvmonitor"}
    (person,) = guess_categories(2, keypoints=True)
    assert (person["id"], person["name"]) == (1, "person")
    assert person["keypoints"][:3] == ["nose", "left_eye", "right_eye"]
    assert (len(person["keypoints"]), person["keypoints"][-1]) == (17, "right_ankle")
    assert guess_categories(3) == [{"id": 1, "name": "class 1"}, {"id": 2, "name": "class 2"}]
